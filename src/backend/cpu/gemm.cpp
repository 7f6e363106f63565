#include "backend/cpu/gemm.h"

#include <algorithm>
#include <optional>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/element.h"
#include "backend/cpu/matrix_product.h"

namespace octet {
namespace cpu {
namespace {

struct Tile {
  int64_t rows, cols;
};

constexpr int64_t kLargestTile = 256 * 256;

// A right factor of up to this many numbers is packed once for all tiles. A larger one is packed anew for every tile, so that
// the workspace stays small.
constexpr int64_t kPackedOnce = 1 << 20;

// Tiles are large, because packing their factors takes time. Every thread gets several, because a thread may be slow at
// times. The result does not depend on the tiles.
Tile tile_of(int64_t m, int64_t n, int threads) {
  const auto count = [&](Tile tile) { return div_up(m, tile.rows) * div_up(n, tile.cols); };
  for (const Tile tile : {Tile{256, 256}, Tile{128, 256}, Tile{128, 128}, Tile{64, 128}}) {
    if (threads == 1 || count(tile) >= 4 * threads) return tile;
  }
  return {64, 64};
}

}  // namespace

int64_t gemm_workspace(int64_t m, int64_t n, int64_t k, int threads, bool convert) {
  const int64_t common =
      Scratch::padded(n * 4) + Scratch::padded(std::min(PackedFactor::size(k, n), kPackedOnce) * 4);
  if (!convert) return common;
  return common + Scratch::padded(m * k * 4) + Scratch::padded(n * k * 4) +
         threads * Scratch::padded(kLargestTile * 4);
}

}  // namespace cpu

using cpu::Scratch;

const float* CpuOps::as_floats(const Tensor& x, Scratch& scratch) const {
  return as_floats(Matrix(x), scratch).data;
}

CpuOps::FloatMatrix CpuOps::as_floats(const Matrix& x, Scratch& scratch) const {
  if (x.dtype == DType::F32) return {static_cast<const float*>(x.data), x.stride};
  const int64_t cols = x.cols, stride = x.stride;
  float* result = scratch.take<float>(x.rows * cols);
  const Bf16* values = static_cast<const Bf16*>(x.data);
  if (x.contiguous()) {
    parallel_.for_range(x.rows * cols, 1 << 15, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) result[i] = to_float(values[i]);
    });
  } else {
    parallel_.for_range(x.rows, 16, [=](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        for (int64_t c = 0; c < cols; ++c) result[r * cols + c] = to_float(values[r * stride + c]);
      }
    });
  }
  return {result, cols};
}

void CpuOps::store_floats(const Tensor& x, const float* values) const {
  Bf16* out = x.as<Bf16>();
  parallel_.for_range(x.numel(), 1 << 15, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = to_bf16(values[i]);
  });
}

const float* CpuOps::dequantized(const QuantizedMatrix& x, Scratch& scratch) const {
  const int64_t rows = x.codes.rows(), depth = x.codes.cols(), stride = x.row_stride();
  float* result = scratch.take<float>(rows * depth);
  const uint8_t* codes = x.codes.as<uint8_t>();
  const float* values = fp8_values(x.codes.dtype);
  const int64_t block = x.granularity == Granularity::Tensor ? depth : block_depth(x.granularity);
  const int64_t blocks = block > 0 ? div_up(depth, block) : 0;
  parallel_.for_range(rows, 16, [=, &x](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t b = 0; b < blocks; ++b) {
        float scale = 1.0f;  // per-tensor scales multiply the product instead
        if (x.granularity == Granularity::Row128) scale = x.scales.as<float>()[r * blocks + b];
        if (x.granularity == Granularity::Block128) scale = x.scales.as<float>()[r / 128 * blocks + b];
        if (x.granularity == Granularity::Row32) scale = from_e8m0(x.scales.as<uint8_t>()[r * blocks + b]);
        const int64_t last = std::min(depth, (b + 1) * block);
        for (int64_t i = b * block; i < last; ++i)
          result[r * depth + i] = values[codes[r * stride + i]] * scale;
      }
    }
  });
  return result;
}

