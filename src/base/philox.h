#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numbers>

#include "base/host_device.h"

namespace octet {

namespace detail {

// Natural logarithm of x / 2^32 for a whole x in [1, 2^32]. Like cos_turns it is built from +, *, / and fma alone, each
// rounded once, so that every machine and the GPU get the same bits; right to about 2^-52.
OCTET_HOST_DEVICE inline double log_of_fraction(double x) {
  const auto bits = std::bit_cast<uint64_t>(x);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xFFFFFFFFFFFFFull) | 0x3FF0000000000000ull);  // [1, 2)
  if (m > std::numbers::sqrt2) m *= 0.5, ++exponent;
  // log m = 2 atanh s = 2 (s + s^3 / 3 + s^5 / 5 + ...), |s| < 0.172
  const double s = (m - 1.0) / (m + 1.0), z = s * s;
  double series = 1.0 / 25;
  for (int n = 23; n >= 3; n -= 2) series = fma(series, z, 1.0 / n);
  const double log_m = fma(2.0 * s * z, series, 2.0 * s);
  return fma(static_cast<double>(exponent - 32), std::numbers::ln2, log_m);
}

// cos(2 pi x / 2^32).
OCTET_HOST_DEVICE inline double cos_turns(uint32_t x) {
  // The nearest quarter turn: the angle from there is small.
  const uint32_t quarter = (x + 0x20000000u) >> 30;
  const auto rest = static_cast<int32_t>(x - (quarter << 30));
  const double angle = static_cast<double>(rest) * (2.0 * std::numbers::pi * 0x1p-32), z = angle * angle;
  // Taylor series: 1 - z / 2! + z^2 / 4! - ..., or angle * (1 - z / 3! + ...)
  const bool sine = quarter % 2 == 1;
  double series = 1.0;
  for (int n = sine ? 19 : 18; n >= 2; n -= 2) series = fma(-z / (n * (n - 1)), series, 1.0);
  const double value = sine ? angle * series : series;
  return quarter == 1 || quarter == 2 ? -value : value;
}

}  // namespace detail

// Philox 4x32-10 (Salmon et al., SC'11): random numbers as a pure function of (seed, stream, index), so that a
// value does not depend on the order or the number of threads that ask for it, and a restart needs no saved state
// beyond the index.
class Philox {
 public:
  explicit constexpr Philox(uint64_t seed, uint64_t stream = 0) : seed_(seed), stream_(stream) {}

  // The keys of the rounds, from the seed.
  template <int rounds>
  struct Keys {
    uint32_t of_round[rounds][2];
  };
  template <int rounds>
  constexpr Keys<rounds> keys() const {
    Keys<rounds> keys{};
    for (uint32_t round = 0; round < rounds; ++round) {
      keys.of_round[round][0] = low(seed_) + round * 0x9E3779B9u;
      keys.of_round[round][1] = high(seed_) + round * 0xBB67AE85u;
    }
    return keys;
  }

  // Four independent 32-bit words for each index. Fewer rounds give other words. In the paper seven rounds pass all
  // test batteries; use them where kernel time matters.
  template <int rounds>
  static constexpr std::array<uint32_t, 4> words(const Keys<rounds>& keys, uint64_t stream, uint64_t index) {
    static_assert(rounds >= 7);
    std::array<uint32_t, 4> counter = {low(index), high(index), low(stream), high(stream)};
    for (int round = 0; round < rounds; ++round) {
      const uint64_t product0 = product(0xD2511F53, counter[0]);
      const uint64_t product1 = product(0xCD9E8D57, counter[2]);
      counter = {high(product1) ^ counter[1] ^ keys.of_round[round][0], low(product1),
                 high(product0) ^ counter[3] ^ keys.of_round[round][1], low(product0)};
    }
    return counter;
  }
  template <int rounds = 10>
  constexpr std::array<uint32_t, 4> words(uint64_t index) const {
    return words<rounds>(keys<rounds>(), stream_, index);
  }

  constexpr uint64_t bits(uint64_t index) const {
    const auto w = words(index);
    return uint64_t{w[0]} << 32 | w[1];
  }

  // Uniform in [0, 1) with 24 bits.
  constexpr float uniform(uint64_t index) const {
    return static_cast<float>(words(index)[0] >> 8) * 0x1p-24f;
  }

  // Uniform in {0, ..., bound - 1}; the bias of at most bound / 2^64 does not matter here.
  constexpr uint64_t below(uint64_t index, uint64_t bound) const {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(bits(index)) * bound) >> 64);
  }

  // Standard normal by Box-Muller, the same bits on host and GPU.
  OCTET_HOST_DEVICE float normal(uint64_t index) const {
    const auto w = words(index);
    const double log_u = detail::log_of_fraction(static_cast<double>(w[0]) + 1.0);  // u in (0, 1]
    return static_cast<float>(sqrt(-2.0 * log_u) * detail::cos_turns(w[1]));
  }

 private:
  static constexpr uint32_t low(uint64_t x) { return static_cast<uint32_t>(x); }
  static constexpr uint32_t high(uint64_t x) { return static_cast<uint32_t>(x >> 32); }
  static constexpr uint64_t product(uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__)
    uint64_t both;  // the compiler would make two instructions from a 64-bit product
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(both) : "r"(a), "r"(b));
    return both;
#else
    return uint64_t{a} * b;
#endif
  }

  uint64_t seed_;
  uint64_t stream_;
};

}  // namespace octet
