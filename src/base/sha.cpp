#include "base/sha.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/evp.h>

#include <array>

#include "base/error.h"

namespace octet {
namespace {

// OpenSSL keeps a queue of errors per thread; the oldest one names the cause.
std::string openssl_error() {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  if (code == 0) return "OpenSSL gives no reason";
  std::array<char, 256> text{};
  ERR_error_string_n(code, text.data(), text.size());
  return text.data();
}

void check(int status, const char* name, const char* what) {
  if (status != 1) fail("[{}] the hash cannot be {}: {}", name, what, openssl_error());
}

}  // namespace

void ShaHash::Deleter::operator()(evp_md_ctx_st* context) const {
  EVP_MD_CTX_free(context);
}

ShaHash::ShaHash(const char* name, const evp_md_st* algorithm) : name_(name), context_(EVP_MD_CTX_new()) {
  check(context_ != nullptr, name_, "started");
  check(EVP_DigestInit_ex(context_.get(), algorithm, nullptr), name_, "started");
}

void ShaHash::update(std::span<const std::byte> bytes) {
  require(context_ != nullptr, "[{}] data was added after the hash was finished", name_);
  check(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()), name_, "continued");
}

std::string ShaHash::hex() {
  require(context_ != nullptr, "[{}] the hash was finished twice", name_);
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  check(EVP_DigestFinal_ex(context_.get(), digest.data(), &size), name_, "finished");
  context_.reset();
  std::string text;
  for (unsigned i = 0; i < size; ++i) text += fmt::format("{:02x}", digest[i]);
  return text;
}

Sha256::Sha256() : ShaHash("SHA-256", EVP_sha256()) {}
Sha1::Sha1() : ShaHash("SHA-1", EVP_sha1()) {}

}  // namespace octet
