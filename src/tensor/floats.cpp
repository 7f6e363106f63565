#include "tensor/floats.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>

#include "base/parallel_for.h"

namespace octet {
namespace {

template <int mantissa, int bias>
float decode(uint8_t code) {
  const int exponent = (code & 0x7F) >> mantissa;
  const int fraction = code & ((1 << mantissa) - 1);
  const float value =
      exponent == 0 ? std::ldexp(static_cast<float>(fraction), 1 - bias - mantissa)
                    : std::ldexp(static_cast<float>(fraction + (1 << mantissa)), exponent - bias - mantissa);
  return code & 0x80 ? -value : value;
}

using ValueTable = std::array<float, 256>;

ValueTable make_table(float (*value_of)(uint8_t)) {
  ValueTable table;
  for (int code = 0; code < 256; ++code)
    table[static_cast<size_t>(code)] = value_of(static_cast<uint8_t>(code));
  return table;
}

}  // namespace

float from_e4m3(uint8_t code) {
  if ((code & 0x7F) == 0x7F) return std::numeric_limits<float>::quiet_NaN();
  return decode<3, 7>(code);
}

float from_e5m2(uint8_t code) {
  const float sign = code & 0x80 ? -1.0f : 1.0f;
  if ((code & 0x7F) == 0x7C) return sign * std::numeric_limits<float>::infinity();
  if ((code & 0x7F) > 0x7C) return std::numeric_limits<float>::quiet_NaN();
  return decode<2, 15>(code);
}

const float* fp8_values(DType format) {
  static const ValueTable e4m3 = make_table(from_e4m3);
  static const ValueTable e5m2 = make_table(from_e5m2);
  return (format == DType::E5M2 ? e5m2 : e4m3).data();
}

uint8_t to_e8m0_round_up(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t exponent = bits >> 23;
  const uint32_t fraction = bits & 0x7FFFFF;
  if (exponent == 0) return static_cast<uint8_t>(fraction > 0x400000 ? 1 : 0);
  return static_cast<uint8_t>(std::min<uint32_t>(exponent + (fraction != 0), 254));
}

namespace {

// A float is not finite when all bits of its exponent are set. Eight bytes at a time: `exponents` are the bits of the
// exponents of all floats in them. What is left of an exponent after inverting it is 0 only then, and adding `exponents`
// carries into the sign's bit in all other cases, never further.
bool all_finite_words(std::span<const std::byte> bytes, uint64_t exponents) {
  const uint64_t signs = exponents + (exponents & ~(exponents << 1));
  const auto carries = [&](const std::byte* at, size_t size) {
    uint64_t word = 0;
    std::memcpy(&word, at, size);
    return ((word & exponents) ^ exponents) + exponents;
  };
  constexpr int64_t kBlock = 1 << 18;  // bytes; a multiple of 8
  std::atomic<bool> finite = true;
  parallel_for(std::ssize(bytes), kBlock, [&](int64_t begin, int64_t end) {
    const std::span<const std::byte> block =
        bytes.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    uint64_t all = signs;
    size_t i = 0;
    for (; i + 8 <= block.size(); i += 8) all &= carries(block.data() + i, 8);
    if (i < block.size()) all &= carries(block.data() + i, block.size() - i);
    if ((all & signs) != signs) finite = false;
  });
  return finite;
}

}  // namespace

bool all_finite(std::span<const std::byte> bytes, DType dtype) {
  if (dtype == DType::F32) return all_finite_words(bytes, 0x7F8000007F800000u);
  if (dtype == DType::BF16) return all_finite_words(bytes, 0x7F807F807F807F80u);
  return true;
}

}  // namespace octet
