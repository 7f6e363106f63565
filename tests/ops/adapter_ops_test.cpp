// The ops that adapters add, apart from what the op table says of them: every code, NaN, aliasing, and what is refused.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/philox.h"
#include "ops/device.h"
#include "support/error_of.h"

namespace octet {
namespace {

class AdapterOps : public testing::Test {
 protected:
  AdapterOps() : device(make_cpu_device(2)), workspace(1 << 20) {
    device->ops().set_workspace({workspace.data(), DType::U8, {std::ssize(workspace)}});
  }
  Ops& ops() { return device->ops(); }

  std::unique_ptr<Device> device;
  std::vector<uint8_t> workspace;
};

// A tensor of any dtype on the host.
struct Host {
  Host(DType dtype, Shape shape) : bytes(static_cast<size_t>(shape.numel()) * size_of(dtype)) {
    tensor = {bytes.data(), dtype, shape};
  }
  template <class T>
  T& at(size_t i) {
    return tensor.as<T>()[i];
  }
  std::vector<uint8_t> bytes;
  Tensor tensor;
};

constexpr float kScale = 0.5f;
QuantizedMatrix codes_of(Host& x) {
  return {.codes = x.tensor, .tensor_scale = &kScale};
}

// Row i of x has code i alone, so that the results are the values of all codes.
TEST_F(AdapterOps, NarrowProductsKnowEveryCode) {
  for (const DType format : {DType::E4M3, DType::E5M2}) {
    Host x(format, {256, 256}), w(DType::F32, {1, 256}), u(DType::F32, {256, 1});
    Host ones(DType::F32, {256, 1}), g(DType::F32, {256, 1});
    for (size_t i = 0; i < 256; ++i) {
      x.at<uint8_t>(i * 256 + i) = static_cast<uint8_t>(i);
      w.at<float>(i) = ones.at<float>(i) = 1.0f;
    }
    ops().narrow_product(u.tensor, codes_of(x), w.tensor, true, 4.0f);
    ops().narrow_product_over_rows(g.tensor, codes_of(x), ones.tensor, false, 4.0f, false);
    for (size_t i = 0; i < 256; ++i) {
      const float expected = 2.0f * fp8_values(format)[i];
      for (const float got : {u.at<float>(i), g.at<float>(i)}) {
        if (std::isnan(expected)) {
          EXPECT_TRUE(std::isnan(got)) << name_of(format) << " " << i;
        } else {
          EXPECT_EQ(got, expected) << name_of(format) << " " << i;
        }
      }
    }
  }
}

// Codes of a wider matrix with NaN around them, and results inside a wider matrix.
TEST_F(AdapterOps, NarrowProductsTouchOnlyTheirParts) {
  Host x(DType::E4M3, {5, 48}), w(DType::F32, {16, 3}), u(DType::F32, {5, 7}), g(DType::F32, {3, 20});
  for (size_t i = 0; i < x.bytes.size(); ++i)
    x.bytes[i] = i % 48 / 16 == 1 ? to_e4m3(Philox(1).normal(i)) : 0x7F;
  for (size_t i = 0; i < 48; ++i) w.at<float>(i) = Philox(2).normal(i);
  for (size_t i = 0; i < 35; ++i) u.at<float>(i) = NAN;
  for (size_t i = 0; i < 60; ++i) g.at<float>(i) = NAN;
  const QuantizedMatrix part = codes_of(x).columns(16, 16);
  ops().narrow_product(Matrix(u.tensor).columns(2, 3), part, w.tensor, false, 1.0f);
  for (size_t i = 0; i < 35; ++i) EXPECT_EQ(std::isfinite(u.at<float>(i)), i % 7 >= 2 && i % 7 < 5) << i;
  ops().narrow_product_over_rows(Matrix(g.tensor).columns(1, 16), part, Matrix(u.tensor).columns(2, 3), true,
                                 1.0f, false);
  for (size_t i = 0; i < 60; ++i) EXPECT_EQ(std::isfinite(g.at<float>(i)), i % 20 >= 1 && i % 20 < 17) << i;
}

TEST_F(AdapterOps, NarrowProductsRefuseWhatDoesNotFit) {
  Host x(DType::E4M3, {4, 32}), real(DType::F32, {4, 32}), w(DType::F32, {8, 32}), wide(DType::BF16, {8, 32});
  Host u(DType::F32, {4, 8}), g(DType::F32, {8, 32}), small(DType::BF16, {4, 8}), ids(DType::I32, {4, 8});
  const auto product = [&](const QuantizedMatrix& codes, Host& to, Host& by, bool transpose) {
    return error_of([&] { ops().narrow_product(to.tensor, codes, by.tensor, transpose, 1.0f); });
  };
  EXPECT_EQ(product(codes_of(real), u, w, true), "[narrow_product] x is fp32, expected FP8");
  EXPECT_EQ(product(codes_of(x), ids, w, true), "[narrow_product] u is int32, expected fp32 or bf16");
  EXPECT_EQ(product(codes_of(x), u, wide, true), "[narrow_product] w is bf16, expected fp32 as u");
  EXPECT_EQ(product(codes_of(x), u, w, false),
            "[narrow_product] u (4, 8) = x (4, 32) w (8, 32): the shapes do not fit together");
  EXPECT_EQ(product(codes_of(x), g, w, true),
            "[narrow_product] u (8, 32) = x (4, 32) w (8, 32) transposed: the shapes do not fit together");
  QuantizedMatrix blocks = codes_of(x);
  blocks.granularity = Granularity::Block128;
  EXPECT_EQ(product(blocks, u, w, true),
            "[narrow_product] x has scales per block or none, expected one scale per tensor");
  EXPECT_EQ(product({.codes = x.tensor}, u, w, true),
            "[narrow_product] x has scales per block or none, expected one scale per tensor");

  const auto over_rows = [&](const QuantizedMatrix& codes, Host& to, Host& by, bool transpose) {
    return error_of(
        [&] { ops().narrow_product_over_rows(to.tensor, codes, by.tensor, transpose, 1.0f, false); });
  };
  EXPECT_EQ(over_rows(codes_of(x), wide, u, true), "[narrow_product_over_rows] g is bf16, expected fp32");
  EXPECT_EQ(over_rows(codes_of(x), g, ids, true),
            "[narrow_product_over_rows] u is int32, expected fp32 or bf16");
  EXPECT_EQ(
      over_rows(codes_of(x), g, u, false),
      "[narrow_product_over_rows] g (8, 32) = x (4, 32) transposed times u (4, 8): the shapes do not fit together");
  EXPECT_EQ(
      over_rows(codes_of(x), g, w, true),
      "[narrow_product_over_rows] g (8, 32) transposed = x (4, 32) transposed times u (8, 32): the shapes do "
      "not fit together");
  EXPECT_EQ(over_rows(codes_of(real), g, u, true), "[narrow_product_over_rows] x is fp32, expected FP8");
  ops().narrow_product_over_rows(g.tensor, codes_of(x), small.tensor, true, 1.0f, false);  // u may be bf16
}

// A part of a matrix into a part of another one.
TEST_F(AdapterOps, TransposeTakesParts) {
  Host from(DType::E5M2, {3, 40}), to(DType::E5M2, {16, 9});
  for (size_t i = 0; i < from.bytes.size(); ++i) from.bytes[i] = static_cast<uint8_t>(i);
  ops().transpose_fp8(codes_of(to).columns(2, 3), codes_of(from).columns(8, 16));
  for (size_t r = 0; r < 16; ++r) {
    for (size_t c = 0; c < 9; ++c) {
      const size_t expected = c >= 2 && c < 5 ? (c - 2) * 40 + 8 + r : 0;
      EXPECT_EQ(to.bytes[r * 9 + c], expected) << r << " " << c;
    }
  }
}

TEST_F(AdapterOps, TransposeRefusesWhatDoesNotFit) {
  Host from(DType::E4M3, {130, 40}), to(DType::E4M3, {40, 130}), other(DType::E5M2, {40, 130});
  Host scales(DType::F32, {2, 1}), few(DType::F32, {1, 1});
  const auto refusal = [&](QuantizedMatrix target, QuantizedMatrix source, Granularity granularity) {
    target.granularity = source.granularity = granularity;
    return error_of([&] { ops().transpose_fp8(target, source); });
  };
  EXPECT_EQ(refusal(codes_of(other), codes_of(from), Granularity::Tensor),
            "[transpose_fp8] e5m2 from e4m3, expected one dtype of one byte");
  EXPECT_EQ(refusal(codes_of(from), codes_of(from), Granularity::Tensor),
            "[transpose_fp8] (130, 40) from (130, 40), expected (40, 130)");
  for (const Granularity granularity : {Granularity::Row128, Granularity::Row32}) {
    EXPECT_EQ(refusal(codes_of(to), codes_of(from), granularity),
              "[transpose_fp8] the scales are per row, expected one per tensor or per 128 x 128 block");
  }
  EXPECT_EQ(refusal({.codes = to.tensor, .scales = few.tensor},
                    {.codes = from.tensor, .scales = scales.tensor}, Granularity::Block128),
            "[transpose_fp8] the scales are fp32 (1, 1), expected 2 in fp32");
  QuantizedMatrix blocks = codes_of(to);
  blocks.granularity = Granularity::Block128;
  EXPECT_EQ(error_of([&] { ops().transpose_fp8(blocks, codes_of(from)); }),
            "[transpose_fp8] the two matrices differ in granularity");
}

TEST_F(AdapterOps, RowsRefuseWhatDoesNotFit) {
  Host few(DType::BF16, {2, 8}), many(DType::BF16, {5, 8}), real(DType::F32, {5, 8}),
      narrow(DType::BF16, {5, 4});
  Host codes(DType::E4M3, {5, 8}), few_codes(DType::E4M3, {2, 8}), rows(DType::I32, {2}),
      more(DType::I32, {3});
  const auto gather = [&](Host& to, Host& from, Host& places) {
    return error_of([&] { ops().gather_rows(to.tensor, from.tensor, places.tensor); });
  };
  EXPECT_EQ(gather(few, many, more), "[gather_rows] 3 int32 for 2 rows, expected one int32 each");
  EXPECT_EQ(gather(few, many, few), "[gather_rows] 16 bf16 for 2 rows, expected one int32 each");
  EXPECT_EQ(gather(few, real, rows), "[gather_rows] rows of 8 bf16 and of 8 fp32, expected the same");
  EXPECT_EQ(gather(few, narrow, rows), "[gather_rows] rows of 8 bf16 and of 4 bf16, expected the same");
  EXPECT_EQ(gather(few_codes, codes, rows), "[gather_rows] the dtype is e4m3, expected one of 2 or 4 bytes");
  EXPECT_EQ(error_of([&] { ops().scatter_rows(many.tensor, few.tensor, more.tensor); }),
            "[scatter_rows] 3 int32 for 2 rows, expected one int32 each");
  for (const int32_t row : {-2, 5}) {
    rows.at<int32_t>(1) = row;
    EXPECT_EQ(gather(few, many, rows), fmt::format("[gather_rows] a row is {}, expected -1 to 4", row));
    EXPECT_EQ(error_of([&] { ops().scatter_rows(many.tensor, few.tensor, rows.tensor); }),
              fmt::format("[scatter_rows] a row is {}, expected -1 to 4", row));
  }
}

// Less than half a step of bf16 is added to every row. Rounding to the nearest would change no value; the mean must still move.
TEST_F(AdapterOps, ShiftedRowsMoveTheirMean) {
  constexpr int64_t kRows = 4096, kWidth = 12;
  Host to(DType::BF16, {kRows, kWidth}), row(DType::F32, {kWidth}), targets(DType::I32, {kRows});
  for (size_t i = 0; i < kRows * kWidth; ++i) to.at<Bf16>(i) = to_bf16(i % 2 == 0 ? 1.5f : -1.25f);
  for (size_t c = 0; c < kWidth; ++c) row.at<float>(c) = static_cast<float>(c) - 6.0f;
  for (size_t i = 0; i < kRows; ++i) targets.at<int32_t>(i) = i % 4 == 3 ? -1 : 7;
  const float step = 0x1p-7f, factor = 0.05f * step;
  to.at<Bf16>(0).bits = 0x7F80;  // infinite
  to.at<Bf16>(1).bits = 0x7FFF;  // NaN
  ops().shift_rows(to.tensor, row.tensor, targets.tensor, factor);
  EXPECT_EQ(to.at<Bf16>(0).bits, 0x7F80);
  EXPECT_TRUE(std::isnan(to_float(to.at<Bf16>(1))));
  std::vector<double> sum(kWidth, 0.0);
  for (size_t i = 1; i < kRows; ++i) {
    for (size_t c = 0; c < kWidth; ++c) {
      const size_t place = i * kWidth + c;
      const float moved = to_float(to.at<Bf16>(place)) - (place % 2 == 0 ? 1.5f : -1.25f);
      ASSERT_TRUE(moved == 0 || (std::abs(moved) == step && targets.at<int32_t>(i) >= 0 &&
                                 (moved > 0) == (row.at<float>(c) > 0)))
          << i << ", " << c << ": " << moved;
      sum[c] += static_cast<double>(moved);
    }
  }
  // 3,071 rows, each with a probability p of a step: within five standard deviations.
  for (size_t c = 0; c < kWidth; ++c) {
    const double p = std::abs(0.05 * static_cast<double>(row.at<float>(c))), rows = 3071;
    EXPECT_NEAR(std::abs(sum[c]) / static_cast<double>(step), rows * p, 5 * std::sqrt(rows * p * (1 - p)))
        << c;
  }
}

TEST_F(AdapterOps, SumsAndShiftsRefuseWhatDoesNotFit) {
  Host matrix(DType::BF16, {5, 8}), codes(DType::E4M3, {5, 8}), row(DType::F32, {8}), other(DType::F32, {7});
  Host weights(DType::F32, {5}), targets(DType::I32, {5}), more(DType::I32, {6});
  const auto sum = [&](Host& to, Host& from, Host& factors) {
    return error_of([&] { ops().add_column_sum(to.tensor, from.tensor, factors.tensor, 1.0f); });
  };
  const auto shift = [&](Host& to, Host& by, Host& where) {
    return error_of([&] { ops().shift_rows(to.tensor, by.tensor, where.tensor, 1.0f); });
  };
  EXPECT_EQ(sum(row, matrix, weights), "nothing was thrown");
  EXPECT_EQ(sum(other, matrix, weights), "[add_column_sum] the sum has 7 elements, expected 8");
  EXPECT_EQ(sum(row, matrix, other), "[add_column_sum] the column has 7 fp32, expected 5 fp32");
  EXPECT_THAT(sum(row, codes, weights), testing::HasSubstr("[add_column_sum] the matrix"));
  EXPECT_EQ(shift(matrix, row, targets), "nothing was thrown");
  EXPECT_EQ(shift(matrix, other, targets), "[shift_rows] the row has 7 fp32, expected 8 fp32");
  EXPECT_EQ(shift(matrix, row, more), "[shift_rows] 6 int32 for 5 rows, expected one int32 each");
  EXPECT_THAT(shift(codes, row, targets), testing::HasSubstr("[shift_rows] the matrix"));
}

TEST_F(AdapterOps, DropoutInPlaceKeepsItsShare) {
  constexpr int64_t kCount = 100000;
  Host x(DType::F32, {kCount}), y(DType::F32, {kCount}), seed(DType::I32, {2});
  for (size_t i = 0; i < kCount; ++i) x.at<float>(i) = 3.0f;
  seed.at<int32_t>(0) = 5;
  ops().dropout(y.tensor, x.tensor, 0.25f, seed.tensor, 7, false);
  ops().dropout(x.tensor, x.tensor, 0.25f, seed.tensor, 7, false);
  EXPECT_EQ(x.bytes, y.bytes);
  int64_t kept = 0;
  for (size_t i = 0; i < kCount; ++i) {
    ASSERT_TRUE(x.at<float>(i) == 0.0f || x.at<float>(i) == 4.0f);
    kept += x.at<float>(i) != 0.0f;
  }
  EXPECT_NEAR(static_cast<double>(kept), 0.75 * kCount, 5 * std::sqrt(0.25 * 0.75 * kCount));
  // Other seeds and streams keep other elements.
  for (const auto& [word, stream] : {std::pair{0, 8}, std::pair{1, 7}}) {
    Host other(DType::F32, {kCount});
    for (size_t i = 0; i < kCount; ++i) other.at<float>(i) = 3.0f;
    if (word == 1) seed.at<int32_t>(1) = 1;
    ops().dropout(other.tensor, other.tensor, 0.25f, seed.tensor, static_cast<uint64_t>(stream), false);
    EXPECT_NE(other.bytes, x.bytes);
  }
}

TEST_F(AdapterOps, DropoutRefusesWhatDoesNotFit) {
  Host x(DType::F32, {8}), y(DType::F32, {8}), half(DType::BF16, {8}), seed(DType::I32, {2}),
      one(DType::I32, {1});
  const auto refusal = [&](Host& to, Host& from, float probability, Host& bits, bool accumulate) {
    return error_of([&] { ops().dropout(to.tensor, from.tensor, probability, bits.tensor, 1, accumulate); });
  };
  EXPECT_EQ(refusal(y, seed, 0.5f, seed, false), "[dropout] x is int32, expected fp32 or bf16");
  EXPECT_EQ(refusal(half, x, 0.5f, seed, false), "[dropout] y is bf16 (8), expected fp32 (8) as x");
  EXPECT_EQ(refusal(y, x, 1.0f, seed, false),
            "[dropout] the probability is 1, expected at least 0 and less than 1");
  EXPECT_EQ(refusal(y, x, -0.5f, seed, false),
            "[dropout] the probability is -0.5, expected at least 0 and less than 1");
  EXPECT_EQ(refusal(y, x, 0.5f, one, false), "[dropout] the seed is 1 int32, expected two int32");
  EXPECT_EQ(refusal(x, x, 0.5f, seed, true), "[dropout] y is x, expected another tensor to add to");
}

// A learning rate of its own is that learning rate: weight decay follows it too.
TEST_F(AdapterOps, AdamWScalesTheLearningRateOfAParameter) {
  constexpr int64_t kCount = 300;
  const auto step = [&](float learning_rate, float scale) {
    Host state(DType::F32, {4, kCount});
    for (size_t i = 0; i < 4 * kCount; ++i) state.at<float>(i) = std::fabs(Philox(3).normal(i));
    const auto row = [&](int64_t i) { return state.tensor.row_range(i, 1); };
    const AdamWParameter parameter{.weight = row(0),
                                   .gradient = row(1),
                                   .m = row(2),
                                   .v = row(3),
                                   .weight_decay = 0.1f,
                                   .learning_rate_scale = scale};
    float clip[] = {1.0f, 0.5f};
    ops().adamw({&parameter, 1}, {clip, DType::F32, {2}}, {.learning_rate = learning_rate, .step = 2});
    return state.bytes;
  };
  EXPECT_EQ(step(1e-3f, 16.0f), step(16e-3f, 1.0f));
  EXPECT_NE(step(1e-3f, 16.0f), step(1e-3f, 1.0f));
  EXPECT_EQ(step(1e-3f, 0.0f), step(0.0f, 1.0f));
}

}  // namespace
}  // namespace octet
