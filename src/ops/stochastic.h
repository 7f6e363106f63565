#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

#include "base/host_device.h"
#include "base/philox.h"
#include "tensor/dtype.h"
#include "tensor/split_fp32.h"

namespace octet {

// Stochastic rounding for values that the optimizer and Ops::shift_rows store in fewer bits than they compute with. A value
// is rounded up with a probability equal to its distance from the code below. So changes smaller than a step between codes
// are not lost: they add up on average. The noise of the optimizer is a function of (seed, stream of the parameter, step,
// place). A resumed run has the same noise, and so has every device.
//
// An element begins with random noise, and every step adds the same share of a turn to it (a Weyl sequence). In one step
// noise is as good as random. Over steps an element's noise is spread evenly, so the errors of a weight nearly cancel while
// its updates change slowly. Independent errors would add up like a random walk. Moments are different: what they are
// rounded from depends on how they were rounded before. With random gradients the mean of the roots is right to 1 % (there is
// a test). With a gradient that repeats itself exactly, moments were wrong by some percent in a simulation.

// Noise for eight neighbouring columns of a row; groups = ceil(cols / 8), and group = col / 8. Rows 2r and 2r + 1 share
// four words. Initial weights use the indices below 2^40 of the same streams (and more rounds).
constexpr int kRoundingRounds = 7;
struct RoundingBits {
  std::array<uint32_t, 2> words;

  OCTET_HOST_DEVICE static constexpr uint64_t index(int64_t row, int64_t groups, int64_t group) {
    return (uint64_t{1} << 40) + static_cast<uint64_t>(row / 2 * groups + group);
  }
  // The number that `step` adds to the words of step 0: the golden ratio, seen as a fraction of 2^32, for each step. Noise
  // begins with any of the four bytes, so its share of a turn is 0.618, 0.217, 0.475 or 0.723.
  OCTET_HOST_DEVICE static constexpr uint32_t turn(int64_t step) {
    return static_cast<uint32_t>(step) * 0x9E3779B9u;
  }
  OCTET_HOST_DEVICE static constexpr RoundingBits of(uint64_t seed, uint64_t stream, int64_t step,
                                                     int64_t row, int64_t groups, int64_t group) {
    const auto words = Philox(seed, stream).words<kRoundingRounds>(index(row, groups, group));
    const bool even = row % 2 == 0;  // no run-time index: a GPU has none for registers
    return {{(even ? words[0] : words[2]) + turn(step), (even ? words[1] : words[3]) + turn(step)}};
  }

  // 24 bits, uniform. Each of the eight begins with a different byte of the words and continues with the bytes below
  // it. Neighbours share bits, but not their leading ones: the first byte of one is at most the second byte of
  // another.
  OCTET_HOST_DEVICE constexpr uint32_t noise(int j) const {
    return std::rotl(words[static_cast<size_t>(j / 4)], 8 * (j % 4)) >> 8;
  }
  // For column `j` of the eight: 16 bits for the weight, 24 per moment. The three numbers of an element share no
  // leading 16 bits.
  OCTET_HOST_DEVICE constexpr uint32_t weight(int j) const { return noise(j) >> 8; }
  OCTET_HOST_DEVICE constexpr uint32_t m(int j) const { return noise(j ^ 4); }
  OCTET_HOST_DEVICE constexpr uint32_t root(int j) const { return noise(j ^ 2); }
};

// The noise of Ops::shift_rows, for eight columns of a row. It is the same in every call. That is harmless: what is rounded
// is the gradient of other tokens in every step, so its errors do not add up in one direction.
OCTET_HOST_DEVICE constexpr RoundingBits shift_noise(int64_t row, int64_t groups, int64_t group) {
  return RoundingBits::of(0x5348494654ull, 0, 0, row, groups, group);
}

// The bits of the bf16 above or below a finite x.
OCTET_HOST_DEVICE constexpr uint16_t to_bf16_stochastic(float x, uint32_t random16) {
  return static_cast<uint16_t>((std::bit_cast<uint32_t>(x) + random16) >> 16);
}

// The wide bits of the compact number (tensor/split_fp32.h) above or below x, from the upper 12 of the random bits. The
// low 12 bits of the result are not zero: split_high and compact_nibble do not read them.
OCTET_HOST_DEVICE constexpr uint32_t to_compact_stochastic(float x, uint32_t random16) {
  return compact_sum(std::bit_cast<uint32_t>(x), random16 >> 4);
}

// ---- AdamW's moments in 8 bits ----
//
// For the matrices of a model: blocks of 128 columns of a row (the last block of a row may be shorter) with one fp32
// factor per block, value = value of the code * factor. m is e4m3. v spans too many powers of two, so its square root
// is stored, in a code of its own: a root has no sign, and its rounding errors live on for about 1 / (1 - beta2) steps.
constexpr int64_t kMomentBlock = 128;

// The dtype of v next to that of m: the code of roots has no name of its own.
constexpr DType dtype_of_v(DType m) {
  return m == DType::E4M3 ? DType::U8 : m;
}

// e4m3 times 2^-120 is an fp32 number with the same exponent field; its mantissa is the first three of fp32's 23
// bits. Subnormal codes are fp32 subnormals. So in the bits of such an fp32 number, the code is above 20 bits that
// say how far the next code is. Adding 20 random bits and cutting the low 20 bits off rounds stochastically. The
// result is always one of the two codes next to the value.
constexpr float kE4m3AsFp32 = 0x1p-120f;

// The code above or below `shifted` (a value times kE4m3AsFp32), in the upper byte and without its sign. A value that
// is a code stays unchanged. The probability of the code above is exact: 24 bits of noise, 20 of value.
OCTET_HOST_DEVICE constexpr uint32_t e4m3_magnitude(float shifted, uint32_t noise24) {
  return (std::bit_cast<uint32_t>(shifted) << 4) + noise24;
}
OCTET_HOST_DEVICE constexpr uint8_t to_e4m3_stochastic(float shifted, uint32_t noise24) {
  const uint32_t sign = std::bit_cast<uint32_t>(shifted) & 0x80000000u;
  return static_cast<uint8_t>((e4m3_magnitude(shifted, noise24) | sign) >> 24);
}

// The code of a root spans 12 powers of two: 16 codes for each of the lower eight, 32 for each of the upper four, where
// the roots are that matter most. Values are 2 (code 0) to 8064 (code 255); there is no zero, which would turn the next
// update into m / epsilon. They begin at 2 because the bits of 2 as fp32, and of 2 * kE4m3AsFp32, suit the kernels of
// AdamW.
constexpr uint32_t kRootUpperCodes = 128;      // the first code with 5 bits of mantissa; those below have 4
constexpr uint32_t kRootUpperBits = 8u << 23;  // how far its fp32 bits are from those of code 0
constexpr float kRootSmallest = 2.0f, kRootLargest = 8064.0f;

OCTET_HOST_DEVICE constexpr float root_value(uint8_t code) {
  const uint32_t above =
      code < kRootUpperCodes ? uint32_t{code} << 19 : kRootUpperBits + ((code - kRootUpperCodes) << 18);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(kRootSmallest) + above);
}

