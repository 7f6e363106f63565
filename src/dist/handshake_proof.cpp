// The proofs of the handshake: both sides show that they know the job's key and secret, without sending them.

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "dist/rendezvous_messages.h"

namespace octet {

Proof hmac_sha256(std::string_view key, std::string_view text) {
  Proof proof{};
  unsigned size = 0;
  const unsigned char* done = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                                   reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                                   reinterpret_cast<unsigned char*>(proof.data()), &size);
  require(done != nullptr && size == kProofBytes, "[handshake] OpenSSL cannot compute an HMAC");
  return proof;
}

bool is_same_proof(const Proof& a, const Proof& b) {
  return CRYPTO_memcmp(a.data(), b.data(), kProofBytes) == 0;
}

void fill_random(char* bytes, size_t count) {
  require(RAND_bytes(reinterpret_cast<unsigned char*>(bytes), static_cast<int>(count)) == 1,
          "[handshake] OpenSSL has no random numbers");
}

Nonce random_nonce() {
  Nonce nonce{};
  fill_random(nonce.data(), nonce.size());
  return nonce;
}

std::string random_hex(size_t bytes) {
  std::string raw(bytes, '\0'), text;
  fill_random(raw.data(), raw.size());
  for (const char c : raw) text += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return text;
}

std::string proof_key(std::string_view job, const std::optional<std::string>& secret) {
  const Proof key = hmac_sha256(secret.value_or("no secret"), fmt::format("octet job {}", job));
  return {key.data(), key.size()};
}

// Only tells jobs apart. It goes over the wire as it is, so it must not give the key away.
std::array<char, 32> job_hash(std::string_view job) {
  return hmac_sha256("octet job hash", job);
}

Proof client_proof(std::string_view key, const Nonce& challenge, HelloMessage hello) {
  hello.proof = {};
  std::string text = "client ";
  text.append(challenge.data(), challenge.size());
  text += to_frame(hello);
  return hmac_sha256(key, text);
}

Proof server_proof(std::string_view key, const Nonce& challenge, const HelloMessage& hello) {
  std::string text = "rank 0 ";
  text.append(challenge.data(), challenge.size());
  text += to_frame(hello);
  return hmac_sha256(key, text);
}

}  // namespace octet
