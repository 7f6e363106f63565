#pragma once

#include <cooperative_groups.h>

#include "backend/cuda/attention_mma.cuh"
#include "backend/cuda/cuda_ops.h"
#include "backend/op_checks.h"

// What the fast kernels of both narrow products share. They stream FP8 codes once, at the speed of the memory, turn them
// into bf16 in registers and multiply them on the tensor cores.
//
// A block computes a tile of the result. The reduction is split between the blocks of a cluster, so that there are
// enough blocks. At the end the blocks add their sums through distributed shared memory, in fixed order. No sums go
// through global memory.

namespace octet::device {

constexpr int kNarrowThreads = 256, kNarrowWarps = kNarrowThreads / 32;

// Codes are read once: they must not push the small operand out of the L1 cache.
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

// ---- codes to bf16 ----

// The bits of a code below the sign, moved into the exponent and mantissa of bf16, are its value times a power of two;
// so are denormal ones. Two codes are converted at a time, one in each half of a word.
struct CodeFormat {
  uint32_t left, right;  // shifts of a code in the low or the high byte of a half
  uint32_t mask;         // of the magnitude
  uint32_t factor;       // 2^120 or 2^112 in bf16, twice
  uint32_t not_finite;   // magnitudes from here on are Inf or NaN

  static constexpr CodeFormat of(bool e5m2) {
    return e5m2 ? CodeFormat{5, 3, 0x0FE00FE0u, 0x77807780u, 0x0F80u}
                : CodeFormat{4, 4, 0x07F007F0u, 0x7B807B80u, 0x07F0u};
  }
};

__device__ __forceinline__ uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

// `signs` has the sign bits in bits 15 and 31.
__device__ __forceinline__ uint32_t with_sign(uint32_t signs, uint32_t magnitudes, const CodeFormat& format) {
  return multiply_bf16x2((signs & 0x80008000u) | magnitudes, format.factor);
}

// Four codes of a word as two pairs of bf16.
struct CodePairs {
  uint32_t magnitudes[2];  // before the multiplication, to look for Inf and NaN
  uint32_t values[2];
};
// Bytes (0, 2) and (1, 3): the fewest instructions.
__device__ __forceinline__ CodePairs alternate_pairs(uint32_t codes, const CodeFormat& format) {
  CodePairs pairs;
  pairs.magnitudes[0] = (codes << format.left) & format.mask;
  pairs.magnitudes[1] = (codes >> format.right) & format.mask;
  pairs.values[0] = with_sign(codes << 8, pairs.magnitudes[0], format);
  pairs.values[1] = with_sign(codes, pairs.magnitudes[1], format);
  return pairs;
}
// Bytes (0, 1) and (2, 3).
__device__ __forceinline__ CodePairs neighbour_pairs(uint32_t codes, const CodeFormat& format) {
  CodePairs pairs;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t spread = __byte_perm(codes, 0u, i == 0 ? 0x1404 : 0x3424);
    pairs.magnitudes[i] = (spread >> format.right) & format.mask;
    pairs.values[i] = with_sign(spread, pairs.magnitudes[i], format);
  }
  return pairs;
}

// The products above see NaN and Inf as finite numbers. Whether one occurred in a warp is told by the largest magnitude.
// All sums of the warp are then NaN.
__device__ __forceinline__ bool warp_saw_not_finite(uint32_t largest, const CodeFormat& format) {
  return __any_sync(0xFFFFFFFFu, max(largest & 0xFFFFu, largest >> 16) >= format.not_finite);
}

template <int rows, int columns>
__device__ __forceinline__ void fill(float (&sums)[rows][columns][4], float value) {
#pragma unroll
  for (int m = 0; m < rows; ++m) {
#pragma unroll
    for (int n = 0; n < columns; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[m][n][i] = value;
    }
  }
}

// ---- results ----

// The sum of four neighbouring sums over the blocks of the cluster, in their order.
__device__ __forceinline__ float4 sum_over_cluster(cooperative_groups::cluster_group& cluster, float* sums,
                                                   int place, int parts) {
  float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
  for (int block = 0; block < parts; ++block) {
    const float4 values =
        *reinterpret_cast<const float4*>(cluster.map_shared_rank(sums, static_cast<unsigned>(block)) + place);
    total.x += values.x, total.y += values.y, total.z += values.z, total.w += values.w;
  }
  return total;
}

// The first `count` of four values.
__device__ __forceinline__ void store_quad(Bf16* to, float4 values, float factor, int count, bool vectors) {
  const uint2 rounded =
      make_uint2(pack(values.x * factor, values.y * factor), pack(values.z * factor, values.w * factor));
  if (vectors && count >= 4) {
    *reinterpret_cast<uint2*>(to) = rounded;
    return;
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const uint32_t word = j < 2 ? rounded.x : rounded.y;
    if (j < count)
      to[j] = __ushort_as_bfloat16(static_cast<unsigned short>(j % 2 ? word >> 16 : word & 0xFFFFu));
  }
}

// ---- arguments ----

struct NarrowArgs {
  const uint8_t* codes;  // x
  int64_t codes_stride;
  const Bf16* dense;  // w or u
  int64_t dense_stride;
  void* result;  // u in bf16 or g in fp32
  int64_t result_stride;
  bool result_vectors;  // four neighbours can be stored at once
  int64_t rows;         // N
  int depth, rank;      // D, R
  float alpha;
  const float* scale;
  CodeFormat format;
  int cluster;  // blocks along the reduction
};

// Columns of the result that a launch handles together: whole fragments of eight, as few as `rank` needs.
constexpr int narrow_tiles(int64_t rank) {
  return rank <= 8 ? 1 : rank <= 16 ? 2 : rank <= 32 ? 4 : rank <= 48 ? 6 : 8;
}

// u = x w. Defined in narrow_product_depth.cu.
void launch_narrow_product(CudaOps& ops, const NarrowArgs& args, bool transpose_w);
// g [+]= x^T u. Defined in narrow_product_rows.cu.
void launch_narrow_product_over_rows(CudaOps& ops, const NarrowArgs& args, bool transpose_g, bool accumulate);

// Calls fn.operator()<tiles>().
template <class Function>
void with_tiles(int64_t rank, const Function& fn) {
  switch (narrow_tiles(rank)) {
    case 1:
      return fn.template operator()<1>();
    case 2:
      return fn.template operator()<2>();
    case 4:
      return fn.template operator()<4>();
    case 6:
      return fn.template operator()<6>();
    default:
      return fn.template operator()<8>();
  }
}

// Blocks along a reduction of `steps` steps, for `tiles` tiles of the result: several per multiprocessor, so that loads
// and products of different blocks overlap.
inline int cluster_size(int64_t tiles, int64_t steps, int multiprocessors) {
  int cluster = 1;
  while (cluster < 8 && tiles * cluster < 3 * multiprocessors && steps >= 4 * cluster) cluster *= 2;
  return cluster;
}

template <class... Parameters, class... Arguments>
void launch_clusters(CudaOps& ops, const char* op, void (*kernel)(Parameters...), dim3 grid, int cluster,
                     int64_t shared_bytes, const Arguments&... arguments) {
  const auto bytes = narrow<int>(shared_bytes);
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), op);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(kNarrowThreads);
  config.dynamicSmemBytes = static_cast<size_t>(bytes);
  config.stream = ops.stream();
  config.attrs = &attribute;
  config.numAttrs = 1;
  cuda_check(cudaLaunchKernelEx(&config, kernel, arguments...), op);
}

}  // namespace octet::device
