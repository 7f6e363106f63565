#pragma once

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/device/fp8.cuh"
#include "backend/cuda/device/mma.cuh"
#include "backend/op_checks.h"

// The common part of the fast kernels of both narrow products. They stream FP8 codes once, at the speed of the memory, turn
// them into bf16 in registers and multiply them on the tensor cores.
//
// A block computes a tile of the result. The reduction is split into parts for different blocks, so that all
// multiprocessors work. Their sums go to the workspace, and a second kernel adds them in fixed order. (Blocks of a
// cluster that add through distributed shared memory took 1.6 times as long.)

namespace octet::device {

constexpr int kNarrowThreads = 256, kNarrowWarps = kNarrowThreads / 32;

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

// The products above see NaN and Inf as finite numbers. Whether one occurred is told by the largest magnitudes.
__device__ __forceinline__ bool is_not_finite(uint32_t magnitudes, const CodeFormat& format) {
  return max(magnitudes & 0xFFFFu, magnitudes >> 16) >= format.not_finite;
}
__device__ __forceinline__ float quiet_nan() {
  return __uint_as_float(0x7FC00000u);
}

// ---- arguments ----

struct NarrowArgs {
  const uint8_t* codes;  // x
  int64_t codes_stride;
  const Bf16* dense;  // w or u
  int64_t dense_stride;
  float* sums;      // [part][row][column] of the result
  int64_t rows;     // N
  int depth, rank;  // D, R
  int parts;        // of the reduction
  CodeFormat format;
};

// How a product is cut up: the sums of `parts` parts have `rows` rows of `pitch` columns each.
struct NarrowSplit {
  int parts = 1;
  int64_t rows = 0, pitch = 0;
  int64_t elements() const { return parts * rows * pitch; }
};

// Fragments of eight columns that a warp of narrow_product has, as few as `rank` needs.
constexpr int narrow_tiles(int64_t rank) {
  return rank <= 8 ? 1 : rank <= 16 ? 2 : rank <= 32 ? 4 : rank <= 48 ? 6 : 8;
}

// u = x w, sums (N, ranks): narrow_product_depth.cu.
NarrowSplit split_narrow_product(int64_t rows, int64_t depth, int64_t rank, int64_t most_sums);
void launch_narrow_product(CudaOps& ops, const NarrowArgs& args, bool transpose_w);
// g = x^T u, sums (ranks, D): narrow_product_rows.cu.
NarrowSplit split_narrow_product_over_rows(int64_t rows, int64_t depth, int64_t rank, int64_t most_sums);
void launch_narrow_product_over_rows(CudaOps& ops, const NarrowArgs& args);

}  // namespace octet::device
