// Products of matrices whose rows lie apart: parts of fused matrices.

#include "tensor/matrix.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/philox.h"
#include "ops/device.h"

namespace octet {
namespace {

constexpr int64_t kRows = 33, kDepth = 48, kCols = 80;

// A whole matrix of some dtype on the host, and the same columns of it cut out.
struct Whole {
  Whole(DType type, int64_t rows, int64_t cols, uint64_t seed)
      : dtype(type), wide(rows * cols), narrow_values(rows * cols) {
    for (size_t i = 0; i < wide.size(); ++i) {
      wide[i] = to_float(to_bf16(Philox(seed).normal(i)));
      narrow_values[i] = to_bf16(wide[i]);
    }
    tensor = {
        type == DType::F32 ? static_cast<void*>(wide.data()) : narrow_values.data(), type, {rows, cols}};
  }
  Matrix part(int64_t begin, int64_t count) const { return Matrix(tensor).columns(begin, count); }
  Whole cut(int64_t begin, int64_t count) const {
    Whole result(dtype, tensor.rows(), count, 0);
    for (int64_t r = 0; r < tensor.rows(); ++r) {
      for (int64_t c = 0; c < count; ++c) {
        const auto from = static_cast<size_t>(r * tensor.cols() + begin + c),
                   to = static_cast<size_t>(r * count + c);
        result.wide[to] = wide[from];
        result.narrow_values[to] = narrow_values[from];
      }
    }
    return result;
  }
  bool operator==(const Whole& other) const {
    if (dtype == DType::F32) return wide == other.wide;
    for (size_t i = 0; i < narrow_values.size(); ++i) {
      if (narrow_values[i].bits != other.narrow_values[i].bits) return false;
    }
    return true;
  }

  DType dtype;
  std::vector<float> wide;
  std::vector<Bf16> narrow_values;
  Tensor tensor;
};

class MatrixTest : public testing::Test {
 protected:
  MatrixTest() : device(make_cpu_device(2)), workspace(1 << 22) {
    device->ops().set_workspace({workspace.data(), DType::U8, {std::ssize(workspace)}});
  }
  std::unique_ptr<Device> device;
  std::vector<uint8_t> workspace;
};

// c's columns 16 to 64 get the product and the others keep what they held; the same bits as from matrices of their own.
TEST_F(MatrixTest, PartsGiveTheBitsOfMatricesOfTheirOwn) {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    for (const bool accumulate : {false, true}) {
      for (const bool transpose_a : {false, true}) {
        for (const bool transpose_b : {false, true}) {
          const Whole a(dtype, transpose_a ? kDepth : kRows, (transpose_a ? kRows : kDepth) + 24, 1);
          const Whole b(dtype, transpose_b ? 48 : kDepth, (transpose_b ? kDepth : 48) + 7, 2);
          Whole c(dtype, kRows, kCols, 3);
          const Whole before = c;
          Whole alone = c.cut(16, 48);
          const Whole bias(dtype, 1, 48, 4);
          GemmOptions options{
              .transpose_a = transpose_a, .transpose_b = transpose_b, .accumulate = accumulate};
          options.bias = bias.tensor.reshaped({48});
          device->ops().gemm(c.part(16, 48), a.part(8, transpose_a ? kRows : kDepth),
                             b.part(5, transpose_b ? kDepth : 48), options);
          device->ops().gemm(alone.tensor, a.cut(8, transpose_a ? kRows : kDepth).tensor,
                             b.cut(5, transpose_b ? kDepth : 48).tensor, options);
          EXPECT_TRUE(c.cut(16, 48) == alone);
          EXPECT_TRUE(c.cut(0, 16) == before.cut(0, 16));
          EXPECT_TRUE(c.cut(64, 16) == before.cut(64, 16));
          EXPECT_FALSE(alone == before.cut(16, 48));
        }
      }
    }
  }
}

TEST_F(MatrixTest, PartsOfFp8MatricesGiveTheSameBits) {
  std::vector<uint8_t> codes_a(kRows * kCols), codes_b(kCols * kCols), cut_a(kRows * 32), cut_b(16 * 32);
  for (size_t i = 0; i < codes_a.size(); ++i) codes_a[i] = to_e4m3(Philox(1).normal(i));
  for (size_t i = 0; i < codes_b.size(); ++i) codes_b[i] = to_e4m3(Philox(2).normal(i));
  for (int64_t r = 0; r < kRows; ++r)
    for (int64_t c = 0; c < 32; ++c)
      cut_a[static_cast<size_t>(r * 32 + c)] = codes_a[static_cast<size_t>(r * kCols + 16 + c)];
  for (int64_t r = 0; r < 16; ++r)
    for (int64_t c = 0; c < 32; ++c)
      cut_b[static_cast<size_t>(r * 32 + c)] = codes_b[static_cast<size_t>((r + 8) * kCols + 40 + c)];
  alignas(16) const float scale_a = 0.5f, scale_b = 0.125f;
  const QuantizedMatrix a{.codes = {codes_a.data(), DType::E4M3, {kRows, kCols}}, .tensor_scale = &scale_a};
  const QuantizedMatrix b{.codes = {codes_b.data(), DType::E4M3, {kCols, kCols}}, .tensor_scale = &scale_b};
  const QuantizedMatrix own_a{.codes = {cut_a.data(), DType::E4M3, {kRows, 32}}, .tensor_scale = &scale_a};
  const QuantizedMatrix own_b{.codes = {cut_b.data(), DType::E4M3, {16, 32}}, .tensor_scale = &scale_b};
  Whole c(DType::F32, kRows, kCols, 3);
  Whole alone(DType::F32, kRows, 16, 4);
  device->ops().gemm_fp8(c.part(10, 16), a.columns(16, 32), b.rows(8, 16).columns(40, 32), {});
  device->ops().gemm_fp8(alone.tensor, own_a, own_b, {});
  EXPECT_TRUE(c.cut(10, 16) == alone);
}

TEST_F(MatrixTest, ColumnsOutsideAreRefused) {
  const Whole a(DType::F32, 2, 8, 1);
  EXPECT_THROW(Matrix(a.tensor).columns(5, 4), Error);
  EXPECT_THROW(Matrix(a.tensor).columns(-1, 4), Error);
  QuantizedMatrix blocks{.codes = {nullptr, DType::E4M3, {2, 256}}, .granularity = Granularity::Row128};
  EXPECT_THROW(blocks.columns(0, 128), Error);
}

}  // namespace
}  // namespace octet
