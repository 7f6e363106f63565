#pragma once

#include <bit>
#include <cstdint>

namespace octet::cpu {

// e^x for x up to 88, without branches, so that loops over it vectorise. Within 1.5 ulp. It is 0 below -87, just before results
// become subnormal, which processors compute slowly. NaN stays NaN. Above 88 the result has no meaning.
inline float fast_exp(float x) {
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
  const float power = std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) << 23) + 0x3F800000u);  // 2^n
  return x < -87.0f ? 0.0f : value * power;
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
