#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <string_view>

#include "base/error.h"
#include "tensor/tensor.h"

namespace octet::cpu {

inline float load(float x) {
  return x;
}
inline float load(Bf16 x) {
  return to_float(x);
}

template <class T>
T store(float x);
template <>
inline float store<float>(float x) {
  return x;
}
template <>
inline Bf16 store<Bf16>(float x) {
  return to_bf16(x);
}

// Calls fn(T{}) with the C++ type of a real dtype.
template <class Function>
void dispatch_real(std::string_view op, DType dtype, const Function& fn) {
  if (dtype == DType::F32) return fn(float{});
  if (dtype == DType::BF16) return fn(Bf16{});
  fail("[{}] the dtype is {}, expected fp32 or bf16", op, name_of(dtype));
}

inline void require_shape(std::string_view op, std::string_view what, const Tensor& x,
                          const Shape& expected) {
  require(static_cast<bool>(x) || expected.numel() == 0, "[{}] {} is absent, expected {}", op, what,
          expected.to_string());
  require(x.shape == expected, "[{}] {} has the shape {}, expected {}", op, what, x.shape.to_string(),
          expected.to_string());
}

// `View` is Tensor or Matrix.
template <class View>
void require_dtype(std::string_view op, std::string_view what, const View& x, DType expected) {
  require(x.dtype == expected, "[{}] {} is {}, expected {}", op, what, name_of(x.dtype), name_of(expected));
}

template <class View>
void require_real(std::string_view op, std::string_view what, const View& x) {
  require(x.dtype == DType::F32 || x.dtype == DType::BF16, "[{}] {} is {}, expected fp32 or bf16", op, what,
          name_of(x.dtype));
}

// Sum of f(i) over [0, count) in interleaved lanes: a fixed order that vectorises and keeps rounding small. A double
// Sum also keeps terms that are too small to change a float.
constexpr int64_t kLanes = 16;
template <class Sum = float, class Function>
inline Sum lane_sum(int64_t count, const Function& f) {
  Sum lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += static_cast<Sum>(f(i + lane));
  }
  for (int64_t lane = 0; i < count; ++i, ++lane) lanes[lane] += static_cast<Sum>(f(i));
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

// The largest of x[0, count); NaN is skipped, -Inf if there is none. With vectors of its own: compilers do not vectorise
// comparisons of floats in lanes.
template <class T>
inline float lane_max(const T* x, int64_t count) {
  using Vector = float __attribute__((vector_size(16)));
  constexpr int64_t kWidth = 4, kVectors = kLanes / kWidth;
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  Vector best[kVectors];
  for (Vector& vector : best) vector = Vector{kNone, kNone, kNone, kNone};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    float values[kLanes];
    for (int64_t lane = 0; lane < kLanes; ++lane) values[lane] = load(x[i + lane]);
    for (int64_t v = 0; v < kVectors; ++v) {
      Vector next;
      std::memcpy(&next, values + v * kWidth, sizeof next);
      best[v] = next > best[v] ? next : best[v];
    }
  }
  float largest = kNone;
  const auto take = [&](float value) { largest = value > largest ? value : largest; };
  for (; i < count; ++i) take(load(x[i]));
  for (const Vector& vector : best) {
    for (int64_t lane = 0; lane < kWidth; ++lane) take(vector[lane]);
  }
  return largest;
}

}  // namespace octet::cpu
