#pragma once

#include <bit>
#include <cstdint>
#include <utility>

#include "base/philox.h"

namespace octet {

// Where element `index` of 0 .. count - 1 goes in the permutation that `random` draws: a Feistel network on the
// smallest even number of bits that holds count, repeated until the result is below count. Needs no memory and finds
// any element directly.
inline int64_t permuted(int64_t index, int64_t count, const Philox& random) {
  constexpr uint64_t kRounds = 8;
  const int half_bits = (static_cast<int>(std::bit_width(static_cast<uint64_t>(count - 1))) + 1) / 2;
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  uint64_t x = static_cast<uint64_t>(index);
  do {
    uint64_t left = x >> half_bits, right = x & mask;
    for (uint64_t round = 0; round < kRounds; ++round) {
      const uint64_t mixed = random.bits(round << 56 | right) & mask;
      left = std::exchange(right, left ^ mixed);
    }
    x = left << half_bits | right;
  } while (x >= static_cast<uint64_t>(count));
  return static_cast<int64_t>(x);
}

// The stream of random numbers for one pass over the data. `stream` separates uses of the same seed.
inline Philox epoch_random(uint64_t seed, uint64_t stream, int64_t epoch) {
  return Philox(seed, stream ^ static_cast<uint64_t>(epoch) << 8);
}

}  // namespace octet
