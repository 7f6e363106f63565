#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace octet {

// The block hashes of FIPS 180-4, fed piece by piece. hex() ends the message; the hash can not be fed further.
class ShaBlocks {
 public:
  void update(std::span<const std::byte> bytes);
  void update(std::string_view text) { update(std::as_bytes(std::span(text.data(), text.size()))); }
  std::string hex();  // in lower case

 protected:
  ShaBlocks() = default;
  ~ShaBlocks() = default;
  virtual void add_block(const uint8_t* block) = 0;  // 64 bytes

  std::array<uint32_t, 8> state_{};
  size_t words_ = 0;  // of state_ that are the result

 private:
  std::array<uint8_t, 64> block_{};
  size_t filled_ = 0;
  uint64_t bytes_ = 0;
};

class Sha256 final : public ShaBlocks {
 public:
  Sha256();

 private:
  void add_block(const uint8_t* block) override;
};

// For git's object names, which the hub gives for small files; not for anything that must resist an attacker.
class Sha1 final : public ShaBlocks {
 public:
  Sha1();

 private:
  void add_block(const uint8_t* block) override;
};

}  // namespace octet
