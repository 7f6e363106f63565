#pragma once

#include "backend/cuda/device/block_tile.cuh"
#include "backend/cuda/device/tile_output.cuh"

// tile_kernel for results with a scale per block. A scale is known only when the whole block is, so that a thread keeps
// its part of a tile in registers.

namespace octet::device {

// Whether block_tile_kernel can compute the op. Its columns of a tile are neighbours in the matrix, so that each output of
// a tile is one block. Results in fp32 or in rows that are no whole vectors are cast by a pass of their own: no training
// run has them.
template <class Op>
constexpr bool kCastsBlocks = Op::kBlocks && (Op::kCopies || sizeof(typename Op::Type) == 2);

// Op: as for tile_kernel. `square`: Granularity::Block128, otherwise Row128 or Row32.
template <class Op, bool vector, bool sums, bool square>
__global__ void __launch_bounds__(CodeTile::kThreads,
                                  sizeof(typename Op::Type) == 2 && Op::kOutputs == 1 ? 3 : 2)
    block_tile_kernel(const Op op, const TileOutput<typename Op::Type> out) {
  using T = typename Op::Type;
  static_assert(kCastsBlocks<Op> && (vector || Op::kCopies) && (!square || Op::kOutputs == 1));
  constexpr int kOutputs = Op::kOutputs;
  // Registers for what is in flight are scarce.
  constexpr int kAhead = sizeof(typename Op::Raw) > 16 && Op::kAhead > 2 ? 2 : Op::kAhead;
  static_assert(kTileLines % kAhead == 0);
  __shared__ BlockShared<kOutputs> shared;
  __shared__ ThreadSums<sums ? kOutputs : 0> column_sums;
  const BlockTarget& target = out.blocks;
  const int lane = static_cast<int>(threadIdx.x % 32u), warp = static_cast<int>(threadIdx.x / 32u);
  const int first_line = 2 * kTileLines * warp + lane / 16, group = lane % 16;
  const int width = static_cast<int>(out.width), rows = static_cast<int>(out.rows);
  const int tile_col = static_cast<int>(blockIdx.x) * kTileSize, col = tile_col + 8 * group;
  const int count = static_cast<int>(out.cols) - col;
  uint32_t amax = 0;
  if constexpr (sums) column_sums.clear();
  const auto column_of = [&](int c, int o) -> int64_t {
    return tile_col + c < out.cols ? op.column(tile_col, o) + c : -1;
  };

  Op here = op;
  int lines = 0;
  Pack8<T> kept[kOutputs][kTileLines];
  typename Op::Raw raw[kAhead];
  const auto inside = [&](int i) { return count > 0 && 2 * i < lines; };
  // The loads of a tile begin before the tile above it is written transposed.
  const auto begin_tile = [&](int tile_row) {
    if (tile_row >= rows) return;
    here = op.at(tile_row + first_line, col);
    lines = min(2 * kTileLines, rows - (tile_row + first_line));
    if constexpr (Op::kCopies) {
#pragma unroll
      for (int i = 0; i < kTileLines; ++i) {
        kept[0][i] = Pack8<T>::zero();
        if (inside(i)) kept[0][i] = here.template load<vector>(2 * i, count);
      }
    } else {
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        if (inside(a)) raw[a] = here.template load<vector>(2 * a, count);
      }
    }
  };
  const int stride = static_cast<int>(gridDim.y) * kTileSize;
  int tile_row = static_cast<int>(blockIdx.y) * kTileSize;
  begin_tile(tile_row);
  for (; tile_row < rows; tile_row += stride) {
    const int row = tile_row + first_line;
    if constexpr (!Op::kCopies) {
#pragma unroll
      for (int i = 0; i < kTileLines; ++i) {
#pragma unroll
        for (int o = 0; o < kOutputs; ++o) kept[o][i] = Pack8<T>::zero();
        if (!inside(i)) continue;
        float values[kOutputs][8];
        here.compute(raw[i % kAhead], values);
        if (i + kAhead < kTileLines && inside(i + kAhead)) {
          raw[i % kAhead] = here.template load<vector>(2 * (i + kAhead), count);
        }
#pragma unroll
        for (int o = 0; o < kOutputs; ++o) {
          kept[o][i] = Pack8<T>::pack(values[o]);
          if (out.dense) {
            kept[o][i].store(out.dense + (row * out.width + op.column(col, o)) + 2 * i * width);
          }
        }
      }
    }
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      const TilePlace place{row, static_cast<int>(op.column(col, o)), lines, count, width};
      if constexpr (sums) {
        column_sums.add(o, kept[o]);
        derive_again(kept[o]);
      }
      const TileAmax<T> most(kept[o]);
      amax = max(amax, most.all());
      if constexpr (square) {
        cast_square<vector>(shared, target, place, tile_row, tile_col, rows, kept[o], most.all());
      } else {
        if (target.colwise.codes) put_column_amax(shared.column_amax[o], most.columns);
        if (target.rowwise.codes) cast_rows<vector>(target, place, kept[o], most.rows);
        derive_again(kept[o]);
      }
    }
    if (!square && target.colwise.codes) {
      __syncthreads();
      find_column_factors(shared, target, tile_row, rows, column_of);
      __syncthreads();
#pragma unroll
      for (int o = 0; o < kOutputs; ++o) put_column_codes(shared, o, target, kept[o]);
    }
    begin_tile(tile_row + stride);
    // The next writes to shared memory that others may still read come after another barrier.
    if (square || target.colwise.codes) __syncthreads();
    if (target.colwise.codes) {
#pragma unroll
      for (int o = 0; o < kOutputs; ++o) {
        CodeTile::write_transposed(shared.words[o], target.colwise.codes, out.rows, tile_row,
                                   [&](int c) { return column_of(c, o); });
      }
    }
  }

  if constexpr (sums) {
    __syncthreads();
    float totals[kOutputs][8];
    column_sums.get(totals);
    write_column_sums(reinterpret_cast<float*>(shared.words[0]), totals, out, column_of);
  }
  record_amax(amax, {.slot = target.slot}, gridDim.x * gridDim.y);
}

}  // namespace octet::device
