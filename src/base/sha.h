#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

struct evp_md_ctx_st;  // OpenSSL's EVP_MD_CTX
struct evp_md_st;      // and its EVP_MD

namespace octet {

// A hash by OpenSSL, updated piece by piece. hex() finishes it; then it cannot be updated. Throws Error when OpenSSL
// refuses, for example SHA-1 under a policy that forbids it.
class ShaHash {
 public:
  void update(std::span<const std::byte> bytes);
  void update(std::string_view text) { update(std::as_bytes(std::span(text.data(), text.size()))); }
  std::string hex();  // in lower case

 protected:
  ShaHash(const char* name, const evp_md_st* algorithm);
  ~ShaHash() = default;

 private:
  struct Deleter {
    void operator()(evp_md_ctx_st* context) const;
  };
  const char* name_;
  std::unique_ptr<evp_md_ctx_st, Deleter> context_;  // null after hex()
};

class Sha256 final : public ShaHash {
 public:
  Sha256();
};

// For git's object names, which the hub gives for small files; not for anything that must resist an attacker.
class Sha1 final : public ShaHash {
 public:
  Sha1();
};

}  // namespace octet
