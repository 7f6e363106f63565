#pragma once

#include "backend/cuda/device/tile.cuh"

// Casts a 128 x 128 tile that lies in the registers of a block of 256 threads to FP8 with a scale per block. Every block
// of every granularity, in both copies, lies inside one tile.
//
// A warp has 16 rows of the tile, 16 lanes have a row: a thread holds 8 columns of every second row, `kTileLines` packs.
// Elements outside the matrix are zero. They must not be stored, but they change no amax.

namespace octet::device {

constexpr int kTileSize = CodeTile::kSize;
constexpr int kTileWarps = CodeTile::kThreads / 32;
constexpr int kTileLines = kTileSize / kTileWarps / 2;
constexpr int kBands = kTileSize / 32;  // blocks of 32 rows in a tile

// Where a thread's elements lie in the matrix. Rows and columns are counted in int to save registers.
struct TilePlace {
  int row;      // of the thread's first pack; the others follow every second row
  int col;      // of its first column
  int lines;    // rows from there that are inside the matrix; may be negative
  int columns;  // from there that are inside the matrix; may be negative
  int width;    // of the matrix

  __device__ __forceinline__ bool line_inside(int i) const { return 2 * i < lines; }
  __device__ __forceinline__ int64_t start() const { return static_cast<int64_t>(row) * width + col; }
};

template <int outputs>
struct alignas(16) BlockShared {
  uint32_t words[outputs][CodeTile::kWords];
  uint32_t column_amax[outputs][kTileWarps][kTileSize];
  float inverse[outputs][kBands][kTileSize];  // of the columns' factors; Row128 uses the first band alone
};

// Sums over a thread's rows, in 8 columns per output. In shared memory, because registers are scarce; every thread uses
// its own place alone. Each column is summed in the order of its rows.
template <int outputs>
struct alignas(16) ThreadSums {
  float4 halves[outputs][2][CodeTile::kThreads];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int o = 0; o < outputs; ++o) {
      halves[o][0][threadIdx.x] = halves[o][1][threadIdx.x] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
  }
  template <class T>
  __device__ __forceinline__ void add(int output, const Pack8<T> (&tile)[kTileLines]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float4 sum = halves[output][h][threadIdx.x];
#pragma unroll
      for (int i = 0; i < kTileLines; ++i) {
        sum.x += tile[i].at(4 * h);
        sum.y += tile[i].at(4 * h + 1);
        sum.z += tile[i].at(4 * h + 2);
        sum.w += tile[i].at(4 * h + 3);
      }
      halves[output][h][threadIdx.x] = sum;
    }
  }
  __device__ __forceinline__ void get(float (&sums)[outputs][8]) const {
#pragma unroll
    for (int o = 0; o < outputs; ++o) {
      Pack8<float>{halves[o][0][threadIdx.x], halves[o][1][threadIdx.x]}.unpack(sums[o]);
    }
  }
};
template <>
struct ThreadSums<0> {};

// Values that a step derives from a tile (widened values, magnitudes) do not fit into registers. The compiler would keep
// those that a later step also needs; after this it derives them again.
__device__ __forceinline__ void derive_again(Pack8<Bf16> (&tile)[kTileLines]) {
#pragma unroll
  for (Pack8<Bf16>& pack : tile) {
    asm volatile("" : "+r"(pack.raw.x), "+r"(pack.raw.y), "+r"(pack.raw.z), "+r"(pack.raw.w));
  }
}
__device__ __forceinline__ void derive_again(Pack8<float> (&)[kTileLines]) {}

// Largest magnitudes of eight columns.
template <class T>
struct ColumnMax;
template <>
struct ColumnMax<float> {
  uint32_t largest[8] = {};
  __device__ __forceinline__ void add(const Pack8<float>& values) {
#pragma unroll
    for (int j = 0; j < 8; ++j) largest[j] = max(largest[j], magnitude_bits(values.at(j)));
  }
  // Over this lane and that of the neighbouring row.
  __device__ __forceinline__ void join_rows() {
#pragma unroll
    for (uint32_t& value : largest) value = max(value, __shfl_xor_sync(0xFFFFFFFFu, value, 16));
  }
  __device__ __forceinline__ uint32_t bits(int j) const {
    return largest[j];
  }
};
// Two columns in a word: the bits of bf16 are the upper half of those of fp32.
template <>
struct ColumnMax<Bf16> {
  uint32_t pairs[4] = {};
  __device__ __forceinline__ void add(const Pack8<Bf16>& values) {
    constexpr uint32_t kMask = 0x7FFF7FFFu;
    const uint32_t words[4] = {values.raw.x, values.raw.y, values.raw.z, values.raw.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = __vmaxu2(pairs[i], words[i] & kMask);
  }
  __device__ __forceinline__ void join_rows() {
#pragma unroll
    for (uint32_t& pair : pairs) pair = __vmaxu2(pair, __shfl_xor_sync(0xFFFFFFFFu, pair, 16));
  }
  __device__ __forceinline__ uint32_t bits(int j) const {
    return j % 2 ? pairs[j / 2] & 0xFFFF0000u : pairs[j / 2] << 16;
  }
};

__device__ __forceinline__ uint8_t e8m0_of(float factor) {
  return static_cast<uint8_t>(__float_as_uint(factor) >> 23);
}

// Codes of eight values, each with a scale of its own.
template <bool e5m2, class T>
__device__ __forceinline__ uint2 encode8(const Pack8<T>& values, const float (&scales)[8]) {
  return {encode4<e5m2>(values.at(0) * scales[0], values.at(1) * scales[1], values.at(2) * scales[2],
                        values.at(3) * scales[3]),
          encode4<e5m2>(values.at(4) * scales[4], values.at(5) * scales[5], values.at(6) * scales[6],
                        values.at(7) * scales[7])};
}

// The largest magnitudes of a thread's values.
template <class T>
struct TileAmax {
  uint32_t rows[kTileLines];  // of 8 columns
  ColumnMax<T> columns;       // of all rows

