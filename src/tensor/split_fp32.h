#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/host_device.h"

namespace octet {

// Weights in bf16 with a remainder: more bits than products read, for the optimizer. The bf16 is the stored number
// rounded to nearest, so products can read it directly. Only this header knows the format. "Wide bits" are those of an
// fp32 number. All arithmetic is on magnitudes, so it is the same for both signs.

enum class RemainderKind : uint8_t {
  None,     // the weight is bf16 only
  Compact,  // 4 bits per weight: 20 bits in all
  Exact,    // 16 bits per weight: all bits of fp32
};

// ---- exact: u16, in the shape of the weight ----
//
// The remainder is what was rounded off, as a signed number: fp32 bits = (bf16 bits << 16) + int16(remainder).

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

// ---- compact: u8 (rows, ceil(cols / 2)), a nibble per weight ----
//
// Column 2k is in the low half of byte k of its row, column 2k + 1 in the high half; behind an odd last column there
// is 0. A compact number has the upper 20 of the wide bits, and zeros below them. Its nibble is a signed number from
// -8 to 7: wide bits = (bf16 bits << 16) + (nibble << 12).

constexpr uint32_t kCompactStep = 0x1000;  // in wide bits
constexpr uint32_t kCompactMask = ~(kCompactStep - 1);
// The largest compact number whose bf16 is finite. From here on (with Inf and NaN), numbers are only cut off, never
// rounded up: no finite weight becomes Inf that would not as an exact one, and NaN stays NaN.
constexpr uint32_t kCompactLargest = 0x7F7F7000;

// The sum's upper 20 bits are a compact number: x itself, or the next one if `below` (less than kCompactStep) carries.
OCTET_HOST_DEVICE constexpr uint32_t compact_sum(uint32_t wide_bits, uint32_t below) {
  return wide_bits + ((wide_bits & 0x7FFFFFFFu) < kCompactLargest ? below : 0);
}
OCTET_HOST_DEVICE constexpr uint32_t compact_nearest(uint32_t wide_bits) {
  return compact_sum(wide_bits, kCompactStep / 2) & kCompactMask;
}
// The nibble of a compact number, or of compact_sum: its lower bits do not matter, and split_high ignores them as well.
OCTET_HOST_DEVICE constexpr uint32_t compact_nibble(uint32_t compact_bits) {
  return compact_bits >> 12 & 0xFu;
}
OCTET_HOST_DEVICE constexpr uint32_t join_nibble(uint32_t rounded_bits, uint32_t nibble) {
  return rounded_bits + ((nibble ^ 8u) << 12) - kSplitHalf;
}

constexpr int64_t compact_row_bytes(int64_t cols) {
  return (cols + 1) / 2;
}
OCTET_HOST_DEVICE constexpr uint32_t nibble_of(uint8_t pair, int64_t col) {
  return uint32_t{pair} >> (col % 2 * 4) & 0xFu;
}
OCTET_HOST_DEVICE constexpr uint8_t pair_of_nibbles(uint32_t even, uint32_t odd) {
  return static_cast<uint8_t>(even | odd << 4);
}

// ---- whole tensors on the host, in rows of `cols` ----

// Bytes of the remainders of a row.
int64_t remainder_row_bytes(RemainderKind kind, int64_t cols);
// Rounds to nearest. `remainder` holds remainder_row_bytes per row.
void split_weights(std::span<const float> values, int64_t cols, RemainderKind kind, uint16_t* high,
                   std::byte* remainder);
// Values as bf16 holds them become those of bf16 and remainder.
void add_remainders(std::span<float> values, int64_t cols, RemainderKind kind, const std::byte* remainder);

}  // namespace octet
