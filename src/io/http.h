#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>

#include "base/error.h"

namespace octet {

enum class NetworkFault {
  Offline,  // the host was not reached at all
  Passing,  // another try may help
  Lasting,  // every try meets it again: redirects in a circle or to another protocol, huge headers, no URL
};

// No answer, or an incomplete one.
class NetworkError : public Error {
 public:
  NetworkError(const std::string& message, NetworkFault fault) : Error(message), fault_(fault) {}
  NetworkFault fault() const { return fault_; }

 private:
  NetworkFault fault_;
};

struct HttpResponse {
  long status = 0;
  std::map<std::string, std::string> headers;  // of the last response, names in lower case
  std::string body;                            // at most 64 MiB; empty if on_bytes takes the body
};

struct HttpRequest {
  std::string url;
  std::string token = {};  // bearer token; not sent to another host after a redirect
  int64_t first_byte = 0;  // > 0: requests the bytes from here on; a server may still send all (status 200)
  // Receives the body of a success (200, 206) piece by piece; status and headers are already known. What it throws
  // ends the transfer and is rethrown by http_get.
  std::function<void(const HttpResponse&, std::span<const std::byte>)> on_bytes = {};
  int connect_timeout_s = 15;
  int stall_timeout_s = 60;  // without a byte
};

// GET over http or https; follows redirects. Returns any status; throws NetworkError if there is none.
HttpResponse http_get(const HttpRequest& request);
bool has_http();  // built in

std::string url_encode(std::string_view text,
                       std::string_view keep = "");  // all but A-Z a-z 0-9 - _ . ~ and `keep`

}  // namespace octet
