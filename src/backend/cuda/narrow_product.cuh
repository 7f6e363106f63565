#pragma once

#include <cooperative_groups.h>

#include "backend/cuda/attention_mma.cuh"
#include "backend/cuda/cuda_ops.h"
#include "backend/op_checks.h"

// What the fast kernels of both narrow products share. They stream FP8 codes once, at the speed of the memory, turn them
// into bf16 in registers and multiply them on the tensor cores.
//
// A block computes a tile of the result. The reduction is split between the blocks of a cluster, so that there are
// enough blocks, and each of them reads only a part of the small operand. At the end the blocks add their sums through
// distributed shared memory, in fixed order. No sums go through global memory.

namespace octet::device {

constexpr int kNarrowThreads = 256, kNarrowWarps = kNarrowThreads / 32;
constexpr int kNarrowWarpRows = 32;                   // of the result, per warp: two fragments of 16
constexpr int kNarrowStep = 128;                      // of the reduction, per stage of the pipeline
constexpr int kNarrowColumnBytes = kNarrowStep * 16;  // eight columns of the small operand in a stage

// How the warps of a block and the blocks of a cluster share the work.
struct NarrowSplit {
  int tiles = 1;          // of eight columns of the result, per warp
  int column_groups = 1;  // of warps, side by side along the columns of the result
  int depth_groups = 1;   // of warps that take turns along the reduction
  int cluster = 1;        // blocks along the reduction

  __host__ __device__ int row_groups() const { return kNarrowWarps / (column_groups * depth_groups); }
  __host__ __device__ int rows() const { return kNarrowWarpRows * row_groups(); }  // of the result, per block
  __host__ __device__ int all_tiles() const { return tiles * column_groups; }
  __host__ __device__ int columns() const { return 8 * all_tiles(); }
};

// Stages of the pipeline. They fill the shared memory of a multiprocessor.
constexpr int narrow_stages(int tiles) {
  return tiles <= 2 ? 5 : tiles <= 8 ? 4 : 3;
}

// The place of this warp among the groups.
struct NarrowWarp {
  int row_group, column_group, depth_group;
  int g, t;  // lane = 4 * g + t, as in the fragments of the tensor cores

  __device__ explicit NarrowWarp(const NarrowSplit& split)
      : row_group(warp_id() / (split.column_groups * split.depth_groups)),
        column_group(warp_id() % split.column_groups),
        depth_group(warp_id() / split.column_groups % split.depth_groups),
        g(lane_id() / 4),
        t(lane_id() % 4) {}
};

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

// The products above see NaN and Inf as finite numbers. Whether one occurred is told by the largest magnitude, which
// the four lanes of a row of fragments share here. Their sums are then NaN.
__device__ __forceinline__ bool saw_not_finite(uint32_t largest, const CodeFormat& format) {
  uint32_t single = max(largest & 0xFFFFu, largest >> 16);
  single = max(single, __shfl_xor_sync(0xFFFFFFFFu, single, 1));
  single = max(single, __shfl_xor_sync(0xFFFFFFFFu, single, 2));
  return single >= format.not_finite;
}

template <int tiles>
using NarrowSums = float[2][tiles][4];

template <int tiles>
__device__ __forceinline__ void spoil_rows(NarrowSums<tiles>& sums, const uint32_t (&largest)[2][2],
                                           const CodeFormat& format) {
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!saw_not_finite(largest[m][half], format)) continue;
#pragma unroll
      for (int n = 0; n < tiles; ++n) {
        sums[m][n][2 * half] = sums[m][n][2 * half + 1] = __uint_as_float(0x7FC00000u);
      }
    }
  }
}

// ---- the small operand ----

// Queues the copy of eight neighbouring bf16, of which the first `count` exist (none if it is not positive).
__device__ __forceinline__ void copy_eight(uint8_t* to, const Bf16* from, int count, bool vectors,
                                           const Bf16* anywhere) {
  if (vectors) {
    copy_async16(to, count > 0 ? from : anywhere, count > 0);
  } else {
    const Pack8<Bf16> values = count > 0 ? load_some(from, count) : Pack8<Bf16>::zero();
    *reinterpret_cast<uint4*>(to) = values.raw;
  }
}

