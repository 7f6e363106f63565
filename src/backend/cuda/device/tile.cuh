#pragma once

#include "backend/cuda/device/fp8.cuh"

namespace octet::device {

// Codes of eight values in two words, the first in the lowest byte.
template <class T>
__device__ __forceinline__ uint2 encode8(const Pack8<T>& values, float scale, bool e5m2) {
  uint2 codes;
  with_format(e5m2, [&]<bool as_e5m2>() {
    codes.x = encode4<as_e5m2>(values.at(0) * scale, values.at(1) * scale, values.at(2) * scale,
                               values.at(3) * scale);
    codes.y = encode4<as_e5m2>(values.at(4) * scale, values.at(5) * scale, values.at(6) * scale,
                               values.at(7) * scale);
  });
  return codes;
}

// Eight codes of one row, or the first `count` of them.
template <bool vector>
__device__ __forceinline__ void store_codes(uint8_t* to, uint2 codes, int64_t count) {
  if constexpr (vector) {
    *reinterpret_cast<uint2*>(to) = codes;
  } else {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (j < count) to[j] = static_cast<uint8_t>((j < 4 ? codes.x : codes.y) >> (8 * (j % 4)));
    }
  }
}

// Transposes four words of four bytes as a matrix.
__device__ __forceinline__ void transpose_bytes(uint32_t (&words)[4]) {
  const uint32_t low01 = __byte_perm(words[0], words[1], 0x5140);
  const uint32_t low23 = __byte_perm(words[2], words[3], 0x5140);
  const uint32_t high01 = __byte_perm(words[0], words[1], 0x7362);
  const uint32_t high23 = __byte_perm(words[2], words[3], 0x7362);
  words[0] = __byte_perm(low01, low23, 0x5410);
  words[1] = __byte_perm(low01, low23, 0x7632);
  words[2] = __byte_perm(high01, high23, 0x5410);
  words[3] = __byte_perm(high01, high23, 0x7632);
}

// The first `count` of 16 codes of a column, at any alignment.
__device__ __forceinline__ void store_some_codes(uint8_t* to, uint4 codes, int64_t count) {
  const uint32_t parts[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
  for (int j = 0; j < 16; ++j) {
    if (j < count) to[j] = static_cast<uint8_t>(parts[j / 4] >> (8 * (j % 4)));
  }
}

// The codes of a 128 x 128 tile in shared memory, in the layout of the matrix: rows of 32 words of 4 columns,
// permuted so that accesses of a warp have no bank conflicts. For blocks of 256 threads.
struct CodeTile {
  static constexpr int kSize = 128;
  static constexpr int kThreads = 256;
  static constexpr int kWords = kSize * kSize / 4;

  // `band` is row / 16.
  __device__ __forceinline__ static int place(int band, int row, int word) {
    return 32 * row + (word ^ (4 * band));
  }

  // Eight codes at columns [8 * group, 8 * group + 8).
  __device__ __forceinline__ static void put(uint32_t* words, int band, int row, int group, uint2 codes) {
    *reinterpret_cast<uint2*>(words + place(band, row, 2 * group)) = codes;
  }

  // Writes the tile to `colwise` (columns, rows): each thread turns 16 rows of 4 columns, eight neighbours write
  // 128 rows of a column. `column_of(c)` is the matrix column of the tile's column c, or negative where there is none.
  // The block needs a barrier before this, and another one after it before the next put.
  template <class ColumnOf>
  __device__ __forceinline__ static void write_transposed(const uint32_t* words, uint8_t* colwise,
                                                          int64_t rows, int64_t tile_row,
                                                          const ColumnOf& column_of) {
    write_transposed(words, colwise, rows, rows, rows % 16 == 0, tile_row, column_of);
  }
  // The same, where the columns lie `stride` apart. `vectors`: they are whole, aligned vectors of 16 codes.
  template <class ColumnOf>
  __device__ __forceinline__ static void write_transposed(const uint32_t* words, uint8_t* colwise,
                                                          int64_t rows, int64_t stride, bool vectors,
                                                          int64_t tile_row, const ColumnOf& column_of) {
    const int band = static_cast<int>(threadIdx.x % 8u), word = static_cast<int>(threadIdx.x / 8u);
    const int64_t row = tile_row + 16 * band;
    if (row >= rows) return;
    uint32_t turned[4][4];  // [column][four rows]
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t block[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) block[r] = words[place(band, 16 * band + 4 * i + r, word)];
      transpose_bytes(block);
#pragma unroll
      for (int c = 0; c < 4; ++c) turned[c][i] = block[c];
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int64_t column = column_of(4 * word + c);
      if (column < 0) continue;
      uint8_t* to = colwise + column * stride + row;
      const uint4 codes = make_uint4(turned[c][0], turned[c][1], turned[c][2], turned[c][3]);
      if (vectors) {
        *reinterpret_cast<uint4*>(to) = codes;
      } else {
        store_some_codes(to, codes, rows - row);
      }
    }
  }
};