// The code above or below `shifted` (a root's value times kE4m3AsFp32, no more than the largest), in the upper byte.
// Smaller values than the smallest become code 0. A value that is a code stays unchanged; the probability of the code
// above is exact.
constexpr float kRootFloor = kRootSmallest * kE4m3AsFp32;
OCTET_HOST_DEVICE constexpr uint32_t root_code_word(float shifted, uint32_t noise24) {
  const float root = shifted > kRootFloor ? shifted : kRootFloor;
  const uint32_t above = std::bit_cast<uint32_t>(root) - std::bit_cast<uint32_t>(kRootFloor);
  const uint32_t code =
      above < kRootUpperBits ? above << 5 : (kRootUpperCodes << 24) + ((above - kRootUpperBits) << 6);
  return code + noise24;
}
OCTET_HOST_DEVICE constexpr uint8_t to_root_code(float shifted, uint32_t noise24) {
  return static_cast<uint8_t>(root_code_word(shifted, noise24) >> 24);
}
constexpr uint32_t kNoiseToNearest = 1u << 23;  // instead of noise

// The factor of a block whose largest magnitude is `largest`. The largest stays just below the largest code, so that
// rounding never exceeds it. Blocks with only tiny values count as zero.
constexpr float kMomentDust = 0x1p-49f;
constexpr float kFactorOfLargest = 1.0f / (448.0f * (1.0f - 0x1p-20f));
constexpr float kRootFactorOfLargest = 1.0f / (kRootLargest * (1.0f - 0x1p-20f));
OCTET_HOST_DEVICE constexpr float factor_of(float largest, float factor_of_largest) {
  return largest > kMomentDust ? largest * factor_of_largest : 0.0f;
}
OCTET_HOST_DEVICE constexpr float moment_factor(float largest) {
  return factor_of(largest, kFactorOfLargest);
}
OCTET_HOST_DEVICE constexpr float root_factor(float largest) {
  return factor_of(largest, kRootFactorOfLargest);
}

// Scales the values of a block for e4m3_magnitude or root_code_word. For a large factor, the inverse times kE4m3AsFp32
// would be too small for fp32, so it is applied in two steps.
constexpr float kLargeMoment = 0x1p14f;
struct MomentShift {
  float first, inverse;

  OCTET_HOST_DEVICE static MomentShift of(float largest, float factor) {
    if (factor == 0.0f) return {1.0f, 0.0f};
    if (largest < kLargeMoment) return {1.0f, 1.0f / (factor * (1.0f / kE4m3AsFp32))};
    return {kE4m3AsFp32, 1.0f / factor};
  }
  OCTET_HOST_DEVICE static MomentShift of_m(float largest) { return of(largest, moment_factor(largest)); }
  OCTET_HOST_DEVICE static MomentShift of_root(float largest) { return of(largest, root_factor(largest)); }
  OCTET_HOST_DEVICE float operator()(float x) const { return x * first * inverse; }
};

// A step of an element whose moments are codes. Every operation is rounded once, and products are part of fused
// additions. So a compiler has nothing to contract, and CPU and GPU give the same bits.
struct SmallMomentStep {
  float m_gain;             // clip * (1 - beta1)
  float root_gain;          // clip * sqrt(1 - beta2)
  float m_kept, root_kept;  // of the block: factor * beta1, factor * sqrt(beta2)
  float inverse_root, epsilon, step_size, keep;

  // Keeps v away from 0. It is too small to matter next to epsilon, but enough for fast square roots on the GPU.
  static constexpr float kSmallestSquare = 0x1p-100f;

  struct Exact {
    OCTET_HOST_DEVICE static float root(float x) { return std::sqrt(x); }
    OCTET_HOST_DEVICE static float inverse(float x) { return 1.0f / x; }
  };
  // The new weight. On entry m and root are the values of their codes; on return they are the new moments.
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
