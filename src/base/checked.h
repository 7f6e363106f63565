#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <utility>

#include "base/error.h"

namespace octet {

// Sizes come from files and flags: arithmetic on them fails loudly instead of wrapping.
inline int64_t checked_mul(int64_t a, int64_t b) {
  int64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result)) fail("[size] {} * {} does not fit in 64 bits", a, b);
  return result;
}

inline int64_t checked_add(int64_t a, int64_t b) {
  int64_t result = 0;
  if (__builtin_add_overflow(a, b, &result)) fail("[size] {} + {} does not fit in 64 bits", a, b);
  return result;
}

template <std::integral To, std::integral From>
To narrow(From value) {
  if (!std::in_range<To>(value)) fail("[size] {} does not fit in {} bytes", value, sizeof(To));
  return static_cast<To>(value);
}

constexpr int64_t div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t value, int64_t multiple) { return div_up(value, multiple) * multiple; }

}  // namespace octet
