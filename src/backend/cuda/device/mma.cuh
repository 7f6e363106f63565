#pragma once

#include <cuda_bf16.h>

#include <cstdint>

// Products of a warp on the tensor cores.
//
// Fragments of mma.m16n8k16, for lane = 4 * g + t:
//   C (16 x 8, fp32):  c[0], c[1] = C[g][2t], C[g][2t + 1];  c[2], c[3] = the same of row g + 8
//   A (16 x 16, bf16): a[0] = A[g][2t..], a[1] = A[g + 8][2t..], a[2] = A[g][2t + 8..], a[3] = A[g + 8][2t + 8..]
//   B (16 x 8, bf16):  b[0] = B[2t..][g], b[1] = B[2t + 8..][g]
// So two neighbouring C fragments, rounded, are the A fragment of the next product.

namespace octet::device {

__device__ __forceinline__ int lane_id() {
  return static_cast<int>(threadIdx.x) % 32;
}
__device__ __forceinline__ int warp_id() {
  return static_cast<int>(threadIdx.x) / 32;
}

__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint32_t pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// The A fragment whose columns are those of two C fragments.
__device__ __forceinline__ void to_a(uint32_t (&a)[4], const float (&left)[4], const float (&right)[4]) {
  a[0] = pack(left[0], left[1]);
  a[1] = pack(left[2], left[3]);
  a[2] = pack(right[0], right[1]);
  a[3] = pack(right[2], right[3]);
}

template <int Tiles, int Columns>
__device__ __forceinline__ void clear(float (&c)[Tiles][Columns][4]) {
#pragma unroll
  for (int i = 0; i < Tiles; ++i) {
#pragma unroll
    for (int j = 0; j < Columns; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) c[i][j][e] = 0.0f;
    }
  }
}

}  // namespace octet::device
