#pragma once

#include <bit>
#include <cstdint>

#include "base/host_device.h"

namespace octet {

// Exact weights: an fp32 number is stored as a bf16 plus a 16-bit remainder. The bf16 is the number rounded to
// nearest, so products can read it directly. The remainder is what was rounded off, as a signed number:
//   fp32 bits = (bf16 bits << 16) + int16(remainder).
// Only this header knows the format. "Wide bits" are those of an fp32 number.

constexpr uint32_t kSplitHalf = 0x8000;  // half a step of the bf16, in wide bits

OCTET_HOST_DEVICE constexpr uint16_t split_high(uint32_t wide_bits) {
  return static_cast<uint16_t>((wide_bits + kSplitHalf) >> 16);
}
OCTET_HOST_DEVICE constexpr uint16_t split_low(uint32_t wide_bits) {
  return static_cast<uint16_t>(wide_bits);
}
// `rounded_bits` are the wide bits of the bf16: its own 16 above 16 zeros.
OCTET_HOST_DEVICE constexpr uint32_t join_bits(uint32_t rounded_bits, uint16_t low) {
  return rounded_bits + static_cast<uint32_t>(static_cast<int32_t>(static_cast<int16_t>(low)));
}
constexpr float join_fp32(uint16_t high, uint16_t low) {
  return std::bit_cast<float>(join_bits(uint32_t{high} << 16, low));
}

}  // namespace octet