  __device__ __forceinline__ explicit TileAmax(const Pack8<T> (&tile)[kTileLines]) {
#pragma unroll
    for (int i = 0; i < kTileLines; ++i) {
      rows[i] = magnitude_bits(tile[i]);
      columns.add(tile[i]);
    }
  }
  __device__ __forceinline__ uint32_t all() const {
    uint32_t most = 0;
#pragma unroll
    for (const uint32_t value : rows) most = max(most, value);
    return most;
  }
};

// The rowwise copy with a scale per 128 or 32 columns. `amax` has the thread's own part of each row.
template <bool vector, class T>
__device__ __forceinline__ void cast_rows(const BlockTarget& target, const TilePlace& place,
                                          const Pack8<T> (&tile)[kTileLines],
                                          const uint32_t (&amax)[kTileLines]) {
  static_assert(kTileLines == 8);
  constexpr uint32_t kAll = 0xFFFFFFFFu;
  const BlockCopy& copy = target.rowwise;
  const bool row32 = target.granularity == Granularity::Row32;
  const int lane = static_cast<int>(threadIdx.x % 32u);
  // Four lanes have 32 columns. Each of them ends up with two rows, so that a factor is not computed by all.
  const bool odd = lane & 1, high = lane & 2;
  uint32_t half[4], own[2];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    half[k] = max(odd ? amax[k + 4] : amax[k], __shfl_xor_sync(kAll, odd ? amax[k] : amax[k + 4], 1));
  }
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    own[k] = max(high ? half[k + 2] : half[k], __shfl_xor_sync(kAll, high ? half[k] : half[k + 2], 2));
    if (!row32) {
      own[k] = max(own[k], __shfl_xor_sync(kAll, own[k], 4));
      own[k] = max(own[k], __shfl_xor_sync(kAll, own[k], 8));
    }
  }
  float inverse[2];
  const int block_col = place.col - 8 * (lane % (row32 ? 4 : 16));
  const int blocks = row32 ? (place.width + 31) / 32 : (place.width + 127) / 128;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const float factor = block_factor(own[k], copy.e5m2, target.pow2 || row32);
    inverse[k] = 1.0f / factor;
    const int i = 4 * (lane & 1) + (lane & 2) + k;
    if (!place.line_inside(i) || block_col >= place.width) continue;
    const int64_t start = static_cast<int64_t>(place.row + 2 * i) * blocks;
    if (row32) {
      static_cast<uint8_t*>(copy.scales)[start + block_col / 32] = e8m0_of(factor);
    } else if (lane % 16 < 4) {
      static_cast<float*>(copy.scales)[start + block_col / 128] = factor;
    }
  }
  uint8_t* to = copy.codes + place.start();
  with_format(copy.e5m2, [&]<bool e5m2>() {
#pragma unroll
    for (int i = 0; i < kTileLines; ++i) {
      const float scale = __shfl_sync(kAll, inverse[i % 2], (lane & ~3) | (i & 2) | i / 4);
      const float scales[8] = {scale, scale, scale, scale, scale, scale, scale, scale};
      const uint2 codes = encode8<e5m2>(tile[i], scales);
      if (place.columns > 0 && place.line_inside(i)) {
        store_codes<vector>(to + 2 * i * place.width, codes, place.columns);
      }
    }
  });
}

// The colwise copy with a scale per 128 or 32 rows is made in four steps, with a barrier between each two.
// 1. The largest values of columns, per warp.
template <class T>
__device__ __forceinline__ void put_column_amax(uint32_t (&column_amax)[kTileWarps][kTileSize],
                                                ColumnMax<T> most) {
  const int lane = static_cast<int>(threadIdx.x % 32u), warp = static_cast<int>(threadIdx.x / 32u);
  most.join_rows();
  if (lane >= 16) return;
  auto* to = reinterpret_cast<uint4*>(column_amax[warp] + 8 * lane);
  to[0] = make_uint4(most.bits(0), most.bits(1), most.bits(2), most.bits(3));
  to[1] = make_uint4(most.bits(4), most.bits(5), most.bits(6), most.bits(7));
}

