#pragma once

#include <algorithm>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/device/tile.cuh"

namespace octet::device {

using ElementTile = Tile<128, 256>;

template <class T>
struct TileOutput {
  int64_t rows = 0;
  int64_t cols = 0;    // of the op, each of which yields Op::kOutputs columns of the matrix
  int64_t width = 0;   // columns of the matrix
  T* dense = nullptr;  // absent: not stored
  CastTarget cast;
  float* column_sums = nullptr;  // (gridDim.y, width): of the blocks, when wanted
};

// The common part of all elementwise ops that feed a Linear: computes tiles of the result and writes each of
// its forms.
//
// Op: Type (of dense), kOutputs, Raw (what is loaded for 8 columns of a row),
//   Raw load<vector>(row, col, count)              up to `count` of 8 columns
//   void compute(raw, row, col, float (&)[kOutputs][8])
//   bool kSums                                     column sums can be asked for
//   bool kCopies                                   the result is what was loaded, bit for bit (then Raw is
//   Pack8) int64_t column(col, output)                    in the matrix; 8 aligned columns stay neighbours
//   when vectors are used
template <class Op, bool vector>
__global__ void __launch_bounds__(ElementTile::kThreads, 2)
    tile_kernel(const Op op, const TileOutput<typename Op::Type> out) {
  using T = typename Op::Type;
  __shared__ alignas(16) uint32_t words[Op::kOutputs][ElementTile::kWords];
  const CastTarget& cast = out.cast;
  const float row_scale = cast.rowwise ? cast.slot->scale_rowwise : 1.0f;
  const float col_scale = cast.colwise ? cast.slot->scale_colwise : 1.0f;
  const int64_t tile_col = static_cast<int64_t>(blockIdx.x) * ElementTile::kCols;
  const int64_t col = tile_col + ElementTile::col();
  const int64_t count = out.cols - col;
  const int64_t row_tiles = (out.rows + ElementTile::kRows - 1) / ElementTile::kRows;
  uint32_t amax = 0;
  float sums[Op::kOutputs][8] = {};

  for (int64_t tile = blockIdx.y; tile < row_tiles; tile += gridDim.y) {
    const int64_t tile_row = tile * ElementTile::kRows;
    const int64_t row = tile_row + ElementTile::row();
    Pack8<T> kept[Op::kOutputs][4];
    typename Op::Raw raw[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      if (count > 0 && row + r < out.rows) raw[r] = op.template load<vector>(row + r, col, count);
    }
    uint32_t tile_amax = 0;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      if (count > 0 && row + r < out.rows) {
        float values[Op::kOutputs][8];
        if constexpr (!Op::kCopies) op.compute(raw[r], row + r, col, values);
#pragma unroll
        for (int o = 0; o < Op::kOutputs; ++o) {
          if constexpr (Op::kCopies) {
            kept[o][r] = raw[r];
          } else {
            kept[o][r] = Pack8<T>::pack(values[o]);
          }
          if constexpr (!vector) kept[o][r] = first_of(kept[o][r], count);
          tile_amax = max(tile_amax, magnitude_bits(kept[o][r]));
        }
      } else {
#pragma unroll
        for (int o = 0; o < Op::kOutputs; ++o) kept[o][r] = Pack8<T>::zero();
      }
    }
    amax = max(amax, tile_amax);
    const bool careful = tile_amax > kInfinityBits;
#pragma unroll
    for (int o = 0; o < Op::kOutputs; ++o) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        if (count > 0 && row + r < out.rows) {
          const int64_t line = (row + r) * out.width;
          if constexpr (vector) {
            const int64_t place = line + op.column(col, o);
            if (out.dense) kept[o][r].store(out.dense + place);
            if (cast.rowwise) {
              write_rowwise<true>(cast.rowwise + place, kept[o][r], row_scale, cast.row_e5m2, careful, 8);
            }
          } else {
#pragma unroll
            for (int j = 0; j < 8; ++j) {
              if (j >= count) continue;
              const int64_t place = line + op.column(col + j, o);
              const float value = kept[o][r].at(j);
              if (out.dense) out.dense[place] = kept[o][r].element(j);
              if (cast.rowwise) cast.rowwise[place] = encode1(value * row_scale, cast.row_e5m2);
            }
          }
        }
        if (Op::kSums && out.column_sums) {
#pragma unroll
          for (int j = 0; j < 8; ++j) sums[o][j] += kept[o][r].at(j);
        }
      }
      if (cast.colwise) ElementTile::stage(words[o], kept[o], col_scale, cast.col_e5m2, careful);
    }
    if (cast.colwise) {
      __syncthreads();
#pragma unroll
      for (int o = 0; o < Op::kOutputs; ++o) {
        ElementTile::write_transposed(words[o], cast.colwise, out.rows, tile_row, [&](int c) -> int64_t {
          return tile_col + c < out.cols ? op.column(tile_col + c, o) : -1;
        });
      }
      __syncthreads();
    }
  }

  if (Op::kSums && out.column_sums) {
    // Over the four row groups of a warp, then over the warps, in fixed order.
    __syncthreads();
    auto* shared = reinterpret_cast<float*>(words[0]);  // (warps, kCols)
#pragma unroll
    for (int o = 0; o < Op::kOutputs; ++o) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        float total = sums[o][j];
        total += __shfl_xor_sync(0xFFFFFFFFu, total, 8);
        total += __shfl_xor_sync(0xFFFFFFFFu, total, 16);
        if (ElementTile::lane() < 8) {
          shared[ElementTile::warp() * ElementTile::kCols + ElementTile::col() + j] = total;
        }
      }
      __syncthreads();
      const int c = static_cast<int>(threadIdx.x);
      if (c < ElementTile::kCols && tile_col + c < out.cols) {
        float total = 0.0f;
        for (int w = 0; w < ElementTile::kThreads / 32; ++w) total += shared[w * ElementTile::kCols + c];
        out.column_sums[blockIdx.y * out.width + op.column(tile_col + c, o)] = total;
      }
      __syncthreads();
    }
  }
  if (cast.record) record_amax(amax, cast, gridDim.x * gridDim.y);
}

}  // namespace octet::device