// ---- the pipeline ----

// Runs load(stage, step) ahead of compute(stage), for all steps of the reduction.
template <int stages, class Load, class Compute>
__device__ __forceinline__ void narrow_pipeline(int steps, const Load& load, const Compute& compute) {
#pragma unroll
  for (int i = 0; i < stages - 1; ++i) {
    if (i < steps) load(i, i);
    copy_async_commit();
  }
  int stage = 0, free_stage = stages - 1;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    copy_async_wait<stages - 2>();
    __syncthreads();  // the stage is there, and all warps have left the one that is filled next
    if (step + stages - 1 < steps) load(free_stage, step + stages - 1);
    copy_async_commit();
    compute(stage);
    stage = stage + 1 < stages ? stage + 1 : 0;
    free_stage = free_stage + 1 < stages ? free_stage + 1 : 0;
  }
  copy_async_wait_all();
  __syncthreads();
}

// The sum of four neighbouring sums over the groups of warps and the blocks of the cluster, in this order.
__device__ __forceinline__ float4 sum_of_parts(cooperative_groups::cluster_group& cluster, float* sums,
                                               int place, int group_size, const NarrowSplit& split) {
  float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
  for (int block = 0; block < split.cluster; ++block) {
    const float* part = cluster.map_shared_rank(sums, static_cast<unsigned>(block)) + place;
    for (int group = 0; group < split.depth_groups; ++group) {
      const float4 values = *reinterpret_cast<const float4*>(part + group * group_size);
      total.x += values.x, total.y += values.y, total.z += values.z, total.w += values.w;
    }
  }
  return total;
}

// ---- arguments ----

struct NarrowArgs {
  const uint8_t* codes;  // x
  int64_t codes_stride;
  const Bf16* dense;  // w or u
  int64_t dense_stride;
  bool dense_vectors;  // eight neighbours can be copied at once
  void* result;        // u in bf16 or g in fp32
  int64_t result_stride;
  bool result_vectors;  // four neighbours can be stored at once
  int64_t rows;         // N
  int depth, rank;      // D, R
  float alpha;
  const float* scale;
  CodeFormat format;
  NarrowSplit split;
};

// u = x w. Defined in narrow_product_depth.cu.
void launch_narrow_product(CudaOps& ops, const NarrowArgs& args, bool transpose_w);
// g [+]= x^T u. Defined in narrow_product_rows.cu.
void launch_narrow_product_over_rows(CudaOps& ops, const NarrowArgs& args, bool transpose_g, bool accumulate);

// Calls fn.operator()<tiles>().
template <class Function>
void with_tiles(int tiles, const Function& fn) {
  switch (tiles) {
    case 1:
      return fn.template operator()<1>();
    case 2:
      return fn.template operator()<2>();
    case 4:
      return fn.template operator()<4>();
    case 6:
      return fn.template operator()<6>();
    case 8:
      return fn.template operator()<8>();
    default:
      return fn.template operator()<12>();
  }
}

// Launches blocks for all `tiles_of_rows` tiles, a cluster for each.
template <class... Parameters, class... Arguments>
void launch_clusters(CudaOps& ops, const char* op, void (*kernel)(Parameters...), int64_t tiles_of_rows,
                     int cluster, int64_t shared_bytes, const Arguments&... arguments) {
  const auto bytes = narrow<int>(shared_bytes);
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), op);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(narrow<unsigned>(tiles_of_rows * cluster));
  config.blockDim = dim3(kNarrowThreads);
  config.dynamicSmemBytes = static_cast<size_t>(bytes);
  config.stream = ops.stream();
  config.attrs = &attribute;
  config.numAttrs = 1;
  cuda_check(cudaLaunchKernelEx(&config, kernel, arguments...), op);
}

}  // namespace octet::device
