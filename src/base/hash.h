#pragma once

#include <fmt/format.h>

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/host_device.h"

namespace octet {

// Spreads every bit of a word over all bits (the finaliser of SplitMix64); the same on every device.
OCTET_HOST_DEVICE inline uint64_t mix_bits(uint64_t word) {
  word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9;
  word = (word ^ (word >> 27)) * 0x94D049BB133111EB;
  return word ^ (word >> 31);
}

// FNV-1a over a sequence of values, 64 bits. It detects accidental differences, not deliberate collisions. Strings
// count with their length, so that "ab", "c" and "a", "bc" differ.
class Hash64 {
 public:
  Hash64& add(std::string_view text) {
    add(static_cast<uint64_t>(text.size()));
    for (const char c : text) mix(static_cast<unsigned char>(c));
    return *this;
  }
  template <std::integral T>
  Hash64& add(T value) {
    const auto bits = static_cast<uint64_t>(static_cast<int64_t>(value));
    for (int shift = 0; shift < 64; shift += 8) mix(static_cast<unsigned char>(bits >> shift));
    return *this;
  }
  uint64_t value() const { return hash_; }
  std::string text() const { return fmt::format("{:016x}", hash_); }

 private:
  void mix(unsigned char byte) { hash_ = (hash_ ^ byte) * 0x100000001b3; }

  uint64_t hash_ = 0xcbf29ce484222325;
};

}  // namespace octet
