#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

#include "base/host_device.h"
#include "base/philox.h"

namespace octet {

// Stochastic rounding of what the optimizer stores in fewer bits than it computes with: a value goes up with the
// probability of its distance from the code below, so that changes smaller than a step between codes are not lost but
// add up in the mean. The random bits are a function of (seed, stream of the parameter, step, place): a resumed run draws
// the same ones, and so does every backend.

// Noise for eight neighbouring columns of a row; groups = ceil(cols / 8), and group = col / 8. Rows 2r and 2r + 1 share
// four words. Initial weights use the indices below 2^40 of the same streams (and more rounds), and steps count from 1.
constexpr int kRoundingRounds = 7;
struct RoundingBits {
  std::array<uint32_t, 2> words;

  OCTET_HOST_DEVICE static constexpr uint64_t index(int64_t step, int64_t row, int64_t groups,
                                                    int64_t group) {
    return (static_cast<uint64_t>(step) << 40) + static_cast<uint64_t>(row / 2 * groups + group);
  }
  OCTET_HOST_DEVICE static constexpr RoundingBits of(uint64_t seed, uint64_t stream, int64_t step,
                                                     int64_t row, int64_t groups, int64_t group) {
    const auto words = Philox(seed, stream).words<kRoundingRounds>(index(step, row, groups, group));
    return row % 2 == 0 ? RoundingBits{{words[0], words[1]}} : RoundingBits{{words[2], words[3]}};
  }

  // 24 bits, uniform. Each of the eight begins with another byte of the words and goes on with the bytes below it, so that
  // neighbours share bits, but none where both count: one's first byte is another's second at most.
  OCTET_HOST_DEVICE constexpr uint32_t noise(int j) const {
    return std::rotl(words[static_cast<size_t>(j / 4)], 8 * (j % 4)) >> 8;
  }
  // For column `j` of the eight: 16 bits for the weight, 24 for each moment. The three of an element have no leading 16
  // bits in common.
  OCTET_HOST_DEVICE constexpr uint32_t weight(int j) const { return noise(j) >> 8; }
  OCTET_HOST_DEVICE constexpr uint32_t m(int j) const { return noise(j ^ 4); }
  OCTET_HOST_DEVICE constexpr uint32_t root(int j) const { return noise(j ^ 2); }
};

// The bits of the bf16 on either side of a finite x.
OCTET_HOST_DEVICE constexpr uint16_t to_bf16_stochastic(float x, uint32_t random16) {
  return static_cast<uint16_t>((std::bit_cast<uint32_t>(x) + random16) >> 16);
}

// ---- AdamW's moments in e4m3 ----
//
// For the matrices of a model: blocks of 128 columns of a row (the last of a row may be shorter) with one fp32 factor
// each, value = code * factor. m is stored as it is. v spans too many powers of two, so its square root is stored: the
// ratio of 2^17.8 between the largest and the smallest code is then one of 2^35 in v. Codes of roots are never 0, which
// would turn the next update into m / epsilon.
constexpr int64_t kMomentBlock = 128;

// e4m3 times 2^-120 is fp32 with the same exponent field and the first three of its 23 bits of mantissa, the subnormal
// codes among fp32's subnormals: in the bits of such an fp32 number a code stands above 20 bits that say how far the next
// one is. Adding random ones and cutting them off rounds, and it never leaves the two codes beside the value.
constexpr float kE4m3AsFp32 = 0x1p-120f;

// The code on either side of `shifted`, a value times kE4m3AsFp32, in the upper byte and without its sign. A value that
// has a code keeps it. The probability of the code above is exact: 24 bits of noise, 20 of value.
OCTET_HOST_DEVICE constexpr uint32_t e4m3_magnitude(float shifted, uint32_t noise24) {
  return (std::bit_cast<uint32_t>(shifted) << 4) + noise24;
}
OCTET_HOST_DEVICE constexpr uint8_t to_e4m3_stochastic(float shifted, uint32_t noise24) {
  const uint32_t sign = std::bit_cast<uint32_t>(shifted) & 0x80000000u;
  return static_cast<uint8_t>((e4m3_magnitude(shifted, noise24) | sign) >> 24);
}
OCTET_HOST_DEVICE constexpr uint8_t root_to_e4m3_stochastic(float shifted, uint32_t noise24) {
  const uint8_t code = to_e4m3_stochastic(shifted, noise24);
  return code > 0 ? code : 1;
}

// The factor of a block whose largest magnitude is `largest`: this one stays just below code 448, so that no rounding
// passes it. Blocks of nothing but dust count as zero.
constexpr float kMomentDust = 0x1p-49f;
constexpr float kFactorOfLargest = 1.0f / (448.0f * (1.0f - 0x1p-20f));
OCTET_HOST_DEVICE constexpr float moment_factor(float largest) {
  return largest > kMomentDust ? largest * kFactorOfLargest : 0.0f;
}

// Brings the values of a block to where e4m3_magnitude takes them. The inverse of a large factor would be too small for
// fp32 if it had all of kE4m3AsFp32 in it.
constexpr float kLargeMoment = 0x1p14f;
struct MomentShift {
  float first, inverse;

  OCTET_HOST_DEVICE static MomentShift of(float largest) {
    const float factor = moment_factor(largest);
    if (factor == 0.0f) return {1.0f, 0.0f};
    if (largest < kLargeMoment) return {1.0f, 1.0f / (factor * (1.0f / kE4m3AsFp32))};
    return {kE4m3AsFp32, 1.0f / factor};
  }
  OCTET_HOST_DEVICE float operator()(float x) const { return x * first * inverse; }
};

// A step of an element whose moments are codes. Every operation is rounded once and products go into fused additions, so
// that there is nothing for a compiler to contract: CPU and GPU have the same bits.
struct SmallMomentStep {
  float m_gain;             // clip * (1 - beta1)
  float root_gain;          // clip * sqrt(1 - beta2)
  float m_kept, root_kept;  // of the block: factor * beta1, factor * sqrt(beta2)
  float inverse_root, epsilon, step_size, keep;

  // Keeps v away from 0: far below what epsilon hides, and enough for quick square roots on the GPU.
  static constexpr float kSmallestSquare = 0x1p-100f;

  struct Exact {
    OCTET_HOST_DEVICE static float root(float x) { return std::sqrt(x); }
    OCTET_HOST_DEVICE static float inverse(float x) { return 1.0f / x; }
  };
  // The new weight. m and root come in as the values of their codes and leave as the new moments.
  template <class Math = Exact>
  OCTET_HOST_DEVICE float operator()(float w, float gradient, float& m, float& root) const {
    m = std::fma(m, m_kept, gradient * m_gain);
    const float old = root * root_kept, fresh = gradient * root_gain;
    root = Math::root(std::fma(fresh, fresh, std::fma(old, old, kSmallestSquare)));
    const float update = m * Math::inverse(std::fma(root, inverse_root, epsilon));
    return std::fma(-step_size, update, w * keep);
  }
};

}  // namespace octet
