#pragma once

#include <algorithm>
#include <initializer_list>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/device/block_kernel.cuh"
#include "backend/cuda/device/tile_output.cuh"

namespace octet::device {

// The common part of all elementwise ops that feed a Linear: computes tiles of the result and writes all its forms. A
// block walks down a strip of tiles. A warp takes 16 rows of a tile, two at a time: 16 lanes hold a row, and the
// loads of the next kAhead rows are in flight. A thread holds few values at once, so that many warps fit. Addresses
// cost one instruction, because rows are counted from the thread's own place (`at`).
//
// Op: Type (of dense), kOutputs, Raw (what is loaded for 8 columns of a row), kAhead (1, 2, 4 or 8),
//   Op at(row, col)                                the op as seen from there
//   Raw load<vector>(line, count)                  of row `line` from there, up to `count` of 8 columns
//   void compute(raw, float (&)[kOutputs][8])
//   bool kSums                                     column sums can be asked for
//   bool kCopies                                   the result is what was loaded, bit for bit (then Raw is Pack8)
//   bool kBlocks                                   columns of a tile are neighbours in the matrix, in each output
//   int64_t column(col, output)                    in the matrix; 8 aligned columns stay neighbours when vectors
//                                                  are used
template <class Op>
constexpr bool kHasRowErrors = false;  // whether the errors of rows are added to out.row_errors

template <class Op, bool vector, bool sums>
__global__ void __launch_bounds__(CodeTile::kThreads,
                                  sizeof(typename Op::Type) == 2 && !(sums && Op::kOutputs == 2) ? 3 : 2)
    tile_kernel(const Op op, const TileOutput<typename Op::Type> out) {
  using T = typename Op::Type;
  constexpr int kWarps = CodeTile::kThreads / 32, kSteps = CodeTile::kSize / kWarps / 2;
  static_assert(kSteps % Op::kAhead == 0);
  __shared__ alignas(16) uint32_t words[Op::kOutputs][CodeTile::kWords];
  const CastTarget& cast = out.cast;
  const float row_scale = cast.rowwise ? cast.slot->scale_rowwise : 1.0f;
  const float col_scale = cast.colwise ? cast.slot->scale_colwise : 1.0f;
  const bool same_codes = cast.rowwise && row_scale == col_scale && cast.row_e5m2 == cast.col_e5m2;
  const int lane = static_cast<int>(threadIdx.x % 32u), warp = static_cast<int>(threadIdx.x / 32u);
  const int first_line = 2 * kSteps * warp + lane / 16, group = lane % 16;
  const int width = static_cast<int>(out.width);
  const int64_t tile_col = static_cast<int64_t>(blockIdx.x) * CodeTile::kSize, col = tile_col + 8 * group;
  const int64_t count = out.cols - col;
  constexpr bool kRowErrors = kHasRowErrors<Op>;
  static_assert(!kRowErrors || Op::kOutputs == 1);  // a thread has one error per row
  __shared__ RowErrors<kRowErrors> row_errors;
  if constexpr (kRowErrors) row_errors.clear();
  MagnitudeMax<T> amax;
  float column_sums[Op::kOutputs][8] = {};

  // This thread has every second row of a tile from its first row on; `lines` rows from there are inside the matrix.
  // The loads of a tile begin before the tile above it is written transposed.
  Op here = op;
  int lines = 0;
  typename Op::Raw raw[Op::kAhead];
  const auto begin_tile = [&](int64_t tile_row) {
    if (tile_row >= out.rows) return;
    const int64_t first_row = tile_row + first_line;
    here = op.at(first_row, col);
    lines = count > 0 ? static_cast<int>(min(int64_t{2 * kSteps}, out.rows - first_row)) : 0;
#pragma unroll
    for (int a = 0; a < Op::kAhead; ++a) {
      if (2 * a < lines) raw[a] = here.template load<vector>(2 * a, count);
    }
  };
  const int64_t stride = gridDim.y * int64_t{CodeTile::kSize};
  int64_t tile_row = blockIdx.y * int64_t{CodeTile::kSize};
  begin_tile(tile_row);
  for (; tile_row < out.rows; tile_row += stride) {
    const int64_t row_start = (tile_row + first_line) * out.width;
#pragma unroll 1
    for (int base = 0; base < lines; base += 2 * Op::kAhead) {
#pragma unroll
      for (int a = 0; a < Op::kAhead; ++a) {
        const int line = base + 2 * a;
        if (line >= lines) break;
        Pack8<T> kept[Op::kOutputs]{};
        if constexpr (Op::kCopies) {
          kept[0] = raw[a];
        } else {
          float values[Op::kOutputs][8];
          here.compute(raw[a], values);
#pragma unroll
          for (int o = 0; o < Op::kOutputs; ++o) kept[o] = Pack8<T>::pack(values[o]);
        }
        if (line + 2 * Op::kAhead < lines) {
          raw[a] = here.template load<vector>(line + 2 * Op::kAhead, count);
        }
#pragma unroll
        for (int o = 0; o < Op::kOutputs; ++o) {
          if constexpr (!vector) kept[o] = first_of(kept[o], count);
          amax.add(kept[o]);
          if constexpr (sums) {
#pragma unroll
            for (int j = 0; j < 8; ++j) column_sums[o][j] += kept[o].at(j);
          }
          uint2 codes{};
          if (cast.rowwise) codes = encode8(kept[o], row_scale, cast.row_e5m2);
          if constexpr (kRowErrors) {
            if (!cast.rowwise) codes = encode8(kept[o], col_scale, cast.col_e5m2);
            row_errors.put(first_line + line, group,
                           row_error(kept[o], codes, cast.rowwise ? row_scale : col_scale,
                                     cast.rowwise ? cast.row_e5m2 : cast.col_e5m2));
          }
          if constexpr (vector) {
            const int64_t start = row_start + op.column(col, o);
            if (out.dense) kept[o].store(out.dense + start + line * width);
            if (cast.rowwise) store_codes<true>(cast.rowwise + start + line * width, codes, 8);
          } else {
#pragma unroll
            for (int j = 0; j < 8; ++j) {
              if (j >= count) continue;
              const int64_t place = row_start + op.column(col + j, o) + line * width;
              if (out.dense) out.dense[place] = kept[o].element(j);
              const uint32_t four = j < 4 ? codes.x : codes.y;
              if (cast.rowwise) cast.rowwise[place] = static_cast<uint8_t>(four >> (8 * (j % 4)));
            }
          }
          if (cast.colwise) {
            if (!same_codes) codes = encode8(kept[o], col_scale, cast.col_e5m2);
            CodeTile::put(words[o], warp, first_line + line, group, codes);
          }
        }
      }
    }
    begin_tile(tile_row + stride);
    if (!cast.colwise && !kRowErrors) continue;
    __syncthreads();
    if constexpr (kRowErrors) row_errors.add_to(out.row_errors, tile_row, out.rows);
    if (cast.colwise) {
#pragma unroll
      for (int o = 0; o < Op::kOutputs; ++o) {
        CodeTile::write_transposed(words[o], cast.colwise, out.rows, tile_row, [&](int c) -> int64_t {
          return tile_col + c < out.cols ? op.column(tile_col + c, o) : -1;
        });
      }
    }
    __syncthreads();
  }

  if constexpr (sums) {
    write_column_sums(reinterpret_cast<float*>(words[0]), column_sums, out, [&](int c, int o) -> int64_t {
      return tile_col + c < out.cols ? op.column(tile_col + c, o) : -1;
    });
  }
  if (cast.record) record_amax(amax.bits(), cast, gridDim.x * gridDim.y);
}

}  // namespace octet::device

