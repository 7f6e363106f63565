#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace octet {

// Philox 4x32-10 (Salmon et al., SC'11): random numbers as a pure function of (seed, stream, index), so that a
// value does not depend on the order or the number of threads that ask for it, and a restart needs no saved state
// beyond the index.
class Philox {
 public:
  explicit constexpr Philox(uint64_t seed, uint64_t stream = 0) : seed_(seed), stream_(stream) {}

  // Four independent 32-bit words for each index.
  constexpr std::array<uint32_t, 4> words(uint64_t index) const {
    std::array<uint32_t, 4> counter = {low(index), high(index), low(stream_), high(stream_)};
    uint32_t key0 = low(seed_), key1 = high(seed_);
    for (int round = 0; round < 10; ++round) {
      const uint64_t product0 = uint64_t{0xD2511F53} * counter[0];
      const uint64_t product1 = uint64_t{0xCD9E8D57} * counter[2];
      counter = {high(product1) ^ counter[1] ^ key0, low(product1), high(product0) ^ counter[3] ^ key1,
                 low(product0)};
      key0 += 0x9E3779B9;
      key1 += 0xBB67AE85;
    }
    return counter;
  }

  constexpr uint64_t bits(uint64_t index) const {
    const auto w = words(index);
    return uint64_t{w[0]} << 32 | w[1];
  }

  // Uniform in [0, 1) with 24 bits.
  constexpr float uniform(uint64_t index) const { return static_cast<float>(words(index)[0] >> 8) * 0x1p-24f; }

  // Uniform in {0, ..., bound - 1}; the bias of at most bound / 2^64 is of no account here.
  constexpr uint64_t below(uint64_t index, uint64_t bound) const {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(bits(index)) * bound) >> 64);
  }

  // Standard normal by Box-Muller.
  float normal(uint64_t index) const {
    const auto w = words(index);
    const double u = (static_cast<double>(w[0]) + 1.0) * 0x1p-32;  // (0, 1]
    const double v = static_cast<double>(w[1]) * 0x1p-32;
    return static_cast<float>(std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v));
  }

 private:
  static constexpr uint32_t low(uint64_t x) { return static_cast<uint32_t>(x); }
  static constexpr uint32_t high(uint64_t x) { return static_cast<uint32_t>(x >> 32); }

  uint64_t seed_;
  uint64_t stream_;
};

}  // namespace octet