// A tile of a matrix in a block of `kThreads` threads. Each thread holds 4 rows x 8 columns: rows are read
// and written along columns in vectors of 8 elements, and the transposed codes along rows in vectors of 16
// after a trip through shared memory, in words of 4 rows of one column.
template <int rows_, int threads_>
struct Tile {
  static constexpr int kRows = rows_;
  static constexpr int kThreads = threads_;
  static constexpr int kCols = kThreads * 32 / kRows;
  static constexpr int kWords = kThreads * 8;   // of shared memory for the transposed codes
  static constexpr int kChunks = kRows / 16;    // 16-byte vectors in a column
  static constexpr int kWarpRows = kRows / 16;  // warps side by side along the rows
  static_assert(kRows % 16 == 0 && (kThreads / 32) % kWarpRows == 0);

  // The first row and column of this thread.
  __device__ static int row() { return 4 * (lane() / 8 + 4 * warp_row()); }
  __device__ static int col() { return 8 * (lane() % 8 + 8 * (warp() / kWarpRows)); }
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ static int warp() { return static_cast<int>(threadIdx.x) / 32; }
  __device__ static int warp_row() { return warp() % kWarpRows; }

  // Vectors of a column are spread over the banks, so that neither the writes (every eighth column) nor the reads
  // (neighbouring vectors) of a warp have bank conflicts.
  __device__ static int place(int chunk) { return chunk ^ ((chunk >> 3 ^ chunk >> 6) & 7); }

  // Puts the codes of this thread's values into shared memory.
  template <class T>
  __device__ static void stage(uint32_t* words, const Pack8<T> (&values)[4], float scale, bool e5m2) {
    const int group = row() / 4;
    with_format(e5m2, [&]<bool as_e5m2>() {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        words[4 * place((col() + j) * kChunks + group / 4) + group % 4] =
            encode4<as_e5m2>(values[0].at(j) * scale, values[1].at(j) * scale, values[2].at(j) * scale,
                             values[3].at(j) * scale);
      }
    });
  }

  // Writes the staged codes to `colwise` (cols, rows). `column_of(c)` is the matrix column of the tile's
  // column c, or negative where there is none. The block needs a barrier between stage and this, and another one
  // after it.
  template <class ColumnOf>
  __device__ static void write_transposed(const uint32_t* words, uint8_t* colwise, int64_t rows, int64_t row0,
                                          const ColumnOf& column_of) {
    const bool whole = rows % 16 == 0;
    for (int i = static_cast<int>(threadIdx.x); i < kCols * kChunks; i += kThreads) {
      const int64_t column = column_of(i / kChunks);
      const int64_t row = row0 + 16 * (i % kChunks);
      if (column < 0 || row >= rows) continue;
      const uint4 codes = reinterpret_cast<const uint4*>(words)[place(i)];
      uint8_t* to = colwise + column * rows + row;
      if (whole) {
        *reinterpret_cast<uint4*>(to) = codes;
      } else {
        store_some_codes(to, codes, rows - row);
      }
    }
  }
};

// The largest magnitude of many values, as bits; NaN orders above Inf.
template <class T>
struct MagnitudeMax;
template <>
struct MagnitudeMax<float> {
  uint32_t largest = 0;
  __device__ __forceinline__ void add(const Pack8<float>& values) {
#pragma unroll
    for (int j = 0; j < 8; ++j) largest = max(largest, magnitude_bits(values.at(j)));
  }
  __device__ __forceinline__ uint32_t bits() const {
    return largest;
  }
};
// Two halves side by side until the end: the bits of bf16 are the upper half of those of fp32.
template <>
struct MagnitudeMax<Bf16> {
  uint32_t pair = 0;
  __device__ __forceinline__ void add(const Pack8<Bf16>& values) {
    constexpr uint32_t kMask = 0x7FFF7FFFu;
    const uint4 raw = values.raw;
    pair = __vimax3_u16x2(__vimax3_u16x2(raw.x & kMask, raw.y & kMask, raw.z & kMask), raw.w & kMask, pair);
  }
  __device__ __forceinline__ uint32_t bits() const { return max(pair << 16, pair & 0xFFFF0000u); }
};

template <class T>
__device__ __forceinline__ uint32_t magnitude_bits(const Pack8<T>& values) {
  MagnitudeMax<T> largest;
  largest.add(values);
  return largest.bits();
}

}  // namespace octet::device
