#pragma once

#include <cuda_fp8.h>

#include <cstdint>

#include "backend/cuda/device/vec.cuh"
#include "ops/quantized.h"

namespace octet::device {

constexpr uint32_t kInfinityBits = 0x7F800000u;

__device__ __forceinline__ uint32_t magnitude_bits(float x) {
  return __float_as_uint(x) & 0x7FFFFFFFu;
}

// Two values to two codes, the first in the low byte: saturating, to nearest even.
template <bool e5m2>
__device__ __forceinline__ uint32_t encode2(float a, float b) {
  return __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, e5m2 ? __NV_E5M2 : __NV_E4M3);
}

__device__ inline uint8_t encode1(float x, bool e5m2) {
  const uint32_t code = e5m2 ? encode2<true>(x, 0.0f) : encode2<false>(x, 0.0f);
  return static_cast<uint8_t>(code);
}

// Four values to four codes in a word, the first in the lowest byte.
template <bool e5m2>
__device__ __forceinline__ uint32_t encode4(float a, float b, float c, float d) {
  return encode2<e5m2>(a, b) | encode2<e5m2>(c, d) << 16;
}

// Calls fn<e5m2>() so that the format is decided once for a whole tile.
template <class Function>
__device__ __forceinline__ void with_format(bool e5m2, const Function& fn) {
  if (e5m2) {
    fn.template operator()<true>();
  } else {
    fn.template operator()<false>();
  }
}

__device__ __forceinline__ float decode1(uint8_t code, bool e5m2) {
  const __half_raw half = __nv_cvt_fp8_to_halfraw(code, e5m2 ? __NV_E5M2 : __NV_E4M3);
  return __half2float(half);
}

// 16 or 8 codes that are read once. They must not push other operands out of the L1 cache.
__device__ __forceinline__ uint4 load_once(const uint8_t* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}
__device__ __forceinline__ uint2 load_once8(const uint8_t* from) {
  uint2 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v2.u32 {%0, %1}, [%2];"
               : "=r"(v.x), "=r"(v.y)
               : "l"(from));
  return v;
}

// scale_from_amax of ops/quantized.h.
__device__ inline float scale_from_amax(float amax, bool e5m2, int margin, float previous) {
  constexpr float kSmallest = 0x1p-126f, kLargest = 0x1p126f;
  if (!(amax > 0.0f) || !(amax <= 3.402823466e+38f)) return previous;
  const float target = (e5m2 ? 57344.0f : 448.0f) / static_cast<float>(uint64_t{1} << margin);
  const float scale = target / amax;
  return scale < kSmallest ? kSmallest : scale > kLargest ? kLargest : scale;
}

// block_factor of ops/quantized.h.
__device__ inline float block_factor(uint32_t amax_bits, bool e5m2, bool pow2) {
  if (amax_bits == 0 || amax_bits >= kInfinityBits) return 1.0f;
  const float exact = __uint_as_float(amax_bits) / (e5m2 ? 57344.0f : 448.0f);
  const float factor = exact < 0x1p-126f ? 0x1p-126f : exact;
  if (!pow2) return factor;
  return __uint_as_float((__float_as_uint(factor) + 0x7FFFFFu) & 0x7F800000u);
}

// The FP8 copies of a tensor with a scale per block.
struct BlockCopy {
  uint8_t* codes = nullptr;  // absent: not written
  void* scales = nullptr;
  bool e5m2 = false;
};
struct BlockTarget {
  BlockCopy rowwise, colwise;
  ScaleSlot* slot = nullptr;  // absent: the tensor has no blocks. Its amax is recorded
  Granularity granularity = Granularity::Row128;
  bool pow2 = false;
};

// The FP8 copies of a tensor with one scale that a kernel writes, in addition to its dense form or instead of it.
struct CastTarget {
  uint8_t* rowwise = nullptr;
  uint8_t* colwise = nullptr;
  ScaleSlot* slot = nullptr;
  bool row_e5m2 = false;
  bool col_e5m2 = false;
  bool record = false;     // the amax
  bool set_scale = false;  // set the scales from the amax of this tensor
  int margin = 0;
};

__device__ inline void set_scales(ScaleSlot* slot, const CastTarget& target, float amax) {
  slot->scale_rowwise = scale_from_amax(amax, target.row_e5m2, target.margin, slot->scale_rowwise);
  slot->scale_colwise = scale_from_amax(amax, target.col_e5m2, target.margin, slot->scale_colwise);
  slot->inverse_rowwise = 1.0f / slot->scale_rowwise;
  slot->inverse_colwise = 1.0f / slot->scale_colwise;
}

// op_amax of a slot is a running maximum over the blocks of an op: magnitude bits, which order NaN above Inf. It is
// zero between ops.
__device__ inline void add_amax(uint32_t amax, ScaleSlot* slot) {  // the thread does not wait for it
  atomicMax(&slot->op_amax, amax);
}
// One thread calls this when all blocks have added theirs.
__device__ inline void take_amax(const CastTarget& target) {
  ScaleSlot* slot = target.slot;
  const unsigned int total = atomicExch(&slot->op_amax, 0u);
  slot->amax_last = __uint_as_float(total);
  slot->amax = __uint_as_float(max(__float_as_uint(slot->amax), total));
  if (target.set_scale) set_scales(slot, target, __uint_as_float(total));
}

// Every thread of each of `blocks` blocks calls this once, last, with the largest value it saw. op_blocks counts the
// blocks that have called, so that no extra launch is needed.
__device__ inline void record_amax(uint32_t amax, const CastTarget& target, unsigned int blocks) {
  __shared__ uint32_t warp_amax[32];
  amax = __reduce_max_sync(0xFFFFFFFFu, amax);
  const int thread = static_cast<int>(threadIdx.x), warps = static_cast<int>(blockDim.x + 31) / 32;
  if (thread % 32 == 0) warp_amax[thread / 32] = amax;
  __syncthreads();
  if (thread != 0) return;
  for (int i = 1; i < warps; ++i) amax = max(amax, warp_amax[i]);

  add_amax(amax, target.slot);
  __threadfence();
  if (atomicAdd(&target.slot->op_blocks, 1u) != blocks - 1) return;
  __threadfence();
  target.slot->op_blocks = 0u;
  take_amax(target);
}

}  // namespace octet::device
