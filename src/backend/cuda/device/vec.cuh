#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace octet::device {

using Bf16 = __nv_bfloat16;

__device__ __forceinline__ float to_float(float x) {
  return x;
}
__device__ __forceinline__ float to_float(Bf16 x) {
  return __bfloat162float(x);
}

template <class T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ Bf16 from_float<Bf16>(float x) {
  return __float2bfloat16_rn(x);
}

// 16 bytes in one store. From an assignment of a vector made of single words, the compiler makes four stores of four
// bytes, each to a part of every sector.
__device__ __forceinline__ void store16(void* to, uint4 value) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "r"(value.x),
               "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}

// Eight neighbouring elements, as in memory: 16 bytes of bf16 or 32 of fp32.
template <class T>
struct Pack8;

template <>
struct Pack8<Bf16> {
  uint4 raw;
  __device__ __forceinline__ static Pack8 zero() { return {make_uint4(0, 0, 0, 0)}; }
  __device__ __forceinline__ static Pack8 load(const Bf16* from) {
    return {*reinterpret_cast<const uint4*>(from)};
  }
  __device__ __forceinline__ void store(Bf16* to) const { store16(to, raw); }
  // The upper and the lower half of a word, widened.
  __device__ __forceinline__ void unpack(float (&x)[8]) const {
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[2 * i] = __uint_as_float(words[i] << 16);
      x[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
    }
  }
  __device__ __forceinline__ static Pack8 pack(const float (&x)[8]) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
      words[i] = *reinterpret_cast<const uint32_t*>(&pair);
    }
    return {make_uint4(words[0], words[1], words[2], words[3])};
  }
  // Element `j`, a compile-time constant once the loop around it is unrolled.
  __device__ __forceinline__ float at(int j) const {
    const uint32_t word = j < 2 ? raw.x : j < 4 ? raw.y : j < 6 ? raw.z : raw.w;
    return __uint_as_float(j % 2 ? word & 0xFFFF0000u : word << 16);
  }
  // Unlike unpack and pack these keep the bits of NaN.
  __device__ __forceinline__ Bf16 element(int j) const {
    const uint32_t word = j < 2 ? raw.x : j < 4 ? raw.y : j < 6 ? raw.z : raw.w;
    return __ushort_as_bfloat16(static_cast<unsigned short>(j % 2 ? word >> 16 : word & 0xFFFFu));
  }
  __device__ __forceinline__ static Pack8 of(const Bf16 (&x)[8]) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      words[i] = static_cast<uint32_t>(__bfloat16_as_ushort(x[2 * i])) |
                 static_cast<uint32_t>(__bfloat16_as_ushort(x[2 * i + 1])) << 16;
    }
    return {make_uint4(words[0], words[1], words[2], words[3])};
  }
};

template <>
struct Pack8<float> {
  float4 low, high;
  __device__ __forceinline__ static Pack8 zero() {
    return {make_float4(0, 0, 0, 0), make_float4(0, 0, 0, 0)};
  }
  __device__ __forceinline__ static Pack8 load(const float* from) {
    return {reinterpret_cast<const float4*>(from)[0], reinterpret_cast<const float4*>(from)[1]};
  }
  __device__ __forceinline__ void store(float* to) const {
    store16(to, make_uint4(__float_as_uint(low.x), __float_as_uint(low.y), __float_as_uint(low.z),
                           __float_as_uint(low.w)));
    store16(to + 4, make_uint4(__float_as_uint(high.x), __float_as_uint(high.y), __float_as_uint(high.z),
                               __float_as_uint(high.w)));
  }
  __device__ __forceinline__ void unpack(float (&x)[8]) const {
    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
    x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
  }
  __device__ __forceinline__ static Pack8 pack(const float (&x)[8]) {
    return {make_float4(x[0], x[1], x[2], x[3]), make_float4(x[4], x[5], x[6], x[7])};
  }
  __device__ __forceinline__ float at(int j) const {
    const float4 half = j < 4 ? low : high;
    const int i = j % 4;
    return i == 0 ? half.x : i == 1 ? half.y : i == 2 ? half.z : half.w;
  }
  __device__ __forceinline__ float element(int j) const { return at(j); }
  __device__ __forceinline__ static Pack8 of(const float (&x)[8]) { return pack(x); }
};

// Loads up to `count` of eight elements one by one, for rows that are not a multiple of eight long.
template <class T>
__device__ inline Pack8<T> load_some(const T* from, int64_t count) {
  T elements[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) elements[j] = j < count ? from[j] : from_float<T>(0.0f);
  return Pack8<T>::of(elements);
}

template <class T>
__device__ inline void store_some(T* to, const Pack8<T>& pack, int64_t count) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    if (j < count) to[j] = pack.element(j);
  }
}

// Elements from `count` on become zero.
template <class T>
__device__ inline Pack8<T> first_of(const Pack8<T>& pack, int64_t count) {
  T elements[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) elements[j] = j < count ? pack.element(j) : from_float<T>(0.0f);
  return Pack8<T>::of(elements);
}

// One of the two, chosen at compile time: rows whose length is a multiple of eight use whole vectors.
template <bool vector, class T>
__device__ __forceinline__ Pack8<T> load8(const T* from, int64_t count) {
  if constexpr (vector) return Pack8<T>::load(from);
  return load_some(from, count);
}
template <bool vector, class T>
__device__ __forceinline__ void store8(T* to, const Pack8<T>& pack, int64_t count) {
  if constexpr (vector) {
    pack.store(to);
  } else {
    store_some(to, pack, count);
  }
}

// One instruction each, good to about 2 in 2^23; exp2_approx overflows to Inf and underflows to 0, and the inverse of
// Inf is 0.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float inverse_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
constexpr float kLog2E = 1.4426950408889634f;

template <class T>
__device__ __forceinline__ T warp_sum(T x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, offset);
  return x;
}

}  // namespace octet::device