// 2. The factors of columns. `column_of(c, output)` is the matrix column of the tile's column c, or negative where there
// is none.
template <int outputs, class ColumnOf>
__device__ __forceinline__ void find_column_factors(BlockShared<outputs>& shared, const BlockTarget& target,
                                                    int tile_row, int rows, const ColumnOf& column_of) {
  const BlockCopy& copy = target.colwise;
  const bool row32 = target.granularity == Granularity::Row32;
  const int bands = row32 ? kBands : 1, warps = row32 ? kTileWarps / kBands : kTileWarps;
  const int height = row32 ? 32 : 128;
  const int blocks = (rows + height - 1) / height;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < outputs * bands * kTileSize; i += CodeTile::kThreads) {
    const int c = i % kTileSize, band = i / kTileSize % bands, o = i / kTileSize / bands;
    uint32_t amax = 0;
#pragma unroll 2
    for (int w = 0; w < warps; ++w) amax = max(amax, shared.column_amax[o][band * warps + w][c]);
    const float factor = block_factor(amax, copy.e5m2, target.pow2 || row32);
    shared.inverse[o][band][c] = 1.0f / factor;
    const int64_t column = column_of(c, o);
    const int row = tile_row + band * height;
    if (column < 0 || row >= rows) continue;
    const int64_t place = column * blocks + row / height;
    if (row32) {
      static_cast<uint8_t*>(copy.scales)[place] = e8m0_of(factor);
    } else {
      static_cast<float*>(copy.scales)[place] = factor;
    }
  }
}

// 3. The codes, in the layout of the matrix. 4. is CodeTile::write_transposed.
template <int outputs, class T>
__device__ __forceinline__ void put_column_codes(BlockShared<outputs>& shared, int output,
                                                 const BlockTarget& target,
                                                 const Pack8<T> (&tile)[kTileLines]) {
  const int lane = static_cast<int>(threadIdx.x % 32u), warp = static_cast<int>(threadIdx.x / 32u);
  const int group = lane % 16, first_line = 2 * kTileLines * warp + lane / 16;
  const int band = target.granularity == Granularity::Row32 ? warp * kBands / kTileWarps : 0;
  float scales[8];
  Pack8<float>::load(shared.inverse[output][band] + 8 * group).unpack(scales);
  with_format(target.colwise.e5m2, [&]<bool e5m2>() {
#pragma unroll
    for (int i = 0; i < kTileLines; ++i) {
      CodeTile::put(shared.words[output], warp, first_line + 2 * i, group, encode8<e5m2>(tile[i], scales));
    }
  });
}

// Both copies with one scale for the tile, up to the codes of the colwise copy in shared memory. `amax` is the thread's
// own. Has a barrier.
template <bool vector, class T>
__device__ __forceinline__ void cast_square(BlockShared<1>& shared, const BlockTarget& target,
                                            const TilePlace& place, int tile_row, int tile_col, int rows,
                                            const Pack8<T> (&tile)[kTileLines], uint32_t amax) {
  const int lane = static_cast<int>(threadIdx.x % 32u), warp = static_cast<int>(threadIdx.x / 32u);
  const int group = lane % 16, first_line = 2 * kTileLines * warp + lane / 16;
  uint32_t* warp_amax = shared.column_amax[0][0];
  amax = __reduce_max_sync(0xFFFFFFFFu, amax);
  if (lane == 0) warp_amax[warp] = amax;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kTileWarps; ++w) amax = max(amax, warp_amax[w]);
  const float row_factor = block_factor(amax, target.rowwise.e5m2, target.pow2);
  const float col_factor = block_factor(amax, target.colwise.e5m2, target.pow2);
  const int row_block = tile_row / kTileSize, col_block = tile_col / kTileSize;
  if (threadIdx.x == 0 && target.rowwise.codes) {
    static_cast<float*>(
        target.rowwise.scales)[static_cast<int64_t>(row_block) * ((place.width + 127) / 128) + col_block] =
        row_factor;
  }
  if (threadIdx.x == 0 && target.colwise.codes) {
    static_cast<float*>(
        target.colwise.scales)[static_cast<int64_t>(col_block) * ((rows + 127) / 128) + row_block] =
        col_factor;
  }
  const float row_scale = 1.0f / row_factor, col_scale = 1.0f / col_factor;
  const bool same_codes = target.rowwise.codes && target.rowwise.e5m2 == target.colwise.e5m2;
  uint8_t* to = target.rowwise.codes + place.start();
#pragma unroll
  for (int i = 0; i < kTileLines; ++i) {
    uint2 codes{};
    if (target.rowwise.codes) {
      codes = encode8(tile[i], row_scale, target.rowwise.e5m2);
      if (place.columns > 0 && place.line_inside(i)) {
        store_codes<vector>(to + 2 * i * place.width, codes, place.columns);
      }
    }
    if (target.colwise.codes) {
      if (!same_codes) codes = encode8(tile[i], col_scale, target.colwise.e5m2);
      CodeTile::put(shared.words[0], warp, first_line + 2 * i, group, codes);
    }
  }
}

}  // namespace octet::device
