#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "base/host_device.h"
#include "base/philox.h"

namespace octet {

// Stochastic rounding of what the optimizer stores in fewer bits than it computes with: a value goes up with the
// probability of its distance from the code below, so that changes smaller than a step between codes are not lost but
// add up in the mean. The random bits are a function of (seed, stream of the parameter, step, place): a resumed run draws
// the same ones, and so does every backend.

// Bits for eight neighbouring columns of a row; group = row * ceil(cols / 8) + col / 8. Initial weights use the indices
// below 2^40 of the same streams, and steps count from 1.
struct RoundingBits {
  std::array<uint32_t, 4> words;

  OCTET_HOST_DEVICE static constexpr RoundingBits of(uint64_t seed, uint64_t stream, int64_t step,
                                                     int64_t group) {
    return {Philox(seed, stream).words((static_cast<uint64_t>(step) << 40) + static_cast<uint64_t>(group))};
  }
  // 16 bits for column `j` of the eight. The three numbers of an element take those of different columns.
  OCTET_HOST_DEVICE constexpr uint32_t weight(int j) const {
    return words[j / 2] >> (16 * (j % 2)) & 0xFFFFu;
  }
  OCTET_HOST_DEVICE constexpr uint32_t m(int j) const { return weight(j ^ 1); }
  OCTET_HOST_DEVICE constexpr uint32_t v(int j) const { return weight(j ^ 2); }
};

// The bits of the bf16 on either side of a finite x.
OCTET_HOST_DEVICE constexpr uint16_t to_bf16_stochastic(float x, uint32_t random16) {
  return static_cast<uint16_t>((std::bit_cast<uint32_t>(x) + random16) >> 16);
}

// A value between two e4m3 codes becomes one of them by adding random bits below the three bits of the mantissa that stay
// and cutting the rest off. Below the smallest normal code, 2^-6, codes are 2^-9 apart as they are from 2^-6 to 2^-5:
// such values are moved there first (which rounds to 2^-29) and back afterwards.
constexpr float kSmallestNormalE4m3 = 0x1p-6f;
OCTET_HOST_DEVICE constexpr uint32_t rounding_noise(uint32_t random16) { return random16 << 4 | 8u; }

// The e4m3 code on either side of x, |x| <= 448 but for rounding; a value that has a code keeps it.
OCTET_HOST_DEVICE constexpr uint8_t to_e4m3_stochastic(float x, uint32_t random16) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = (bits >> 24) & 0x80u;
  const float magnitude = std::bit_cast<float>(bits & 0x7FFFFFFFu);
  const bool small = magnitude < kSmallestNormalE4m3;
  const float moved = small ? magnitude + kSmallestNormalE4m3 : magnitude;
  // 20 of the 23 mantissa bits go; the exponent's bias changes from 127 to 7, and by one more where it was moved.
  const uint32_t code = ((std::bit_cast<uint32_t>(moved) + rounding_noise(random16)) >> 20) -
                        ((small ? 127u - 6u : 127u - 7u) << 3);
  if (code == 0) return 0;  // of either sign
  return static_cast<uint8_t>(sign | (code < 0x7Eu ? code : 0x7Eu));
}

// AdamW's moments in e4m3, for the matrices of a model: blocks of 128 columns of a row (the last of a row may be
// shorter) with one fp32 factor each, value = code * factor. m is stored as it is. v spans too many powers of two, so its
// square root is stored: the ratio of 2^17.8 between the largest and the smallest code is then one of 2^35 in v. A root
// above zero never becomes code 0, which would turn the next update into m / epsilon.
constexpr int64_t kMomentBlock = 128;

struct MomentScale {
  float factor;   // value of code 1.0, stored
  float inverse;  // what values are multiplied with before they are rounded
};
// `largest` is the largest magnitude in the block. Blocks of nothing but dust count as zero.
OCTET_HOST_DEVICE constexpr MomentScale moment_scale(float largest) {
  if (!(largest > 0x1p-100f)) return {0.0f, 0.0f};
  return {largest / 448.0f, 448.0f / largest};
}

}  // namespace octet