void CpuOps::multiply(const Matrix& c, const Product& product, const GemmOptions& options, Scratch& scratch) {
  const auto& [a, b, m, n, k, transpose_a, transpose_b, alpha] = product;
  auto* c_floats = static_cast<float*>(c.data);
  auto* c_bf16 = static_cast<Bf16*>(c.data);
  const float* bias = nullptr;
  if (options.bias) {
    cpu::require_real("gemm", "bias", options.bias);
    require(options.bias.numel() == n, "[gemm] the bias has {} elements, expected {}", options.bias.numel(),
            n);
    bias = as_floats(options.bias, scratch);
  }
  const cpu::Tile tile = cpu::tile_of(m, n, parallel_.threads());
  const bool rounds = c.dtype == DType::BF16;
  float* tiles = rounds ? scratch.take<float>(parallel_.threads() * cpu::kLargestTile) : nullptr;
  const int64_t tile_cols = div_up(n, tile.cols);
  const cpu::Factor left{a.data, a.stride, transpose_a}, right{b.data, b.stride, transpose_b};
  std::optional<cpu::PackedFactor> packed;
  if (const int64_t size = cpu::PackedFactor::size(k, n); m > tile.rows && size <= cpu::kPackedOnce) {
    packed.emplace(scratch.take<float>(size), k);
    parallel_.for_range(n, cpu::PackedFactor::kColumns,
                        [&](int64_t begin, int64_t end) { packed->pack(right, begin, end); });
  }

  parallel_.for_each(div_up(m, tile.rows) * tile_cols, [&](int64_t task, int thread) {
    const int64_t row = task / tile_cols * tile.rows, col = task % tile_cols * tile.cols;
    const int64_t rows = std::min(tile.rows, m - row), cols = std::min(tile.cols, n - col);
    // The product is written to C directly, or to a tile that is then rounded into C.
    float* out = rounds ? tiles + thread * cpu::kLargestTile : c_floats + row * c.stride + col;
    const int64_t stride = rounds ? cols : c.stride;
    const bool keeps = options.accumulate && !rounds;
    if (bias && keeps) {
      for (int64_t i = 0; i < rows; ++i) {
        float* line = out + i * stride;
        for (int64_t j = 0; j < cols; ++j) line[j] += bias[col + j];
      }
    }
    const auto multiply_by = [&](const auto& factor) {
      cpu::matrix_product(out, stride, left.from(row, 0), factor.from(0, col), rows, cols, k, alpha, keeps,
                          bias && !keeps ? bias + col : nullptr);
    };
    if (packed) {
      multiply_by(*packed);
    } else {
      multiply_by(right);
    }
    if (!rounds) return;
    for (int64_t i = 0; i < rows; ++i) {
      Bf16* line = c_bf16 + (row + i) * c.stride + col;
      const float* values = out + i * stride;
      if (options.accumulate) {
        for (int64_t j = 0; j < cols; ++j) line[j] = to_bf16(to_float(line[j]) + values[j]);
      } else {
        for (int64_t j = 0; j < cols; ++j) line[j] = to_bf16(values[j]);
      }
    }
  });
}

void CpuOps::gemm(Matrix c, Matrix a, Matrix b, const GemmOptions& options) {
  const cpu::HostScope scope =
      timed(gemm_label("gemm", options.part, c.rows, c.cols, options.transpose_a ? a.rows : a.cols));
  cpu::require_real("gemm", "a", a);
  cpu::require_dtype("gemm", "b", b, a.dtype);
  require(c.dtype == a.dtype || c.dtype == DType::F32, "[gemm] c is {}, expected {} or fp32",
          name_of(c.dtype), name_of(a.dtype));
  const int64_t m = options.transpose_a ? a.cols : a.rows, k = options.transpose_a ? a.rows : a.cols;
  const int64_t n = options.transpose_b ? b.rows : b.cols, depth = options.transpose_b ? b.cols : b.rows;
  require(depth == k && c.rows == m && c.cols == n,
          "[gemm] c {} = a {}{} b {}{}: the shapes do not fit together", c.to_string(), a.to_string(),
          options.transpose_a ? " transposed" : "", b.to_string(), options.transpose_b ? " transposed" : "");
  Scratch space = scratch();
  Product product{as_floats(a, space), as_floats(b, space), m, n, k, options.transpose_a,
                  options.transpose_b, options.alpha};
  multiply(c, product, options, space);
}

void CpuOps::gemm_fp8(Matrix c, const QuantizedMatrix& a, const QuantizedMatrix& b,
                      const GemmOptions& options) {
  const cpu::HostScope scope = timed(gemm_label("gemm_fp8", options.part, c.rows, c.cols, a.codes.cols()));
  require(is_fp8(a.codes.dtype) && is_fp8(b.codes.dtype), "[gemm_fp8] operands are {} and {}, expected FP8",
          name_of(a.codes.dtype), name_of(b.codes.dtype));
  require(a.codes.dtype == DType::E4M3 || b.codes.dtype == DType::E4M3,
          "[gemm_fp8] both operands are e5m2, expected at least one e4m3");
  cpu::require_real("gemm_fp8", "c", c);
  const int64_t m = a.codes.rows(), n = b.codes.rows(), k = a.codes.cols();
  require(b.codes.cols() == k && c.rows == m && c.cols == n,
          "[gemm_fp8] c {} = a {} b {} transposed: the shapes do not fit together", c.to_string(),
          a.codes.shape.to_string(), b.codes.shape.to_string());
  const auto factor = [](const QuantizedMatrix& x) {
    return x.granularity == Granularity::Tensor ? *x.tensor_scale : 1.0f;
  };
  Scratch space = scratch();
  const float* a_values = dequantized(a, space);
  const float* b_values = dequantized(b, space);
  Product product{
      {a_values, k}, {b_values, k}, m, n, k, false, true, options.alpha * (factor(a) * factor(b))};
  multiply(c, product, options, space);
}

}  // namespace octet
