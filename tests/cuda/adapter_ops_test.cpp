#include <cmath>

#include "cuda/fixture.h"
#include "support/op_case.h"

// The ops that adapters add, at the sizes of models and beyond what the op table has: every code, NaN, recordings.
// Small and odd sizes are in the op table.

namespace octet::test {
namespace {

using CudaAdapterOps = CudaTest;

// Sums of tens of thousands of products in fp32. The tensor cores cut the last bit off where a CPU rounds it.
constexpr Tolerance kLongSums{3e-5, 5e-4};

std::vector<double> values_of(Side& side, const Tensor& x) {
  return to_doubles(x.dtype, side.bytes(x));
}

// Random codes other than NaN and Inf. They repeat after a while, at other places of the rows.
Tensor random_codes(Side& side, DType format, int64_t rows, int64_t cols, uint64_t seed) {
  constexpr size_t kPeriod = 1000003;
  std::vector<uint8_t> codes(static_cast<size_t>(rows * cols));
  const uint8_t largest = format == DType::E5M2 ? 0x7B : 0x7E;
  for (size_t i = 0; i < std::min(kPeriod, codes.size()); ++i) {
    const auto code = static_cast<uint8_t>(Philox(seed).words(i)[0]);
    codes[i] = (code & 0x7F) <= largest ? code : static_cast<uint8_t>(code & 0x8F);
  }
  for (size_t i = kPeriod; i < codes.size(); ++i) codes[i] = codes[i - kPeriod];
  const Tensor result = side.tensor(format, {rows, cols});
  side->copy_to_device(result, codes.data());
  return result;
}

struct NarrowSizes {
  int64_t rows, depth, rank;
  bool transpose;
  DType format = DType::E4M3;
  int64_t wide = 0, first = 0;  // x is columns [first, first + depth) of so many
};

struct NarrowResults {
  std::vector<double> u, g;
};

NarrowResults run_narrow(Side& side, const NarrowSizes& sizes) {
  const auto& [rows, depth, rank, transpose, format, given_wide, first] = sizes;
  const int64_t wide = std::max(given_wide, depth);
  const Tensor scale = side.upload(DType::F32, {4}, {0.02f, 0, 0, 0});
  const QuantizedMatrix all{.codes = random_codes(side, format, rows, wide, 1),
                            .tensor_scale = static_cast<const float*>(scale.data)};
  const QuantizedMatrix x = all.columns(first, depth);
  const Shape shape = transpose ? Shape{rank, depth} : Shape{depth, rank};
  const Tensor w = side.upload(DType::BF16, shape, normal_values(depth * rank, 2, 0.01f));
  const Tensor u = side.tensor(DType::BF16, {rows, rank});
  const Tensor du = side.upload(DType::BF16, {rows, rank}, normal_values(rows * rank, 3));
  const Tensor g = side.tensor(DType::F32, shape);
  side->zero(g);
  side->ops().narrow_product(u, x, w, transpose, 2.0f);
  for (const float alpha : {2.0f, 0.5f})
    side->ops().narrow_product_over_rows(g, x, du, transpose, alpha, true);
  return {values_of(side, u), values_of(side, g)};
}

TEST_F(CudaAdapterOps, NarrowProductsAgreeWithCpuAtTheSizesOfModels) {
  const DType e5m2 = DType::E5M2;
  std::vector<NarrowSizes> all = {
      {8192, 4096, 48, true},
      {8192, 14336, 16, true},
      {8200, 4096, 192, true, e5m2},
      {4096, 8192, 32, true},
      {8192, 1024, 16, false, e5m2, 6144, 4096},
      {8192, 4096, 64, false, e5m2, 6144, 0},
      {4096, 28672, 16, false, e5m2, 57344, 28672},
      {16384, 2048, 128, false},
      {65, 896, 24, true},
      {1, 4096, 48, true},
      {1000, 4112, 512, false},
      {33000, 768, 16, true},
  };
  if (under_sanitizer()) all = {{520, 1040, 48, true}, {300, 400, 192, false, e5m2, 528, 64}};
  for (const NarrowSizes& sizes : all) {
    const size_t cuda_mark = cuda->mark(), cpu_mark = cpu->mark();
    const NarrowResults got = run_narrow(*cuda, sizes), expected = run_narrow(*cpu, sizes);
    const std::string what = fmt::format("({}, {}) of rank {}{}", sizes.rows, sizes.depth, sizes.rank,
                                         sizes.transpose ? ", transposed" : "");
    EXPECT_EQ(mismatch(got.u, expected.u, kBf16, 0, static_cast<size_t>(sizes.rank)), "") << what;
    EXPECT_EQ(mismatch(got.g, expected.g, kLongSums, 0,
                       static_cast<size_t>(sizes.transpose ? sizes.depth : sizes.rank)),
              "")
        << what << ", over rows";
    cuda->release(cuda_mark);
    cpu->release(cpu_mark);
  }
}

// Row i of x has code i alone, so that the results are the values of all codes. Inf may become NaN.
TEST_F(CudaAdapterOps, NarrowProductsKnowEveryCode) {
  for (const DType format : {DType::E4M3, DType::E5M2}) {
    for (const DType dtype : {DType::BF16, DType::F32}) {
      for (const bool transpose : {false, true}) {
        std::vector<uint8_t> codes(256 * 256);
        for (size_t i = 0; i < 256; ++i) codes[i * 256 + i] = static_cast<uint8_t>(i);
        const Tensor x = cuda->tensor(format, {256, 256});
        (*cuda)->copy_to_device(x, codes.data());
        const Tensor scale = cuda->upload(DType::F32, {4}, {0.5f, 0, 0, 0});
        const QuantizedMatrix x8{.codes = x, .tensor_scale = static_cast<const float*>(scale.data)};
        const std::vector<float> ones(256, 1.0f);
        const Tensor w = cuda->upload(dtype, transpose ? Shape{1, 256} : Shape{256, 1}, ones);
        const Tensor column = cuda->upload(dtype, {256, 1}, ones), u = cuda->tensor(dtype, {256, 1});
        const Tensor g = cuda->tensor(DType::F32, transpose ? Shape{1, 256} : Shape{256, 1});
        (*cuda)->ops().narrow_product(u, x8, w, transpose, 4.0f);
        (*cuda)->ops().narrow_product_over_rows(g, x8, column, transpose, 4.0f, false);
        const std::vector<double> results[] = {values_of(*cuda, u), values_of(*cuda, g)};
        for (const std::vector<double>& result : results) {
          for (size_t i = 0; i < 256; ++i) {
            const double expected = 2.0 * static_cast<double>(fp8_values(format)[i]);
            if (std::isfinite(expected)) {
              EXPECT_EQ(result[i], expected) << name_of(format) << ", " << name_of(dtype) << ", code " << i;
            } else {
              EXPECT_FALSE(std::isfinite(result[i]))
                  << name_of(format) << ", " << name_of(dtype) << ", code " << i;
            }
          }
        }
      }
    }
  }
}

// NaN in one element of x: in its row of u and in its column of g, and nowhere else.
TEST_F(CudaAdapterOps, NarrowProductsKeepNan) {
  constexpr int64_t rows = 700, depth = 1040, rank = 48, row = 517, column = 1029;
  for (const DType format : {DType::E4M3, DType::E5M2}) {
    for (const bool transpose : {false, true}) {
      const Tensor x = random_codes(*cuda, format, rows, depth, 1);
      const uint8_t nan = 0xFF;
      (*cuda)->copy_to_device({static_cast<uint8_t*>(x.data) + row * depth + column, DType::U8, {1}}, &nan);
      const Tensor scale = cuda->upload(DType::F32, {4}, {0.5f, 0, 0, 0});
      const QuantizedMatrix x8{.codes = x, .tensor_scale = static_cast<const float*>(scale.data)};
      const Shape shape = transpose ? Shape{rank, depth} : Shape{depth, rank};
      const Tensor w = cuda->upload(DType::BF16, shape, normal_values(depth * rank, 2));
      const Tensor du = cuda->upload(DType::BF16, {rows, rank}, normal_values(rows * rank, 3));
      const Tensor u = cuda->tensor(DType::BF16, {rows, rank}), g = cuda->tensor(DType::F32, shape);
      (*cuda)->ops().narrow_product(u, x8, w, transpose, 1.0f);
      (*cuda)->ops().narrow_product_over_rows(g, x8, du, transpose, 1.0f, false);
      const std::vector<double> us = values_of(*cuda, u), gs = values_of(*cuda, g);
      int64_t wrong = 0;
      for (int64_t i = 0; i < rows * rank; ++i)
        wrong += std::isnan(us[static_cast<size_t>(i)]) != (i / rank == row);
      EXPECT_EQ(wrong, 0) << "of u, " << name_of(format);
      for (int64_t i = 0; i < depth * rank; ++i) {
        wrong += std::isnan(gs[static_cast<size_t>(i)]) != ((transpose ? i % depth : i / rank) == column);
      }
      EXPECT_EQ(wrong, 0) << "of g, " << name_of(format);
    }
  }
}

// All ops of an adapter in a recording: with new content of x and the seed, replays give what plain calls give.
TEST_F(CudaAdapterOps, CanBeRecorded) {
  constexpr int64_t rows = 1024, depth = 2048, rank = 16;
  const Tensor x = cuda->tensor(DType::E4M3, {rows, depth}),
               turned = cuda->tensor(DType::E4M3, {depth, rows});
  const Tensor scale = cuda->upload(DType::F32, {4}, {0.5f, 0, 0, 0}), seed = cuda->tensor(DType::I32, {2});
  const Tensor w = cuda->upload(DType::BF16, {rank, depth}, normal_values(rank * depth, 2));
  const Tensor u = cuda->tensor(DType::BF16, {rows, rank}), few = cuda->tensor(DType::BF16, {rows / 2, rank});
  const Tensor back = cuda->tensor(DType::BF16, {rows, rank}), g = cuda->tensor(DType::F32, {rank, depth});
  const Tensor places = cuda->tensor(DType::I32, {rows / 2});
  std::vector<int32_t> odd(rows / 2);
  for (size_t i = 0; i < odd.size(); ++i) odd[i] = i % 7 == 3 ? -1 : static_cast<int32_t>(2 * i + 1);
  (*cuda)->copy_to_device(places, odd.data());
  const auto work = [&] {
    Ops& ops = (*cuda)->ops();
    const QuantizedMatrix x8{.codes = x, .tensor_scale = static_cast<const float*>(scale.data)};
    ops.transpose_fp8({.codes = turned, .tensor_scale = x8.tensor_scale}, x8);
    ops.narrow_product(u, x8, w, true, 2.0f);
    ops.dropout(u, u, 0.25f, seed, 9, false);
    ops.gather_rows(few, u, places);
    ops.scatter_rows(back, few, places);
    ops.narrow_product_over_rows(g, x8, back, true, 2.0f, false);
  };
  const int64_t replayed = (*cuda)->graph_counts().replayed;
  for (int pass = 0; pass < 4; ++pass) {
    const size_t mark = cuda->mark();
    (*cuda)->copy(x, random_codes(*cuda, DType::E4M3, rows, depth, static_cast<uint64_t>(10 + pass)));
    const int32_t words[] = {pass, 77};
    (*cuda)->copy_to_device(seed, words);
    (*cuda)->repeat("adapter ops", work);
    const auto recorded = {cuda->bytes(turned), cuda->bytes(u), cuda->bytes(back), cuda->bytes(g)};
    for (const Tensor& result : {turned, u, few, back, g}) cuda->fill(result, 0xA5);
    work();
    const auto plain = {cuda->bytes(turned), cuda->bytes(u), cuda->bytes(back), cuda->bytes(g)};
    EXPECT_TRUE(std::equal(recorded.begin(), recorded.end(), plain.begin())) << "pass " << pass;
    cuda->release(mark);
  }
  EXPECT_GE((*cuda)->graph_counts().replayed, replayed + 2);
}

// Parts of matrices, and sizes of many tiles.
TEST_F(CudaAdapterOps, TransposesParts) {
  struct Sizes {
    int64_t rows, cols, wide, to_wide;
  };
  for (const auto& [rows, cols, wide, to_wide] : {Sizes{1024, 2064, 2064, 1024}, Sizes{272, 400, 480, 320},
                                                  Sizes{33, 50, 61, 39}, Sizes{5, 1000, 1000, 5}}) {
    std::vector<std::vector<uint8_t>> results;
    for (Side* side : {cuda, cpu}) {
      const Tensor from = random_codes(*side, DType::E4M3, rows, wide, 1);
      const Tensor to = side->tensor(DType::E4M3, {cols, to_wide});
      (*side)->ops().transpose_fp8(QuantizedMatrix{.codes = to}.columns(to_wide - rows, rows),
                                   QuantizedMatrix{.codes = from}.columns(wide - cols, cols));
      results.push_back(side->bytes(to));
    }
    EXPECT_TRUE(results[0] == results[1]) << "(" << rows << ", " << cols << ")";
  }
}

// What a head does with whole matrices, of sizes at which every warp walks down several times.
TEST_F(CudaAdapterOps, RowsOfALargeHead) {
  struct Results {
    std::vector<double> sum, outer;
    std::vector<uint8_t> shifted;
  };
  const auto run = [](Side& side, int64_t rows, int64_t width) {
    const std::vector<float> values = normal_values(rows * width, 1);
    const Tensor row = side.upload(DType::F32, {width}, normal_values(width, 2));
    const Tensor column = side.upload(DType::F32, {rows}, normal_values(rows, 3));
    std::vector<int32_t> ids(static_cast<size_t>(rows));
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = i % 3 == 0 ? -1 : 5;
    const Tensor targets = side.tensor(DType::I32, {rows});
    side->copy_to_device(targets, ids.data());
    const Tensor from = side.upload(DType::BF16, {rows, width}, values);
    const Tensor outer = side.upload(DType::BF16, {rows, width}, values);
    const Tensor shifted = side.upload(DType::BF16, {rows, width}, values);
    const Tensor sum = side.upload(DType::F32, {width}, normal_values(width, 4));
    side->ops().add_column_sum(sum, from, column, 0.5f);
    side->ops().add_outer(outer, column, row, -0.01f);
    side->ops().shift_rows(shifted, row, targets, 0x1p-10f);
    return Results{values_of(side, sum), values_of(side, outer), side.bytes(shifted)};
  };
  std::vector<std::pair<int64_t, int64_t>> sizes = {{50304, 768}, {2100, 4104}, {20001, 1003}};
  if (under_sanitizer()) sizes = {{2100, 4104}};
  for (const auto& [rows, width] : sizes) {
    SCOPED_TRACE(fmt::format("{} x {}", rows, width));
    const size_t cuda_mark = cuda->mark(), cpu_mark = cpu->mark();
    const Results got = run(*cuda, rows, width), expected = run(*cpu, rows, width);
    EXPECT_EQ(mismatch(got.sum, expected.sum, kLongSums), "");
    EXPECT_EQ(mismatch(got.outer, expected.outer, kBf16), "");
    EXPECT_TRUE(got.shifted == expected.shifted);
    cuda->release(cuda_mark);
    cpu->release(cpu_mark);
  }
}

}  // namespace
}  // namespace octet::test
