#include "io/http.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <system_error>

#include "base/environment.h"

#if OCTET_WITH_CURL
#include <curl/curl.h>
#endif

namespace octet {

std::string url_encode(std::string_view text, std::string_view keep) {
  constexpr std::string_view kPlain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~";
  std::string encoded;
  for (const char c : text) {
    if (kPlain.find(c) != kPlain.npos || keep.find(c) != keep.npos) {
      encoded += c;
    } else {
      encoded += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return encoded;
}

#if OCTET_WITH_CURL
namespace {

constexpr size_t kMaxBody = size_t{64} << 20;
// Less than what libcurl refuses with the error of a cut connection.
constexpr size_t kMaxHeaders = size_t{1} << 18;

struct Transfer {
  const HttpRequest* request;
  HttpResponse response;
  size_t header_bytes = 0;   // of all answers
  std::exception_ptr error;  // thrown inside a callback, which C code called
};

size_t on_header(char* data, size_t, size_t size, void* user) {
  auto& transfer = *static_cast<Transfer*>(user);
  const std::string_view line(data, size);
  transfer.header_bytes += size;
  if (transfer.header_bytes > kMaxHeaders) {
    transfer.error = std::make_exception_ptr(
        NetworkError(fmt::format("[{}] the headers of the answer have more than {} bytes",
                                 transfer.request->url, kMaxHeaders),
                     NetworkFault::Lasting));
    return 0;
  }
  if (line.starts_with("HTTP/")) {  // of a redirect, or of its target
    transfer.response.headers.clear();
    const size_t space = line.find(' ');
    transfer.response.status = 0;
    for (size_t i = space + 1; space != line.npos && i < line.size() && line[i] >= '0' && line[i] <= '9';
         ++i) {
      transfer.response.status = transfer.response.status * 10 + (line[i] - '0');
    }
    return size;
  }
  const size_t colon = line.find(':');
  if (colon == line.npos) return size;
  std::string name(line.substr(0, colon));
  std::transform(name.begin(), name.end(), name.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  const size_t begin = line.find_first_not_of(" \t", colon + 1);
  const size_t end = line.find_last_not_of(" \t\r\n") + 1;
  transfer.response.headers[name] = begin == line.npos || begin >= end ? "" : line.substr(begin, end - begin);
  return size;
}

size_t on_body(char* data, size_t, size_t size, void* user) {
  auto& transfer = *static_cast<Transfer*>(user);
  const long status = transfer.response.status;
  try {
    if (transfer.request->on_bytes && (status == 200 || status == 206)) {
      transfer.request->on_bytes(transfer.response, std::as_bytes(std::span(data, size)));
    } else if (status < 300 || status >= 400) {  // the body of a redirect is ignored
      require(transfer.response.body.size() + size <= kMaxBody, "[{}] the answer has more than {} bytes",
              transfer.request->url, kMaxBody);
      transfer.response.body.append(data, size);
    }
    return size;
  } catch (...) {
    transfer.error = std::current_exception();
    return 0;
  }
}

// The certificates of this machine. A libcurl that was built on Debian looks where Debian has them, also on other systems.
// Empty: as libcurl was built, which is what OpenSSL uses.
std::string certificate_file() {
  if (const auto given = environment_value("SSL_CERT_FILE")) return *given;
  for (const char* place : {"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
                            "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"}) {
    std::error_code ignored;
    if (std::filesystem::is_regular_file(place, ignored)) return place;
  }
  return "";
}

}  // namespace

bool has_http() {
  return true;
}

HttpResponse http_get(const HttpRequest& request) {
  static std::once_flag started;
  std::call_once(started, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
  const std::unique_ptr<CURL, decltype(&curl_easy_cleanup)> curl(curl_easy_init(), curl_easy_cleanup);
  require(curl != nullptr, "[{}] libcurl could not be started", request.url);
  Transfer transfer{&request, {}, {}};
  CURL* handle = curl.get();
  char details[CURL_ERROR_SIZE] = {};
  const std::string range = fmt::format("{}-", request.first_byte);
  curl_easy_setopt(handle, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(handle, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(handle, CURLOPT_REDIR_PROTOCOLS_STR,
                   request.url.starts_with("https:") ? "https" : "http,https");
  curl_easy_setopt(handle, CURLOPT_FOLLOWLOCATION, 1L);
  curl_easy_setopt(handle, CURLOPT_MAXREDIRS, 10L);
  curl_easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(handle, CURLOPT_USERAGENT, "octet");
  if (const std::string file = certificate_file(); !file.empty())
    curl_easy_setopt(handle, CURLOPT_CAINFO, file.c_str());  // libcurl copies the text
  curl_easy_setopt(handle, CURLOPT_ERRORBUFFER, details);
  curl_easy_setopt(handle, CURLOPT_CONNECTTIMEOUT, static_cast<long>(request.connect_timeout_s));
  curl_easy_setopt(handle, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(handle, CURLOPT_LOW_SPEED_TIME, static_cast<long>(request.stall_timeout_s));
  if (request.first_byte > 0) curl_easy_setopt(handle, CURLOPT_RANGE, range.c_str());
  if (!request.token.empty()) {
    curl_easy_setopt(handle, CURLOPT_HTTPAUTH, CURLAUTH_BEARER);
    curl_easy_setopt(handle, CURLOPT_XOAUTH2_BEARER, request.token.c_str());
  }
  curl_easy_setopt(handle, CURLOPT_HEADERFUNCTION, on_header);
  curl_easy_setopt(handle, CURLOPT_HEADERDATA, &transfer);
  curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, on_body);
  curl_easy_setopt(handle, CURLOPT_WRITEDATA, &transfer);

  const CURLcode code = curl_easy_perform(handle);
  if (transfer.error) std::rethrow_exception(transfer.error);
  if (code == CURLE_OK) return std::move(transfer.response);
  curl_off_t connected_us = 0;
  curl_easy_getinfo(handle, CURLINFO_CONNECT_TIME_T, &connected_us);
  const bool is_lasting =
      code == CURLE_TOO_MANY_REDIRECTS || code == CURLE_UNSUPPORTED_PROTOCOL || code == CURLE_URL_MALFORMAT;
  const bool is_offline = code == CURLE_COULDNT_RESOLVE_HOST || code == CURLE_COULDNT_CONNECT ||
                          code == CURLE_COULDNT_RESOLVE_PROXY ||
                          (code == CURLE_OPERATION_TIMEDOUT && connected_us == 0);
  throw NetworkError(fmt::format("[{}] {}", request.url, details[0] ? details : curl_easy_strerror(code)),
                     is_lasting   ? NetworkFault::Lasting
                     : is_offline ? NetworkFault::Offline
                                  : NetworkFault::Passing);
}

#else

bool has_http() {
  return false;
}

HttpResponse http_get(const HttpRequest& request) {
  throw NetworkError(
      fmt::format("[{}] octet was built without downloads (Debian: libcurl4-openssl-dev)", request.url),
      NetworkFault::Offline);
}

#endif

}  // namespace octet
