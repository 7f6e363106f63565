#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/http.h"
#include "io/hub.h"

namespace octet {

struct HubFile {
  std::string path;
  int64_t size = 0;
  std::string hash;  // also the blob's name: SHA-256 (64 digits), or git's name of the object (40 digits)
};

struct HubListing {
  std::string commit;
  std::vector<HubFile> files;
};

// The hub's HTTP interface: what a repository holds, and its files.
class HubClient {
 public:
  explicit HubClient(const HubRequest& request) : request_(&request) {}

  HubListing list() const;
  // Downloads to `blob`.incomplete, then renames it to `blob`. A later call (or the huggingface_hub library) can
  // continue an incomplete file.
  void download(const HubFile& file, const std::string& commit, const std::string& blob,
                HubProgress& progress) const;

 private:
  std::string api_url(const std::string& rest) const;
  HttpResponse get_with_retries(const std::string& url) const;
  void wait_before_retry(int attempt, const HttpResponse* response, const std::string& why) const;
  void transfer(const HubFile& file, const std::string& url, const std::string& part,
                HubProgress& progress) const;
  [[noreturn]] void refuse(const std::string& url, const HttpResponse& response) const;

  const HubRequest* request_;
};

}  // namespace octet
