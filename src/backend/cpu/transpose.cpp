#include <algorithm>

#include "backend/cpu/cpu_ops.h"
#include "backend/op_checks.h"

namespace octet {
namespace {

// to (cols, rows) = from (rows, cols); strides in elements.
template <class T>
void transpose(const cpu::Parallel& parallel, T* to, int64_t to_stride, const T* from, int64_t from_stride,
               int64_t rows, int64_t cols) {
  constexpr int64_t kTile = 64;
  const int64_t across = div_up(cols, kTile);
  parallel.for_each(div_up(rows, kTile) * across, [=](int64_t task, int) {
    const int64_t row = task / across * kTile, col = task % across * kTile;
    const int64_t last_row = std::min(rows, row + kTile), last_col = std::min(cols, col + kTile);
    for (int64_t c = col; c < last_col; ++c) {
      for (int64_t r = row; r < last_row; ++r) to[c * to_stride + r] = from[r * from_stride + c];
    }
  });
}

}  // namespace

void CpuOps::transpose_fp8(const QuantizedMatrix& to, const QuantizedMatrix& from) {
  const cpu::HostScope scope = timed({.kind = OpKind::Quantize, .op = "transpose_fp8"});
  check_transpose_fp8(to, from);
  const int64_t rows = from.codes.rows(), cols = from.codes.cols();
  transpose(parallel_, to.codes.as<uint8_t>(), to.row_stride(), from.codes.as<uint8_t>(), from.row_stride(),
            rows, cols);
  if (from.granularity != Granularity::Block128) return;
  const int64_t down = div_up(rows, 128), across = div_up(cols, 128);
  transpose(parallel_, to.scales.as<float>(), down, from.scales.as<float>(), across, down, across);
}

}  // namespace octet
