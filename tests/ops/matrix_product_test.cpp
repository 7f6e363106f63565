#include "backend/cpu/matrix_product.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/philox.h"
#include "ops/device.h"

namespace octet::test {
namespace {

using cpu::Factor;
using cpu::matrix_product;
using cpu::PackedFactor;

// A matrix (rows, cols) of small numbers inside a wider one, stored as it is or transposed.
struct Operand {
  Operand(int64_t rows, int64_t cols, bool transposed, uint64_t seed)
      : stride((transposed ? rows : cols) + 3),
        is_transposed(transposed),
        values(static_cast<size_t>(stride * (transposed ? cols : rows))) {
    const Philox random(seed, 0);
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(random.below(i, 2001)) / 1000.0f - 1.0f;
  }
  Factor factor() const { return {values.data(), stride, is_transposed}; }
  double at(int64_t row, int64_t col) const { return static_cast<double>(*factor().from(row, col).data); }

  int64_t stride;
  bool is_transposed;
  std::vector<float> values;
};

constexpr int64_t kGap = 5;  // between two rows of the result

std::vector<float> product(const Operand& a, const Operand& b, int64_t m, int64_t n, int64_t k,
                           float alpha = 1.0f, bool accumulate = false, const float* bias = nullptr) {
  std::vector<float> c(static_cast<size_t>(m * (n + kGap)), 0.25f);
  matrix_product(c.data(), n + kGap, a.factor(), b.factor(), m, n, k, alpha, accumulate, bias);
  return c;
}

// Sizes at and around those of tiles and blocks.
TEST(MatrixProduct, AgreesWithSumsInDouble) {
  for (const auto& [m, n, k] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{{1, 1, 1},
                                                                                  {1, 100, 7},
                                                                                  {2, 35, 519},
                                                                                  {8, 32, 256},
                                                                                  {7, 31, 255},
                                                                                  {9, 33, 257},
                                                                                  {129, 257, 40},
                                                                                  {131, 300, 515},
                                                                                  {64, 16, 1024},
                                                                                  {3, 5, 0}}) {
    for (int kind = 0; kind < 24; ++kind) {
      const bool accumulate = (kind & 4) != 0 && kind < 16;
      const float alpha = (kind & 8) != 0 ? -0.5f : 1.0f;
      SCOPED_TRACE(fmt::format("{} x {} x {}, kind {}", m, n, k, kind));
      const Operand a(m, k, (kind & 1) != 0, 1), b(k, n, (kind & 2) != 0, 2);
      const Operand bias(1, n, false, 3);
      const bool has_bias = kind >= 16;
      const std::vector<float> c =
          product(a, b, m, n, k, alpha, accumulate, has_bias ? bias.values.data() : nullptr);
      double worst = 0;
      bool gap_is_kept = true;
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          double sum = 0;
          for (int64_t t = 0; t < k; ++t) sum += a.at(i, t) * b.at(t, j);
          const double expected =
              static_cast<double>(alpha) * sum + (accumulate ? 0.25 : 0.0) + (has_bias ? bias.at(0, j) : 0.0);
          worst = std::max(
              worst, std::abs(static_cast<double>(c[static_cast<size_t>(i * (n + kGap) + j)]) - expected));
        }
        for (int64_t j = n; j < n + kGap; ++j)
          gap_is_kept &= c[static_cast<size_t>(i * (n + kGap) + j)] == 0.25f;
      }
      // Some tens of roundings of sums of a few units.
      EXPECT_LE(worst, 1e-6 * (2.0 + std::sqrt(static_cast<double>(k))));
      EXPECT_TRUE(gap_is_kept);
    }
  }
}

// Packed once for several products, the right factor gives the bits of a product that packs it itself.
TEST(MatrixProduct, PackedFactorsGiveTheSameBits) {
  constexpr int64_t m = 37, n = 333, k = 530;
  for (const bool transposed : {false, true}) {
    const Operand a(m, k, false, 1), b(k, n, transposed, 2), bias(1, n, false, 3);
    std::vector<float> memory(static_cast<size_t>(PackedFactor::size(k, n)), NAN);
    PackedFactor packed(memory.data(), k);
    for (int64_t begin = 0; begin < n; begin += 2 * PackedFactor::kColumns)
      packed.pack(b.factor(), begin, std::min(begin + 2 * PackedFactor::kColumns, n));
    for (const auto& [row, depth, col, cols] : std::vector<std::array<int64_t, 4>>{
             {0, k, 0, n}, {0, 40, 64, 100}, {17, 300, 128, 205}, {529, 1, 320, 13}}) {
      SCOPED_TRACE(fmt::format("transposed {}, {} of {}, {} of {}", transposed, row, depth, col, cols));
      for (const float* added : {static_cast<const float*>(nullptr), bias.values.data()}) {
        std::vector<float> expected(static_cast<size_t>(m * cols)), got(expected);
        const Factor left = a.factor().from(0, row);
        matrix_product(expected.data(), cols, left, b.factor().from(row, col), m, cols, depth, 0.3f, false,
                       added);
        matrix_product(got.data(), cols, left, packed.from(row, col), m, cols, depth, 0.3f, false, added);
        EXPECT_EQ(got, expected);
        matrix_product(expected.data(), cols, left, b.factor().from(row, col), m, cols, depth, 0.3f, true);
        matrix_product(got.data(), cols, left, packed.from(row, col), m, cols, depth, 0.3f, true);
        EXPECT_EQ(got, expected);
      }
    }
  }
}

