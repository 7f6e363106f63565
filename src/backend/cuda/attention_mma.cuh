#pragma once

#include "backend/cuda/device/copy_async.cuh"
#include "backend/cuda/device/mma.cuh"
#include "backend/cuda/device/vec.cuh"

// Warp-level building blocks of the attention kernels: bf16 tiles in shared memory, tensor-core products.

namespace octet::device {

constexpr int kAttentionThreads = 128;
constexpr float kLn2 = 0.6931471805599453f;

// One tile of a document, tokens [start, start + length). Tiles are handed out by falling rank: the work of
// query tile `rank` and of key tile `tiles - 1 - rank` grows with it.
struct AttentionTile {
  int start;
  int length;  // 0: no tile
  int rank;
  int tiles;  // of the document
};

// Tiles are (rows, Width) bf16 in chunks of 8; chunks are permuted inside a row so that the 8 rows of an
// ldmatrix fall on different banks.
template <int Width>
__device__ __forceinline__ int tile_offset(int row, int chunk) {
  static_assert(Width == 32 || Width == 64 || Width == 128);
  const int mask = Width == 32 ? (row >> 1) & 3 : row & 7;
  return row * Width + ((chunk ^ mask) << 3);
}

// Queues the copy of rows [0, valid_rows) x [0, depth) of a matrix into a tile; the rest of the tile becomes
// zero. depth is a multiple of 8, rows of the matrix are 16-byte aligned.
template <int Rows, int Width>
__device__ __forceinline__ void load_tile(Bf16* tile, const Bf16* from, int64_t stride, int valid_rows,
                                          int depth) {
  // A thread keeps its chunk and moves down the rows in steps that do not change the permutation of chunks.
  constexpr int kChunks = Width / 8, kStep = kAttentionThreads / kChunks;
  static_assert(Rows % kStep == 0 && kStep % 8 == 0);
  const int row = static_cast<int>(threadIdx.x) / kChunks, chunk = static_cast<int>(threadIdx.x) % kChunks;
  const int rows = chunk * 8 < depth ? valid_rows - row : 0;
  Bf16* to = tile + tile_offset<Width>(row, chunk);
  const Bf16* source = from + row * stride + chunk * 8;
#pragma unroll
  for (int i = 0; i < Rows; i += kStep) {
    const bool valid = i < rows;
    copy_async16(to + i * Width, valid ? source : from, valid);
    source += kStep * stride;
  }
}

__device__ __forceinline__ void ldmatrix(uint32_t (&r)[4], const Bf16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void ldmatrix_transposed(uint32_t (&r)[4], const Bf16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

// A[m][k] of a tile stored (m, k): rows m0.. + 16, columns k0.. + 16.
template <int Width>
__device__ __forceinline__ void load_a(uint32_t (&a)[4], const Bf16* tile, int m0, int k0) {
  const int lane = lane_id();
  ldmatrix(a, tile + tile_offset<Width>(m0 + (lane & 15), k0 / 8 + (lane >> 4)));
}
// B[k][n] of a tile stored (n, k), for n0.. + 16: b[0], b[1] for the first 8 columns, b[2], b[3] for the
// others.
template <int Width>
__device__ __forceinline__ void load_b(uint32_t (&b)[4], const Bf16* tile, int n0, int k0) {
  const int lane = lane_id();
  ldmatrix(b, tile + tile_offset<Width>(n0 + (lane & 7) + ((lane >> 4) << 3), k0 / 8 + ((lane >> 3) & 1)));
}
// The same of a tile stored (k, n).
template <int Width>
__device__ __forceinline__ void load_b_transposed(uint32_t (&b)[4], const Bf16* tile, int k0, int n0) {
  const int lane = lane_id();
  ldmatrix_transposed(b, tile + tile_offset<Width>(k0 + (lane & 15), n0 / 8 + (lane >> 4)));
}

// c (16 * Tiles, 8 * Columns) += A B^T: A rows m0.. of tile a (m, Width), B = tile b (n, Width), whole width.
template <int Width, int Tiles, int Columns>
__device__ __forceinline__ void product_abt(float (&c)[Tiles][Columns][4], const Bf16* a, int m0,
                                            const Bf16* b) {
#pragma unroll
  for (int k = 0; k < Width; k += 16) {
    uint32_t fa[Tiles][4];
#pragma unroll
    for (int i = 0; i < Tiles; ++i) load_a<Width>(fa[i], a, m0 + 16 * i, k);
#pragma unroll
    for (int j = 0; j < Columns; j += 2) {
      uint32_t fb[4];
      load_b<Width>(fb, b, 8 * j, k);
#pragma unroll
      for (int i = 0; i < Tiles; ++i) {
        mma(c[i][j], fa[i], fb[0], fb[1]);
        mma(c[i][j + 1], fa[i], fb[2], fb[3]);
      }
    }
  }
}

// c (16 * Tiles, Width) += P B: P (16 * Tiles, 8 * Columns) in C fragments, rounded to bf16; B = tile b
// (8 * Columns, Width).
template <int Width, int Tiles, int Columns>
__device__ __forceinline__ void product_pb(float (&c)[Tiles][Width / 8][4],
                                           const float (&p)[Tiles][Columns][4], const Bf16* b) {
#pragma unroll
  for (int k = 0; k < Columns; k += 2) {
    uint32_t fa[Tiles][4];
#pragma unroll
    for (int i = 0; i < Tiles; ++i) to_a(fa[i], p[i][k], p[i][k + 1]);
#pragma unroll
    for (int n = 0; n < Width; n += 16) {
      uint32_t fb[4];
      load_b_transposed<Width>(fb, b, 8 * k, n);
#pragma unroll
      for (int i = 0; i < Tiles; ++i) {
        mma(c[i][n / 8], fa[i], fb[0], fb[1]);
        mma(c[i][n / 8 + 1], fa[i], fb[2], fb[3]);
      }
    }
  }
}

// Writes rows of C fragments as bf16 to `to`, by way of the warp's own rows m0.. of a tile, so that the
// stores are 16 bytes wide. Rows from valid_rows on and columns from depth on are skipped.
template <int Width, int Tiles>
__device__ __forceinline__ void store_rows(Bf16* to, int64_t stride, Bf16* tile, int m0,
                                           const float (&c)[Tiles][Width / 8][4], int valid_rows, int depth) {
  const int g = lane_id() >> 2, t = lane_id() & 3;
  __syncwarp();
#pragma unroll
  for (int i = 0; i < Tiles; ++i) {
#pragma unroll
    for (int j = 0; j < Width / 8; ++j) {
      const int row = m0 + 16 * i + g;
      *reinterpret_cast<uint32_t*>(tile + tile_offset<Width>(row, j) + 2 * t) = pack(c[i][j][0], c[i][j][1]);
      *reinterpret_cast<uint32_t*>(tile + tile_offset<Width>(row + 8, j) + 2 * t) =
          pack(c[i][j][2], c[i][j][3]);
    }
  }
  __syncwarp();
  constexpr int kChunks = Width / 8;
#pragma unroll
  for (int i = 0; i < 16 * Tiles * kChunks / 32; ++i) {
    const int item = i * 32 + lane_id();
    const int row = m0 + item / kChunks, chunk = item % kChunks;
    if (row < valid_rows && chunk * 8 < depth) {
      *reinterpret_cast<uint4*>(to + row * stride + chunk * 8) =
          *reinterpret_cast<const uint4*>(tile + tile_offset<Width>(row, chunk));
    }
  }
}

}  // namespace octet::device
