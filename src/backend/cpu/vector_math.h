#pragma once

#include <bit>
#include <cstdint>

namespace octet::cpu {

// e^x without branches, so that loops over it vectorise. Within 1.5 ulp where the result is a normal number;
// gradual underflow to 0 below -87.3, Inf above 88.7, NaN stays NaN.
inline float fast_exp(float given) {
  // Clamped to +-104 by integer arithmetic: compilers turn it into one instruction, but float selections into
  // several.
  const uint32_t bits = std::bit_cast<uint32_t>(given), magnitude = bits & 0x7FFFFFFF;
  constexpr uint32_t kBound = std::bit_cast<uint32_t>(104.0f);
  const float x = std::bit_cast<float>((bits & 0x80000000) | (magnitude < kBound ? magnitude : kBound));
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
  // 2^n in two factors, because n goes from -150 to 150.
  const int32_t exponent = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kShift);
  const int32_t half = exponent >> 1;
  const float scale_a = std::bit_cast<float>((half + 127) << 23);
  const float scale_b = std::bit_cast<float>((exponent - half + 127) << 23);
  const float result = value * scale_a * scale_b;
  return magnitude > 0x7F800000 ? given : result;
}

// sigmoid(x), and 1 - sigmoid(x) without cancellation.
struct Sigmoid {
  float value, complement;
};
inline Sigmoid fast_sigmoid(float x) {
  const float e =
      fast_exp(std::bit_cast<float>(std::bit_cast<uint32_t>(x) | 0x80000000));  // e^-|x|: no overflow
  const float large = 1.0f / (1.0f + e), small = e * large;
  return x >= 0.0f ? Sigmoid{large, small} : Sigmoid{small, large};
}

}  // namespace octet::cpu
