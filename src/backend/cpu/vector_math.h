#pragma once

#include <bit>
#include <cstdint>

namespace octet::cpu {

// e^x without branches, so that loops over it vectorise. Within 1.5 ulp where the result is a normal number;
// gradual underflow to 0 below -87.3, Inf above 88.7, NaN stays NaN.
inline float fast_exp(float x) {
  constexpr float kLowest = -104.0f, kHighest = 89.0f;
  x = x < kLowest ? kLowest : x;
  x = x > kHighest ? kHighest : x;
  // x = n ln 2 + r with |r| <= ln 2 / 2: adding 1.5 * 2^23 leaves the rounded n in the low bits.
  constexpr float kShift = 0x1.8p23f;
  const float shifted = x * 0x1.715476p+0f + kShift;
  const float n = shifted - kShift;
  float r = x - n * 0x1.62e4p-1f;  // few bits, so that n * constant is exact
  r = r - n * 0x1.7f7d1cp-20f;
  // (e^r - 1 - r) / r^2, interpolated at Chebyshev nodes: 1e-8 of e^r.
  float p = 0x1.6d110ep-10f;
  p = p * r + 0x1.120b72p-7f;
  p = p * r + 0x1.55551ap-5f;
  p = p * r + 0x1.5554dcp-3f;
  p = p * r + 0.5f;
  const float value = 1.0f + (r + r * r * p);
  // 2^n in two factors, because n may be 128 or below -126.
  const int32_t exponent = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kShift);
  const int32_t half = exponent >> 1;
  const float scale_a = std::bit_cast<float>((half + 127) << 23);
  const float scale_b = std::bit_cast<float>((exponent - half + 127) << 23);
  return value * scale_a * scale_b;
}

}  // namespace octet::cpu
