#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "tensor/dtype.h"

namespace octet {

// The small floating-point formats, bit by bit. Every conversion from fp32 rounds to nearest even.

// bfloat16: the upper half of an fp32. NaN stays NaN (made quiet), overflow becomes Inf as in fp32.
struct Bf16 {
  uint16_t bits = 0;
};

constexpr float to_float(Bf16 x) {
  return std::bit_cast<float>(uint32_t{x.bits} << 16);
}

constexpr Bf16 to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = bits + 0x7FFF + ((bits >> 16) & 1);
  const uint32_t nan = (bits >> 16) | 0x40;
  const bool is_nan = (bits & 0x7FFFFFFF) > 0x7F800000;
  return {static_cast<uint16_t>(is_nan ? nan : rounded >> 16)};
}

// The value of x rounded to bf16.
constexpr float round_to_bf16(float x) {
  return to_float(to_bf16(x));
}

constexpr float kE4M3Max = 448.0f;
constexpr float kE5M2Max = 57344.0f;

// The largest finite value of an FP8 format.
constexpr float fp8_max(DType format) {
  return format == DType::E5M2 ? kE5M2Max : kE4M3Max;
}

namespace detail {

// One routine for both formats: `mantissa` explicit bits, smallest normal exponent `min_exponent`, and the code
// of the largest finite value. Without branches, so that loops over it vectorise.
template <int mantissa, int min_exponent, uint8_t max_code>
inline uint8_t encode_fp8(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = (bits >> 24) & 0x80;
  const uint32_t magnitude = bits & 0x7FFFFFFF;

  constexpr int shift = 23 - mantissa;
  constexpr uint32_t min_normal = static_cast<uint32_t>(127 + min_exponent) << 23;
  const uint32_t rounded = magnitude + ((1u << (shift - 1)) - 1) + ((magnitude >> shift) & 1);
  const uint32_t normal = (rounded - min_normal + (1u << 23)) >> shift;
  // Below the normal range the codes are multiples of 2^(min_exponent - mantissa). Adding 1.5 * 2^23 times that makes
  // the fp32 addition round to nearest even.
  constexpr float unit = std::bit_cast<float>(static_cast<uint32_t>(127 + min_exponent - mantissa) << 23);
  constexpr float magic = unit * 0x1.8p23f;
  const float sum = std::bit_cast<float>(magnitude) + magic;
  const uint32_t subnormal = std::bit_cast<uint32_t>(sum) - std::bit_cast<uint32_t>(magic);

  uint32_t code = magnitude >= min_normal ? normal : subnormal;
  code = code < max_code ? code : uint32_t{max_code};
  return static_cast<uint8_t>(magnitude > 0x7F800000 ? 0x7Fu : sign | code);
}

}  // namespace detail

// E4M3 (OCP "fn": no infinities, NaN = 0x7F and 0xFF) and E5M2 (IEEE-like). Saturating: finite values and
// infinities beyond the largest finite value become that value with their sign; NaN becomes 0x7F whatever its sign;
// -0 stays -0; subnormals are exact. These are the semantics of the GPU's satfinite conversions.
inline uint8_t to_e4m3(float x) {
  return detail::encode_fp8<3, -6, 0x7E>(x);
}
inline uint8_t to_e5m2(float x) {
  return detail::encode_fp8<2, -14, 0x7B>(x);
}
float from_e4m3(uint8_t code);
float from_e5m2(uint8_t code);

inline uint8_t to_fp8(float x, DType format) {
  return format == DType::E5M2 ? to_e5m2(x) : to_e4m3(x);
}
inline float from_fp8(uint8_t code, DType format) {
  return format == DType::E5M2 ? from_e5m2(code) : from_e4m3(code);
}
// All 256 values of a format, for conversions in bulk.
const float* fp8_values(DType format);

// E8M0: a power of two 2^(code - 127) used as a block scale; 0xFF is NaN. There is no zero and no sign.
constexpr float from_e8m0(uint8_t code) {
  if (code == 0xFF) return std::numeric_limits<float>::quiet_NaN();
  return code == 0 ? 0x1p-127f : std::bit_cast<float>(uint32_t{code} << 23);
}
// The smallest E8M0 value that is not below x (x > 0 and finite); clamped to [2^-127, 2^127].
uint8_t to_e8m0_round_up(float x);

// Whether every value of host bytes (fp32 or bf16; other types count as finite) is finite.
bool all_finite(std::span<const std::byte> bytes, DType dtype);

}  // namespace octet
