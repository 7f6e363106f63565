#pragma once

#include "backend/cuda/device/tile.cuh"

namespace octet::device {

using RowError = unsigned long long;  // of a signed number, as atomicAdd wants it

// The output of tile_kernel and block_tile_kernel.
template <class T>
struct TileOutput {
  int64_t rows = 0;
  int64_t cols = 0;                // of the op; each gives Op::kOutputs columns of the matrix
  int64_t width = 0;               // columns of the matrix
  T* dense = nullptr;              // absent: not stored
  CastTarget cast;                 // one scale for all
  BlockTarget blocks;              // instead of `cast`: a scale per block
  float* column_sums = nullptr;    // (gridDim.y, width): per block; absent if not needed
  RowError* row_errors = nullptr;  // (rows): see row_error; absent if not needed
};

// The error that rounding to FP8 adds to the sum of a row is counted in whole numbers of this share of the format's largest
// value, so that the order of additions does not matter. The sum of 16 threads has 31 bits, because each counts at most
// kMostRowError: enough for values that are 16 times too large for their scale.
constexpr float kRowErrorUnits = 0x1p22f, kMostRowError = 0x1p26f;
__host__ __device__ __forceinline__ float largest_code(bool e5m2) {
  return e5m2 ? 57344.0f : 448.0f;
}

// The error of eight values and their codes.
template <class T>
__device__ __forceinline__ int row_error(const Pack8<T>& values, uint2 codes, float scale, bool e5m2) {
  float error = 0.0f;
  with_format(e5m2, [&]<bool as_e5m2>() {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t word = i < 2 ? codes.x : codes.y;
      const auto pair = static_cast<__nv_fp8x2_storage_t>(i % 2 ? word >> 16 : word & 0xFFFFu);
      const float2 decoded =
          __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, as_e5m2 ? __NV_E5M2 : __NV_E4M3)));
      error += fmaf(-scale, values.at(2 * i), decoded.x) + fmaf(-scale, values.at(2 * i + 1), decoded.y);
    }
  });
  const float units = error * (kRowErrorUnits / largest_code(e5m2));
  return __float2int_rn(fminf(fmaxf(units, -kMostRowError), kMostRowError));
}

// The errors of the rows of a tile in shared memory, of 16 threads each. They are added up there: a sum over the 16 lanes
// of a row would make every warp diverge.
template <bool used>
struct RowErrors {};
template <>
struct RowErrors<true> {
  static constexpr int kGroups = 16, kPitch = kGroups + 4;  // so that lanes of a read have banks of their own
  static_assert(CodeTile::kThreads >= CodeTile::kSize);     // a thread adds up a row
  alignas(16) int errors[CodeTile::kSize][kPitch];

  // Columns outside the matrix keep their zeros. The block needs a barrier before add_to, and another one after it before
  // the next put.
  __device__ __forceinline__ void clear() {
    for (int i = static_cast<int>(threadIdx.x); i < CodeTile::kSize * kPitch; i += CodeTile::kThreads)
      errors[i / kPitch][i % kPitch] = 0;
    __syncthreads();
  }
  __device__ __forceinline__ void put(int row, int group, int error) { errors[row][group] = error; }
  __device__ __forceinline__ void add_to(RowError* rows, int64_t tile_row, int64_t row_count) const {
    const int row = static_cast<int>(threadIdx.x);
    if (row >= CodeTile::kSize || tile_row + row >= row_count) return;
    int total = 0;
#pragma unroll
    for (int i = 0; i < kGroups; i += 4) {
      const int4 four = *reinterpret_cast<const int4*>(&errors[row][i]);
      total += four.x + four.y + four.z + four.w;
    }
    atomicAdd(rows + tile_row + row, static_cast<RowError>(int64_t{total}));
  }
};

// Writes the sums over a block's rows to out.column_sums. `sums` are those of a thread's rows, in 8 columns of each
// output. They are added over the two rows of a warp, then over the warps, in fixed order. `scratch`: shared memory,
// (warps, columns), that no thread uses any more. `column_of(c, output)` is the matrix column of the tile's column c, or
// negative where there is none.
template <int outputs, class T, class ColumnOf>
__device__ __forceinline__ void write_column_sums(float* scratch, const float (&sums)[outputs][8],
                                                  const TileOutput<T>& out, const ColumnOf& column_of) {
  constexpr int kWarps = CodeTile::kThreads / 32;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
#pragma unroll
  for (int o = 0; o < outputs; ++o) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float total = sums[o][j] + __shfl_xor_sync(0xFFFFFFFFu, sums[o][j], 16);
      if (lane < 16) scratch[warp * CodeTile::kSize + 8 * lane + j] = total;
    }
    __syncthreads();
    const int64_t column = thread < CodeTile::kSize ? column_of(thread, o) : -1;
    if (column >= 0) {
      float total = 0.0f;
      for (int w = 0; w < kWarps; ++w) total += scratch[w * CodeTile::kSize + thread];
      out.column_sums[blockIdx.y * out.width + column] = total;
    }
    __syncthreads();
  }
}

// Computes nothing: the kernel itself casts what was loaded.
template <class T>
struct CastOp {
  using Type = T;
  static constexpr int kOutputs = 1;
  static constexpr int kAhead = 4;
  static constexpr bool kCopies = true;
  static constexpr bool kSums = true;
  static constexpr bool kBlocks = true;
  using Raw = Pack8<T>;
  const T* x;
  int width;

  __device__ CastOp at(int64_t row, int64_t col) const { return {x + row * width + col, width}; }
  template <bool vector>
  __device__ Raw load(int line, int64_t count) const {
    return load8<vector>(x + line * width, count);
  }
  __device__ int64_t column(int64_t col, int) const { return col; }
};

}  // namespace octet::device