namespace octet {

// sum[c] += the sum of the partials (count, width), in their order; does nothing for absent ones. At most three at
// once.
struct PartialSum {
  Tensor sum;
  const float* partials;
};
void add_partials(CudaOps& ops, std::initializer_list<PartialSum> sums, int64_t count, int64_t width,
                  const char* op);

// The forms of an operand that its kernel writes itself, and those that later kernels write.
template <class T>
struct OperandPlan {
  T* dense = nullptr;
  device::CastTarget cast;
  device::BlockTarget blocks;  // see fuse_blocks
  bool cast_after = false;
  bool blocks_after = false;
};

// The FP8 forms with one scale for all.
inline device::CastTarget cast_target(const Quantized& fp8) {
  device::CastTarget target;
  target.rowwise = static_cast<uint8_t*>(fp8.rowwise.codes.data);
  target.colwise = static_cast<uint8_t*>(fp8.colwise.codes.data);
  target.slot = fp8.slot;
  target.row_e5m2 = fp8.rule().format_rowwise == DType::E5M2;
  target.col_e5m2 = fp8.rule().format_colwise == DType::E5M2;
  target.margin = fp8.rule().margin;
  return target;
}

// The FP8 forms with a scale per block.
inline device::BlockTarget block_target(const Quantized& fp8) {
  const auto copy = [](const QuantizedMatrix& matrix, DType format) {
    return device::BlockCopy{static_cast<uint8_t*>(matrix.codes.data), matrix.scales.data,
                             format == DType::E5M2};
  };
  return {.rowwise = copy(fp8.rowwise, fp8.rule().format_rowwise),
          .colwise = copy(fp8.colwise, fp8.rule().format_colwise),
          .slot = fp8.slot,
          .granularity = fp8.rule().granularity,
          .pow2 = fp8.rule().pow2_scales};
}

// Throws Error if the FP8 form does not match the dense one or its own rule.
void check_operand(const Operand& operand, const char* op);

template <class T>
OperandPlan<T> plan_operand(const Operand& operand, const char* op) {
  check_operand(operand, op);
  OperandPlan<T> plan;
  plan.dense = static_cast<T*>(operand.dense.data);
  if (!operand.fp8) return plan;
  const Quantized& fp8 = *operand.fp8;
  if (fp8.rule().granularity != Granularity::Tensor) {
    plan.blocks_after = true;
    return plan;
  }
  plan.cast = cast_target(fp8);
  plan.cast.record = true;
  if (fp8.keeps_scale()) {
    if (!operand.keep_dense && !fp8.stats()) plan.dense = nullptr;
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

inline bool aligned8(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % 8 == 0;
}

// Whether rows of codes are whole vectors of 16.
inline bool whole_vectors(const QuantizedMatrix& x) {
  return x.codes.cols() % 16 == 0 && x.row_stride() % 16 == 0 && aligned16(x.codes.data);
}

// Lets the kernel of a tiled op cast blocks itself where it can, instead of a pass after it. `vector`: as for
// launch_tiles. `op_cols`: columns of the op.
template <class Op, class T>
void fuse_blocks(OperandPlan<T>& plan, const Operand& operand, bool vector, int64_t op_cols) {
  if constexpr (device::kCastsBlocks<Op>) {
    if (!plan.blocks_after || !vector) return;
    const Quantized& fp8 = *operand.fp8;
    // Only weights have square blocks. Each output of a tile must be one block.
    if (fp8.rule().granularity == Granularity::Block128) return;
    if (Op::kOutputs > 1 && op_cols % device::kTileSize != 0) return;
    if (operand.dense.cols() % 8 != 0 || !aligned16(operand.dense.data) || !aligned8(fp8.rowwise.codes.data))
      return;
    plan.blocks = block_target(fp8);
    plan.blocks_after = false;
    if (!operand.keep_dense && !fp8.stats()) plan.dense = nullptr;
  }
}

// Calls launch<vector, sums>(grid, out) for a kernel that walks over all tiles, then adds up its column sums. `vector`
// says that the inputs meet the op's conditions for vector loads; the pointers of `out` are checked here. Partial sums
// lie in `scratch`: an op that has taken some of its memory itself passes it, so that they do not overwrite that.
template <bool has_vectors, bool has_sums, class T, class Launch>
void launch_over_tiles(CudaOps& ops, const char* name, device::TileOutput<T> out, bool vector,
                       Tensor column_sum, const Scratch* scratch, const Launch& launch) {
  using device::CodeTile;
  if (out.rows == 0 || out.cols == 0) return;
  require(out.width < 1 << 24, "[cuda] {}: rows of {} are too long", name, out.width);
  require(out.rows < 1 << 30, "[cuda] {}: {} rows are too many", name, out.rows);
  const int64_t across = div_up(out.cols, CodeTile::kSize), down = div_up(out.rows, CodeTile::kSize);
  // Each block walks down a strip of tiles; about sixteen blocks per multiprocessor.
  const int64_t strip = std::max<int64_t>(1, across * down / (16 * ops.sm_count()));
  const dim3 grid(narrow<unsigned>(across), narrow<unsigned>(std::min<int64_t>(div_up(down, strip), 65535)));
  Scratch left = scratch ? *scratch : ops.scratch(name);
  if (column_sum) {
    require(has_sums, "[cuda] {}: this op does not sum columns", name);
    require(column_sum.numel() == out.width, "[cuda] {}: column_sum has {} elements, expected {}", name,
            column_sum.numel(), out.width);
    out.column_sums = left.take<float>(grid.y * out.width);
  }
  const uint8_t* colwise = out.blocks.slot ? out.blocks.colwise.codes : out.cast.colwise;
  require(!colwise || out.rows % 16 != 0 || aligned16(colwise),
          "[cuda] {}: the transposed FP8 copy is not 16-byte aligned", name);
  vector = vector && out.width % 8 == 0 && aligned16(out.dense) && aligned8(out.cast.rowwise) &&
           aligned8(out.blocks.rowwise.codes);
  const auto launch_with = [&]<bool with_vectors>() {
    if constexpr (has_sums) {
      if (column_sum) return launch.template operator()<with_vectors, true>(grid, out);
    }
    launch.template operator()<with_vectors, false>(grid, out);
  };
  if constexpr (has_vectors) {
    vector ? launch_with.template operator()<true>() : launch_with.template operator()<false>();
  } else {
    launch_with.template operator()<false>();
  }
  check_launch(name);
  add_partials(ops, {{column_sum, out.column_sums}}, grid.y, out.width, name);
}

// Runs block_tile_kernel for an output with blocks (see fuse_blocks).
template <class Op>
void launch_block_tiles(CudaOps& ops, const char* name, const Op& op,
                        const device::TileOutput<typename Op::Type>& output, Tensor column_sum = {},
                        const Scratch* scratch = nullptr) {
  launch_over_tiles<true, Op::kSums>(
      ops, name, output, true, column_sum, scratch, [&]<bool vector, bool sums>(dim3 grid, const auto& out) {
        if constexpr (vector) {
          device::block_tile_kernel<Op, true, sums, false>
              <<<grid, device::CodeTile::kThreads, 0, ops.stream()>>>(op, out);
        } else {
          fail("[cuda] {}: rows of {} are cast to blocks, expected whole aligned vectors", name, out.width);
        }
      });
}

// Runs tile_kernel, or block_tile_kernel if the output has blocks. `vector`: as for launch_over_tiles. Without
// `has_vectors`, vectors are never used.
template <bool has_vectors = true, class Op>
void launch_tiles(CudaOps& ops, const char* name, const Op& op,
                  const device::TileOutput<typename Op::Type>& output, bool vector, Tensor column_sum = {},
                  const Scratch* scratch = nullptr) {
  if constexpr (device::kCastsBlocks<Op> && !Op::kCopies) {
    if (output.blocks.slot) return launch_block_tiles(ops, name, op, output, column_sum, scratch);
  }
  launch_over_tiles<has_vectors, Op::kSums>(ops, name, output, vector, column_sum, scratch,
                                            [&]<bool with_vectors, bool sums>(dim3 grid, const auto& out) {
                                              device::tile_kernel<Op, with_vectors, sums>
                                                  <<<grid, device::CodeTile::kThreads, 0, ops.stream()>>>(
                                                      op, out);
                                            });
}

// Calls fn(T{}) with the device type of a real dtype.
template <class Function>
void dispatch_real(const char* op, DType dtype, const Function& fn) {
  if (dtype == DType::F32) return fn(float{});
  if (dtype == DType::BF16) return fn(device::Bf16{});
  fail("[cuda] {}: the dtype is {}, expected fp32 or bf16", op, name_of(dtype));
}

}  // namespace octet
