#include <algorithm>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/element.h"
#include "backend/cpu/matrix_product.h"
#include "backend/cpu/thread_scratch.h"
#include "backend/op_checks.h"

namespace octet {
namespace {

// Both products go through small fp32 tiles of a thread. The workspace then does not depend on shapes,
// and the order of every sum does not depend on the number of threads.
constexpr int64_t kRows = 64;     // of the result
constexpr int64_t kColumns = 64;  // of the result
constexpr int64_t kDepth = 128;   // of a step of the reduction

struct Tiles {
  float codes[kRows * kDepth];
  float dense[kColumns * kDepth];
  float sums[kRows * kColumns];
};

// A tile of codes as values: (rows, cols).
void load_codes(float* tile, const QuantizedMatrix& x, int64_t row, int64_t col, int64_t rows, int64_t cols) {
  const float* values = fp8_values(x.codes.dtype);
  for (int64_t r = 0; r < rows; ++r) {
    const uint8_t* line = x.codes.as<uint8_t>() + (row + r) * x.row_stride() + col;
    for (int64_t c = 0; c < cols; ++c) tile[r * cols + c] = values[line[c]];
  }
}

void load_dense(float* tile, const Matrix& x, int64_t row, int64_t col, int64_t rows, int64_t cols) {
  cpu::dispatch_real("narrow_product", x.dtype, [&]<class T>(T) {
    for (int64_t r = 0; r < rows; ++r) {
      const T* line = static_cast<const T*>(x.data) + (row + r) * x.stride + col;
      for (int64_t c = 0; c < cols; ++c) tile[r * cols + c] = cpu::load(line[c]);
    }
  });
}

// sums (m, n) += op(a) op(b), all of them contiguous.
void add_product(float* sums, const float* a, bool transpose_a, const float* b, bool transpose_b, int64_t m,
                 int64_t n, int64_t k) {
  cpu::matrix_product(sums, n, {a, transpose_a ? m : k, transpose_a}, {b, transpose_b ? k : n, transpose_b},
                      m, n, k, 1.0f, true);
}

}  // namespace

void CpuOps::narrow_product(Matrix u, const QuantizedMatrix& x, Matrix w, bool transpose_w, float alpha) {
  const cpu::HostScope scope = timed({.kind = OpKind::Adapters, .op = "narrow_product"});
  const NarrowShape shape = check_narrow_product(u, x, w, transpose_w);
  const float factor = alpha * *x.tensor_scale;
  const int64_t across = div_up(shape.rank, kColumns);
  parallel_.for_each(div_up(shape.rows, kRows) * across, [&](int64_t task, int) {
    const int64_t row = task / across * kRows, col = task % across * kColumns;
    const int64_t rows = std::min(kRows, shape.rows - row), cols = std::min(kColumns, shape.rank - col);
    Tiles& tiles = cpu::thread_scratch<Tiles>();
    std::fill_n(tiles.sums, rows * cols, 0.0f);
    for (int64_t k = 0; k < shape.depth; k += kDepth) {
      const int64_t depth = std::min(kDepth, shape.depth - k);
      load_codes(tiles.codes, x, row, k, rows, depth);
      if (transpose_w) {
        load_dense(tiles.dense, w, col, k, cols, depth);
      } else {
        load_dense(tiles.dense, w, k, col, depth, cols);
      }
      add_product(tiles.sums, tiles.codes, false, tiles.dense, transpose_w, rows, cols, depth);
    }
    cpu::dispatch_real("narrow_product", u.dtype, [&]<class T>(T) {
      for (int64_t r = 0; r < rows; ++r) {
        T* line = static_cast<T*>(u.data) + (row + r) * u.stride + col;
        for (int64_t c = 0; c < cols; ++c) line[c] = cpu::store<T>(tiles.sums[r * cols + c] * factor);
      }
    });
  });
}

void CpuOps::narrow_product_over_rows(Matrix g, const QuantizedMatrix& x, Matrix u, bool transpose_g,
                                      float alpha, bool accumulate) {
  const cpu::HostScope scope = timed({.kind = OpKind::Adapters, .op = "narrow_product_over_rows"});
  const NarrowShape shape = check_narrow_product_over_rows(g, x, u, transpose_g);
  const float factor = alpha * *x.tensor_scale;
  const int64_t across = div_up(shape.rank, kColumns);
  parallel_.for_each(div_up(shape.depth, kRows) * across, [&](int64_t task, int) {
    const int64_t row = task / across * kRows, col = task % across * kColumns;
    const int64_t rows = std::min(kRows, shape.depth - row), cols = std::min(kColumns, shape.rank - col);
    Tiles& tiles = cpu::thread_scratch<Tiles>();
    std::fill_n(tiles.sums, rows * cols, 0.0f);
    for (int64_t n = 0; n < shape.rows; n += kDepth) {
      const int64_t depth = std::min(kDepth, shape.rows - n);
      load_codes(tiles.codes, x, n, row, depth, rows);
      load_dense(tiles.dense, u, n, col, depth, cols);
      add_product(tiles.sums, tiles.codes, true, tiles.dense, false, rows, cols, depth);
    }
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        const int64_t i = row + r, j = col + c;
        float& place = static_cast<float*>(g.data)[transpose_g ? j * g.stride + i : i * g.stride + j];
        const float value = tiles.sums[r * cols + c] * factor;
        place = accumulate ? place + value : value;
      }
    }
  });
}

}  // namespace octet
