#include "backend/cuda/device/tile_kernel.cuh"
#include "backend/op_checks.h"

namespace octet {
namespace device {
namespace {

// One 128 x 128 tile of codes per block, in CodeTile's permuted order. With `vector`, rows of both matrices are whole
// vectors of 16 bytes.
template <bool vector>
__global__ void __launch_bounds__(CodeTile::kThreads)
    transpose_codes_kernel(uint8_t* to, int64_t to_stride, const uint8_t* from, int64_t from_stride,
                           int64_t rows, int64_t cols) {
  __shared__ alignas(16) uint32_t words[CodeTile::kWords];
  constexpr int kChunks = CodeTile::kSize / 16, kSteps = CodeTile::kSize * kChunks / CodeTile::kThreads;
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t tile_row = static_cast<int64_t>(blockIdx.y) * CodeTile::kSize;
  const int64_t tile_col = static_cast<int64_t>(blockIdx.x) * CodeTile::kSize;
  const int first = thread / kChunks, chunk = thread % kChunks;
  const int64_t col = tile_col + 16 * chunk;
  uint4 codes[kSteps];
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const int64_t row = tile_row + first + i * (CodeTile::kThreads / kChunks);
    codes[i] = make_uint4(0, 0, 0, 0);
    if (row >= rows || col >= cols) continue;
    const uint8_t* source = from + row * from_stride + col;
    if constexpr (vector) {
      codes[i] = __ldcs(reinterpret_cast<const uint4*>(source));
    } else {
      uint32_t parts[4] = {};
#pragma unroll
      for (int j = 0; j < 16; ++j) {
        if (col + j < cols) parts[j / 4] |= static_cast<uint32_t>(source[j]) << (8 * (j % 4));
      }
      codes[i] = make_uint4(parts[0], parts[1], parts[2], parts[3]);
    }
  }
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const int row = first + i * (CodeTile::kThreads / kChunks);
    *reinterpret_cast<uint4*>(words + CodeTile::place(row / 16, row, 4 * chunk)) = codes[i];
  }
  __syncthreads();
  CodeTile::write_transposed(words, to, rows, to_stride, vector, tile_row,
                             [&](int c) -> int64_t { return tile_col + c < cols ? tile_col + c : -1; });
}

__global__ void transpose_scales_kernel(float* to, const float* from, int64_t rows, int64_t cols) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i < rows * cols) to[i % cols * rows + i / cols] = from[i];
}

}  // namespace
}  // namespace device

void CudaOps::transpose_fp8(const QuantizedMatrix& to, const QuantizedMatrix& from) {
  using device::CodeTile;
  constexpr const char* op = "transpose_fp8";
  check_transpose_fp8(to, from);
  const OpScope scope(profiler_, OpKind::Quantize, op, bytes_of(to.codes, from.codes));
  const int64_t rows = from.codes.rows(), cols = from.codes.cols();
  if (rows == 0 || cols == 0) return;
  const auto kernel = whole_vectors(to) && whole_vectors(from) ? device::transpose_codes_kernel<true>
                                                               : device::transpose_codes_kernel<false>;
  const dim3 grid(narrow<unsigned>(div_up(cols, CodeTile::kSize)),
                  narrow<unsigned>(div_up(rows, CodeTile::kSize)));
  require(grid.y <= 65535, "[cuda] {}: {} rows are too many", op, rows);
  kernel<<<grid, CodeTile::kThreads, 0, stream()>>>(static_cast<uint8_t*>(to.codes.data), to.row_stride(),
                                                    static_cast<const uint8_t*>(from.codes.data),
                                                    from.row_stride(), rows, cols);
  check_launch(op);
  if (from.granularity != Granularity::Block128) return;
  const int64_t down = div_up(rows, 128), across = div_up(cols, 128);
  device::transpose_scales_kernel<<<narrow<unsigned>(div_up(down * across, 256)), 256, 0, stream()>>>(
      static_cast<float*>(to.scales.data), static_cast<const float*>(from.scales.data), down, across);
  check_launch(op);
}

}  // namespace octet