namespace octet {

// column_sum[c] += sum of the partials (count, width), in their order.
void add_partials(CudaBackend& backend, Tensor column_sum, const float* partials, int64_t count,
                  int64_t width, const char* op);

// What the kernel that computes an operand writes itself, and what is left for afterwards.
template <class T>
struct OperandPlan {
  T* dense = nullptr;
  device::CastTarget cast;
  bool cast_after = false;
  bool blocks_after = false;
};

// The FP8 forms with one scale for all.
inline device::CastTarget cast_target(const Quantized& fp8) {
  device::CastTarget target;
  target.rowwise = static_cast<uint8_t*>(fp8.rowwise.codes.data);
  target.colwise = static_cast<uint8_t*>(fp8.colwise.codes.data);
  target.slot = fp8.slot;
  target.row_e5m2 = fp8.rule.format_rowwise == DType::E5M2;
  target.col_e5m2 = fp8.rule.format_colwise == DType::E5M2;
  target.margin = fp8.rule.margin;
  return target;
}

// Throws Error where the FP8 form does not fit the dense one or its own rule.
void check_operand(const Operand& operand, const char* op);

template <class T>
OperandPlan<T> plan_operand(const Operand& operand, const char* op) {
  check_operand(operand, op);
  OperandPlan<T> plan;
  plan.dense = static_cast<T*>(operand.dense.data);
  if (!operand.fp8) return plan;
  const Quantized& fp8 = *operand.fp8;
  if (fp8.rule.granularity != Granularity::Tensor) {
    plan.blocks_after = true;
    return plan;
  }
  plan.cast = cast_target(fp8);
  plan.cast.record = true;
  if (fp8.rule.delayed) {
    if (!operand.keep_dense && !fp8.stats) plan.dense = nullptr;
  } else {
    plan.cast.set_scale = true;
    plan.cast.rowwise = plan.cast.colwise = nullptr;
    plan.cast_after = true;
  }
  return plan;
}

inline bool aligned16(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

// Launches tile_kernel over all tiles. `vector` promises what Op asks for; the pointers of `out` are checked
// here.
template <class Op>
void launch_tiles(CudaBackend& backend, const char* name, const Op& op,
                  device::TileOutput<typename Op::Type> out, bool vector, Tensor column_sum = {}) {
  using device::ElementTile;
  if (out.rows == 0 || out.cols == 0) return;
  const int64_t across = div_up(out.cols, ElementTile::kCols);
  const int64_t down = div_up(out.rows, ElementTile::kRows);
  // Each block walks down a strip of tiles; about eight blocks for each multiprocessor.
  const int64_t strip = std::max<int64_t>(1, across * down / (8 * backend.sm_count()));
  const dim3 grid(narrow<unsigned>(across), narrow<unsigned>(std::min<int64_t>(div_up(down, strip), 65535)));
  Scratch scratch = backend.scratch(name);
  if (column_sum) {
    require(Op::kSums, "[cuda] {}: this op does not sum columns", name);
    require(column_sum.numel() == out.width, "[cuda] {}: column_sum has {} elements, expected {}", name,
            column_sum.numel(), out.width);
    out.column_sums = scratch.take<float>(grid.y * out.width);
  }
  require(!out.cast.colwise || out.rows % 16 != 0 || aligned16(out.cast.colwise),
          "[cuda] {}: the transposed FP8 copy is not 16-byte aligned", name);
  vector = vector && out.width % 8 == 0 && aligned16(out.dense) &&
           reinterpret_cast<uintptr_t>(out.cast.rowwise) % 8 == 0;
  if (vector) {
    device::tile_kernel<Op, true><<<grid, ElementTile::kThreads, 0, backend.stream()>>>(op, out);
  } else {
    device::tile_kernel<Op, false><<<grid, ElementTile::kThreads, 0, backend.stream()>>>(op, out);
  }
  check_launch(name);
  if (column_sum) add_partials(backend, column_sum, out.column_sums, grid.y, out.width, name);
}

// Calls fn(T{}) with the device type of a real dtype.
template <class Function>
void dispatch_real(const char* op, DType dtype, const Function& fn) {
  if (dtype == DType::F32) return fn(float{});
  if (dtype == DType::BF16) return fn(device::Bf16{});
  fail("[cuda] {}: the dtype is {}, expected fp32 or bf16", op, name_of(dtype));
}

}  // namespace octet