// Of the largest products that are planned; batches with fewer targets have smaller ones. Some of them pack a factor once.
TEST(MatrixProduct, WorkspaceForALargeProductIsEnoughForSmallerOnes) {
  const auto device = make_cpu_device(2);
  struct Sizes {
    DType dtype;
    int64_t m, n, planned, depth;
  };
  for (const auto& [dtype, m, n, planned, depth] :
       {Sizes{DType::F32, 512, 256, 8192, 4096}, Sizes{DType::F32, 512, 256, 8192, 4095},
        Sizes{DType::F32, 512, 256, 8192, 100}, Sizes{DType::BF16, 512, 4096, 257, 256}}) {
    const WorkspaceNeeds::Gemm gemm{.m = m, .n = n, .k = planned};
    const WorkspaceNeeds needs{.gemms = {&gemm, 1}, .dtype = dtype, .fp8 = false};
    std::vector<uint8_t> workspace(static_cast<size_t>(device->workspace_bytes(needs)));
    device->ops().set_workspace({workspace.data(), DType::U8, {std::ssize(workspace)}});
    std::vector<float> a(static_cast<size_t>(m * depth)), b(static_cast<size_t>(n * depth)),
        c(static_cast<size_t>(m * n));
    EXPECT_NO_THROW(device->ops().gemm(Tensor{c.data(), dtype, {m, n}}, Tensor{a.data(), dtype, {depth, m}},
                                       Tensor{b.data(), dtype, {depth, n}}, {.transpose_a = true}))
        << depth;
  }
}

// An element does not depend on what else is computed, nor on how the factors are stored.
TEST(MatrixProduct, BitsOfAnElementDependOnItsOwnSumAlone) {
  constexpr int64_t m = 70, n = 300, k = 600;
  const Operand a(m, k, false, 1), b(k, n, false, 2);
  // Not a power of two: the product with it is rounded.
  constexpr float alpha = 0.3f;
  const std::vector<float> whole = product(a, b, m, n, k, alpha, true);
  for (const auto& [row, rows, col, cols] : std::vector<std::array<int64_t, 4>>{
           {0, 1, 0, 1}, {5, 1, 0, 300}, {0, 70, 299, 1}, {13, 11, 17, 41}, {64, 6, 256, 44}}) {
    std::vector<float> part(static_cast<size_t>(rows * cols), 0.25f);
    matrix_product(part.data(), cols, a.factor().from(row, 0), b.factor().from(0, col), rows, cols, k, alpha,
                   true);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < cols; ++j) {
        ASSERT_EQ(part[static_cast<size_t>(i * cols + j)],
                  whole[static_cast<size_t>((row + i) * (n + kGap) + col + j)])
            << row + i << ", " << col + j;
      }
    }
  }
  Operand a_stored(m, k, true, 1), b_stored(k, n, true, 2);
  for (int64_t i = 0; i < m; ++i)
    for (int64_t t = 0; t < k; ++t)
      a_stored.values[static_cast<size_t>(t * a_stored.stride + i)] = static_cast<float>(a.at(i, t));
  for (int64_t t = 0; t < k; ++t)
    for (int64_t j = 0; j < n; ++j)
      b_stored.values[static_cast<size_t>(j * b_stored.stride + t)] = static_cast<float>(b.at(t, j));
  EXPECT_EQ(product(a_stored, b_stored, m, n, k, alpha, true), whole);
  // A few rows have a way of their own.
  for (const auto& [row, rows, col, cols] :
       std::vector<std::array<int64_t, 4>>{{5, 1, 0, 300}, {68, 2, 1, 299}, {0, 2, 17, 41}, {9, 1, 3, 15}}) {
    for (const Operand* left : {&a, static_cast<const Operand*>(&a_stored)}) {
      std::vector<float> part(static_cast<size_t>(rows * cols), 0.25f);
      matrix_product(part.data(), cols, left->factor().from(row, 0), b_stored.factor().from(0, col), rows,
                     cols, k, alpha, true);
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < cols; ++j) {
          ASSERT_EQ(part[static_cast<size_t>(i * cols + j)],
                    whole[static_cast<size_t>((row + i) * (n + kGap) + col + j)])
              << row + i << ", " << col + j;
        }
      }
    }
  }
  // Added to a bias as to what is there. One row and two have the bits of all.
  const Operand bias(1, n, false, 3);
  const float* from = bias.values.data();
  std::vector<float> there(static_cast<size_t>(m * n));
  for (int64_t i = 0; i < m; ++i) std::copy_n(from, n, there.data() + i * n);
  matrix_product(there.data(), n, a.factor(), b.factor(), m, n, k, alpha, true);
  for (const int64_t rows : {m, int64_t{1}, int64_t{2}}) {
    std::vector<float> added(static_cast<size_t>(rows * n));
    matrix_product(added.data(), n, a.factor(), b_stored.factor(), rows, n, k, alpha, false, from);
    EXPECT_TRUE(std::ranges::equal(added, std::span(there).first(added.size()))) << rows;
  }
}

// What fills up a tile never reaches the result, and what is not a number stays in its row and column.
TEST(MatrixProduct, NotANumberStaysWhereItBelongs) {
  constexpr int64_t m = 10, n = 35, k = 20;
  Operand a(m, k, false, 1), b(k, n, false, 2);
  a.values[static_cast<size_t>(9 * a.stride + 3)] = std::nanf("");
  const std::vector<float> c = product(a, b, m, n, k);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j)
      ASSERT_EQ(std::isnan(c[static_cast<size_t>(i * (n + kGap) + j)]), i == 9) << i << ", " << j;
  }
}

}  // namespace
}  // namespace octet::test
