#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>

#include "base/error.h"

namespace octet {

// No answer came, or not the whole of it.
class NetworkError : public Error {
 public:
  NetworkError(const std::string& message, bool is_offline) : Error(message), is_offline_(is_offline) {}
  bool is_offline() const { return is_offline_; }  // the host was not reached at all

 private:
  bool is_offline_;
};

struct HttpResponse {
  long status = 0;
  std::map<std::string, std::string> headers;  // of the last response, names in lower case
  std::string body;                            // at most 64 MiB; what on_bytes takes does not stand here
};

struct HttpRequest {
  std::string url;
  std::string token = {};  // bearer token; a redirect to another host does not see it
  int64_t first_byte = 0;  // > 0: asks for the bytes from here on; a server may still send all (status 200)
  // Takes the body of a success (200, 206) piece by piece; the response has status and headers then. What it
  // throws ends the transfer and comes out of http_get.
  std::function<void(const HttpResponse&, std::span<const std::byte>)> on_bytes = {};
  int connect_timeout_s = 15;
  int stall_timeout_s = 60;  // without a byte
};

// GET over http or https, redirects followed. Any status is returned; NetworkError where there is none.
HttpResponse http_get(const HttpRequest& request);
bool has_http();  // built in

std::string url_encode(std::string_view text,
                       std::string_view keep = "");  // all but A-Z a-z 0-9 - _ . ~ and `keep`

}  // namespace octet
