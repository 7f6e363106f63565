#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "backend/cpu/vector_math.h"
#include "base/philox.h"
#include "ops/device.h"
#include "ops/stochastic.h"
#include "tensor/floats.h"
#include "tensor/split_fp32.h"

namespace octet {
namespace {

constexpr int64_t kCount = 20000;  // more than one chunk

struct Parameter {
  explicit Parameter(DType weight_type, DType moment_type) {
    const auto n = static_cast<size_t>(kCount);
    for (size_t i = 0; i < n; ++i) {
      exact.push_back(Philox(1).normal(i));
      gradient.push_back(Philox(2).normal(i));
    }
    weight32 = exact;
    for (const float w : exact) {
      const auto bits = std::bit_cast<uint32_t>(w);
      weight16.push_back({split_high(bits)});
      remainder.push_back(split_low(bits));
    }
    m32.resize(n), v32.resize(n), m16.resize(n), v16.resize(n);
    const bool split = weight_type == DType::BF16, small = moment_type == DType::BF16;
    view.weight = split ? Tensor{weight16.data(), DType::BF16, {kCount}}
                        : Tensor{weight32.data(), DType::F32, {kCount}};
    if (split) view.remainder = {remainder.data(), DType::U16, {kCount}};
    view.gradient = {gradient.data(), DType::F32, {kCount}};
    view.m = small ? Tensor{m16.data(), DType::BF16, {kCount}} : Tensor{m32.data(), DType::F32, {kCount}};
    view.v = small ? Tensor{v16.data(), DType::BF16, {kCount}} : Tensor{v32.data(), DType::F32, {kCount}};
    view.weight_decay = 0.1f;
  }
  float weight(size_t i) const {
    if (view.weight.dtype == DType::F32) return weight32[i];
    return join_fp32(weight16[i].bits, remainder[i]);
  }
  std::vector<float> exact, weight32, gradient, m32, v32;
  std::vector<Bf16> weight16, m16, v16;
  std::vector<uint16_t> remainder;
  AdamWParameter view;
};

class AdamW : public testing::Test {
 protected:
  void step(Parameter& parameter, int threads, int64_t number, float norm = 1.0f) {
    const auto device = make_cpu_device(threads);
    device->ops().set_workspace({workspace.data(), DType::U8, {static_cast<int64_t>(workspace.size())}});
    float clip[] = {norm, 0.5f};
    const AdamWOptions options{
        .learning_rate = 1e-2f, .beta1 = 0.9f, .beta2 = 0.99f, .epsilon = 1e-8f, .step = number};
    device->ops().adamw({&parameter.view, 1}, {clip, DType::F32, {2}}, options);
  }
  alignas(256) std::vector<uint8_t> workspace = std::vector<uint8_t>(1 << 20);
};

TEST_F(AdamW, FollowsTheDoublePrecisionUpdate) {
  for (const DType moments : {DType::F32, DType::BF16}) {
    Parameter plain(DType::F32, moments), split(DType::BF16, moments);
    std::vector<double> w(plain.exact.begin(), plain.exact.end()), m(w.size()), v(w.size());
    for (int64_t number = 1; number <= 5; ++number) {
      for (size_t i = 0; i < w.size(); ++i) {
        const double g = 0.5 * static_cast<double>(plain.gradient[i]);
        m[i] = 0.9 * m[i] + 0.1 * g;
        v[i] = 0.99 * v[i] + 0.01 * g * g;
        const double m_hat = m[i] / (1 - std::pow(0.9, number)), v_hat = v[i] / (1 - std::pow(0.99, number));
        w[i] = w[i] * (1 - 1e-2 * 0.1) - 1e-2 * m_hat / (std::sqrt(v_hat) + 1e-8);
      }
      step(plain, 2, number);
      step(split, 2, number);
    }
    double worst = 0;
    for (size_t i = 0; i < w.size(); ++i) {
      worst = std::max(worst, std::fabs(static_cast<double>(plain.weight(i)) - w[i]));
      // The split weight is the fp32 weight, and its upper half is that rounded to nearest.
      ASSERT_EQ(split.weight(i), plain.weight(i));
      ASSERT_LE(std::fabs(to_float(split.weight16[i]) - split.weight(i)),
                std::fabs(split.weight(i)) * 0x1p-8f);
    }
    // Five updates of 1e-2 each; bf16 moments are right to 2^-9 of an update per step.
    EXPECT_LT(worst, moments == DType::F32 ? 2e-6 : 5e-4);
  }
}

TEST_F(AdamW, SameBitsForAnyNumberOfThreads) {
  Parameter one(DType::BF16, DType::BF16), three(DType::BF16, DType::BF16);
  step(one, 1, 1);
  step(three, 3, 1);
  EXPECT_EQ(one.remainder, three.remainder);
}

TEST_F(AdamW, NothingChangesWhenTheNormIsNotFinite) {
  for (const float norm : {HUGE_VALF, std::nanf("")}) {
    Parameter parameter(DType::F32, DType::F32);
    step(parameter, 2, 1, norm);
    EXPECT_EQ(parameter.weight32, parameter.exact);
    EXPECT_EQ(parameter.m32, std::vector<float>(static_cast<size_t>(kCount)));
  }
}

// ---- stochastic rounding ----

TEST(StochasticRounding, E4m3GoesToANeighbourAndIsRightInTheMean) {
  const float* values = fp8_values(DType::E4M3);
  constexpr uint32_t kAllNoise = 0xFFFFFF;
  for (int code = 0; code < 0x7E; ++code) {
    const float below = values[code] * kE4m3AsFp32, above = values[code + 1] * kE4m3AsFp32;
    EXPECT_EQ(to_e4m3_stochastic(below, 0), code);
    EXPECT_EQ(to_e4m3_stochastic(below, kAllNoise), code);
    EXPECT_EQ(to_e4m3_stochastic(-below, 0x123456), 0x80 | code);
    for (const float share : {0.125f, 0.5f, 0.8125f, 1.0f - 0x1p-20f}) {
      const float x = below + share * (above - below);
      // As many of all noises as the share says lead to the code above.
      const auto first_up = static_cast<uint32_t>((1.0f - share) * 0x1p24f);
      EXPECT_EQ(to_e4m3_stochastic(x, 0), code) << code << " " << share;
      EXPECT_EQ(to_e4m3_stochastic(x, first_up - 1), code) << code << " " << share;
      EXPECT_EQ(to_e4m3_stochastic(x, first_up), code + 1) << code << " " << share;
      EXPECT_EQ(to_e4m3_stochastic(x, kAllNoise), code + 1) << code << " " << share;
      EXPECT_EQ(to_e4m3_stochastic(-x, first_up), 0x80 | (code + 1)) << code << " " << share;
    }
  }
}

// The largest of a block never gets past 448, the largest code, and everything is within a rounding of value / factor.
TEST(StochasticRounding, FactorsFitTheLargestOfABlock) {
  for (const float exponent : {-48.0f, -20.0f, 0.0f, 13.0f, 14.0f, 15.0f, 60.0f, 126.0f}) {
    for (uint64_t i = 0; i < 10000; ++i) {
      const float largest = std::ldexp(1.0f + Philox(4).uniform(i), static_cast<int>(exponent));
      const float factor = moment_factor(largest);
      const MomentShift shift = MomentShift::of_m(largest);
      ASSERT_EQ(to_e4m3_stochastic(shift(-largest), 0xFFFFFF), 0xFE) << largest;
      const float x = largest * Philox(5).uniform(i);
      ASSERT_NEAR(static_cast<double>(shift(x)) * 0x1p120,
                  static_cast<double>(x) / static_cast<double>(factor),
                  1e-6 * static_cast<double>(x) / static_cast<double>(factor) + 0x1p-29)
          << largest;
    }
  }
  EXPECT_EQ(moment_factor(0x1p-50f), 0.0f);
  EXPECT_EQ(MomentShift::of_m(0x1p-50f)(0x1p-50f), 0.0f);
}

// All of the noise is uniform, and what an element rounds its three numbers with is independent, as are neighbours and
// rows that share words, to what the number of samples tells.
TEST(StochasticRounding, NoiseIsUniformAndIndependentWhereItMatters) {
  constexpr int kGroups = 1 << 15, kStreams = 2 * 24;
  const auto all = [](int64_t group) {
    std::array<double, kStreams> x{};
    for (int row = 0; row < 2; ++row) {
      const RoundingBits bits = RoundingBits::of(9, 3, 17, 6 + row, kGroups, group);
      for (int j = 0; j < 8; ++j) {
        double* element = x.data() + 24 * row + 3 * j;
        element[0] = bits.weight(j) * 0x1p-16 + 0x1p-17 - 0.5;
        element[1] = bits.m(j) * 0x1p-24 + 0x1p-25 - 0.5;
        element[2] = bits.root(j) * 0x1p-24 + 0x1p-25 - 0.5;
      }
    }
    return x;
  };
  std::array<double, kStreams> sum{};
  std::array<std::array<double, kStreams>, kStreams> products{};
  for (int64_t group = 0; group < kGroups; ++group) {
    const auto x = all(group);
    for (size_t i = 0; i < kStreams; ++i) {
      ASSERT_LT(std::fabs(x[i]), 0.5);
      sum[i] += x[i];
      for (size_t j = i; j < kStreams; ++j) products[i][j] += 12 * x[i] * x[j];
    }
  }
  const double sigma = 1 / std::sqrt(static_cast<double>(kGroups));  // of a correlation
  for (size_t i = 0; i < kStreams; ++i) {
    EXPECT_LT(std::fabs(sum[i] / kGroups), 5 * sigma / std::sqrt(12.0)) << i;
    EXPECT_NEAR(products[i][i] / kGroups, 1, 5 * sigma) << i;
    for (size_t j = i + 1; j < kStreams; ++j) {
      const double correlation = products[i][j] / kGroups;
      const bool same_element = i / 3 == j / 3, same_row = i / 24 == j / 24, same_role = i % 3 == j % 3;
      // Columns of a row have the same bytes in another order: other roles may have the same noise, the same role has a
      // byte of a neighbour's second place first.
      if (!same_element && same_row && !same_role) continue;
      EXPECT_LT(std::fabs(correlation), 5 * sigma + (same_element || !same_row ? 0 : 0x1p-7))
          << i << " " << j;
    }
  }
}

// Over steps, the noise of an element is spread evenly: as many of the first n steps round up as the share says, to a few.
// Independent noise would miss that by sqrt(n share (1 - share)), which is 9 to 16 here.
TEST(StochasticRounding, ErrorsOfAnElementCancelOverSteps) {
  constexpr int kSteps = 1000, kElements = 8;
  for (const double share : {0.1, 0.37, 0.5, 0.92}) {
    for (const int64_t first : {int64_t{1}, int64_t{123'456}, int64_t{1} << 33}) {
      std::array<std::array<double, 3>, kElements> errors{};
      for (int64_t step = first; step < first + kSteps; ++step) {
        const RoundingBits bits = RoundingBits::of(9, 3, step, 5, 4, 2);
        for (int j = 0; j < kElements; ++j) {
          const double noise[3] = {bits.weight(j) * 0x1p-16, bits.m(j) * 0x1p-24, bits.root(j) * 0x1p-24};
          for (size_t role = 0; role < 3; ++role) {
            double& error = errors[static_cast<size_t>(j)][role];
            error += (noise[role] >= 1 - share ? 1 : 0) - share;
            ASSERT_LT(std::fabs(error), 6) << share << " " << step - first << " " << j << " " << role;
          }
        }
      }
    }
  }
}

struct Matrix {
  static constexpr int64_t kRows = 37, kCols = 300;  // blocks of 128, 128 and 44
  explicit Matrix(DType moments, RemainderKind kind) : small(moments == DType::E4M3) {
    const size_t n = static_cast<size_t>(kRows * kCols);
    const Shape shape{kRows, kCols}, scales{kRows, 3};
    weight.resize(n), remainder.resize(n), gradient.resize(n), m32.resize(n), v32.resize(n), m8.resize(n),
        v8.resize(n);
    m_scales.resize(3 * kRows), v_scales.resize(3 * kRows), pairs.resize(n / 2);
    for (size_t i = 0; i < n; ++i) {
      weight[i] = to_bf16(Philox(1).normal(i));
      gradient[i] = std::ldexp(Philox(2).normal(i), -static_cast<int>(i % 7));
    }
    view.weight = {weight.data(), DType::BF16, shape};
    if (kind == RemainderKind::Exact) view.remainder = {remainder.data(), DType::U16, shape};
    if (kind == RemainderKind::Compact) view.remainder = {pairs.data(), DType::U8, {kRows, kCols / 2}};
    view.gradient = {gradient.data(), DType::F32, shape};
    view.m = small ? Tensor{m8.data(), DType::E4M3, shape} : Tensor{m32.data(), DType::F32, shape};
    view.v = small ? Tensor{v8.data(), DType::U8, shape} : Tensor{v32.data(), DType::F32, shape};
    if (small)
      view.m_scales = {m_scales.data(), DType::F32, scales},
      view.v_scales = {v_scales.data(), DType::F32, scales};
    view.stream = 11;
  }
  void step(int64_t number, int threads = 2, uint64_t seed = 3) {
    const auto device = make_cpu_device(threads);
    alignas(256) static uint8_t workspace[1 << 20];
    device->ops().set_workspace({workspace, DType::U8, {1 << 20}});
    float clip[] = {1.0f, 1.0f};
    device->ops().adamw(
        {&view, 1}, {clip, DType::F32, {2}},
        {.learning_rate = 1e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .step = number, .seed = seed});
  }
  size_t block(size_t i) const { return i / kCols * 3 + i % kCols / 128; }
  double exact(size_t i) const { return static_cast<double>(join_fp32(weight[i].bits, remainder[i])); }
  double compact(size_t i) const {
    const uint32_t nibble = nibble_of(pairs[i / 2], static_cast<int64_t>(i));
    return static_cast<double>(std::bit_cast<float>(join_nibble(uint32_t{weight[i].bits} << 16, nibble)));
  }
  double m(size_t i) const {
    return static_cast<double>(small ? from_e4m3(m8[i]) * m_scales[block(i)] : m32[i]);
  }
  double root(size_t i) const {
    return small ? static_cast<double>(root_value(v8[i]) * v_scales[block(i)])
                 : std::sqrt(static_cast<double>(v32[i]));
  }
  bool small;
  std::vector<Bf16> weight;
  std::vector<uint16_t> remainder;
  std::vector<float> gradient, m32, v32, m_scales, v_scales;
  std::vector<uint8_t> m8, v8, pairs;
  AdamWParameter view;
};

TEST(SmallMoments, FollowFp32Moments) {
  Matrix small(DType::E4M3, RemainderKind::Exact), wide(DType::F32, RemainderKind::Exact);
  std::vector<double> start;
  for (size_t i = 0; i < small.weight.size(); ++i) start.push_back(small.exact(i));
  for (int64_t number = 1; number <= 30; ++number) {
    small.step(number);
    wide.step(number);
  }
  double m_error = 0, m_size = 0, root_ratio = 0, moved = 0, wandered = 0;
  for (size_t i = 0; i < start.size(); ++i) {
    m_error += std::fabs(small.m(i) - wide.m(i)), m_size += std::fabs(wide.m(i));
    const double least = static_cast<double>(kRootSmallest * small.v_scales[small.block(i)]);
    root_ratio += small.root(i) / std::max(wide.root(i), least);
    moved += std::fabs(wide.exact(i) - start[i]), wandered += std::fabs(small.exact(i) - wide.exact(i));
    ASSERT_TRUE(small.root(i) > 0) << "a root of " << wide.root(i) << " became zero";
  }
  // A code of m is right to 1/16; what thirty steps make of that is a few per cent of an update, without a drift.
  EXPECT_LT(m_error / m_size, 0.08);
  EXPECT_NEAR(root_ratio / static_cast<double>(start.size()), 1.0, 0.01);
  EXPECT_LT(wandered / moved, 0.05);
}

// Rounded to nearest, a moment that shrinks by less than half a step between codes would never shrink.
TEST(SmallMoments, DecayWhenThereIsNoGradient) {
  Matrix x(DType::E4M3, RemainderKind::Exact);
  for (size_t i = 0; i < x.gradient.size(); ++i) x.gradient[i] = i % 128 == 0 ? 1.0f : 0.3f;
  x.step(1);
  for (size_t i = 0; i < x.gradient.size(); ++i) x.gradient[i] = i % Matrix::kCols % 128 == 0 ? 1.0f : 0.0f;
  double before = 0, after = 0;
  const auto sum = [&] {
    double total = 0;
    for (size_t i = 0; i < x.gradient.size(); ++i) total += x.gradient[i] == 0.0f ? x.root(i) : 0;
    return total;
  };
  before = sum();
  for (int64_t number = 2; number <= 41; ++number) x.step(number);
  after = sum();
  EXPECT_NEAR(after / before, std::pow(0.95, 20), 0.02);
}

TEST(StochasticWeights, MoveAsTheExactOnesInTheMean) {
  Matrix rounded(DType::F32, RemainderKind::None), exact(DType::F32, RemainderKind::Exact);
  double drift = 0, moved = 0;
  const std::vector<Bf16> start = rounded.weight;
  for (int64_t number = 1; number <= 20; ++number) {
    rounded.step(number);
    exact.step(number);
  }
  for (size_t i = 0; i < start.size(); ++i) {
    const double sign = exact.gradient[i] > 0 ? 1 : -1;
    drift += sign * (static_cast<double>(to_float(rounded.weight[i])) - exact.exact(i));
    moved += sign * (static_cast<double>(to_float(start[i])) - exact.exact(i));
  }
  // Twenty updates of 1e-3 each; nearest rounding would lose most of them on weights near 1.
  EXPECT_NEAR(moved / static_cast<double>(start.size()), 0.02, 1e-3);
  EXPECT_LT(std::fabs(drift / moved), 0.02);
}

// Their sixteenth of a step makes compact weights follow the exact ones far more closely.
TEST(StochasticWeights, CompactOnesStayNearTheExactOnes) {
  for (const DType moments : {DType::F32, DType::E4M3}) {
    Matrix rounded(moments, RemainderKind::None), compact(moments, RemainderKind::Compact),
        exact(moments, RemainderKind::Exact);
    for (int64_t number = 1; number <= 20; ++number) {
      for (Matrix* x : {&rounded, &compact, &exact}) x->step(number);
    }
    double drift = 0, far = 0, near = 0;
    for (size_t i = 0; i < exact.weight.size(); ++i) {
      const double sign = exact.gradient[i] > 0 ? 1 : -1;
      drift += sign * (compact.compact(i) - exact.exact(i));
      near += std::pow(compact.compact(i) - exact.exact(i), 2);
      far += std::pow(static_cast<double>(to_float(rounded.weight[i])) - exact.exact(i), 2);
    }
    EXPECT_LT(std::fabs(drift / static_cast<double>(exact.weight.size())), 0.02 * 1e-3) << "updates of 1e-3";
    EXPECT_LT(std::sqrt(near / far), 0.1);
  }
}

// One step of compact weights is that of exact ones, rounded by the bits of its place: any width, few rows.
TEST(StochasticWeights, CompactOnesAreTheExactOnesRounded) {
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 1}, {3, 77}, {6, 129}, {5, 256}}) {
    const auto n = static_cast<size_t>(rows * cols);
    const int64_t across = compact_row_bytes(cols);
    const Shape shape{rows, cols}, scales{rows, div_up(cols, kMomentBlock)};
    std::vector<Bf16> weight(n), exact(n);
    std::vector<uint16_t> remainder(n);
    std::vector<uint8_t> pairs(static_cast<size_t>(rows * across));
    std::vector<float> gradient(n);
    for (size_t i = 0; i < pairs.size(); ++i) pairs[i] = static_cast<uint8_t>(Philox(8).below(i, 256));
    for (size_t i = 0; i < n; ++i) {
      weight[i] = exact[i] = to_bf16(Philox(1).normal(i));
      gradient[i] = Philox(2).normal(i);
      const int64_t row = static_cast<int64_t>(i) / cols, col = static_cast<int64_t>(i) % cols;
      const uint32_t nibble = nibble_of(pairs[static_cast<size_t>(row * across + col / 2)], col);
      remainder[i] = split_low(join_nibble(uint32_t{weight[i].bits} << 16, nibble));
    }
    for (const bool small : {false, true}) {
      const auto step = [&](Tensor w, Tensor low) {
        std::vector<float> m(n), v(n), m_scales(n), v_scales(n);
        std::vector<uint8_t> m8(n), v8(n);
        AdamWParameter p{.weight = w, .remainder = low, .gradient = {gradient.data(), DType::F32, shape}};
        p.m = small ? Tensor{m8.data(), DType::E4M3, shape} : Tensor{m.data(), DType::F32, shape};
        p.v = small ? Tensor{v8.data(), DType::U8, shape} : Tensor{v.data(), DType::F32, shape};
        p.m_scales = {m_scales.data(), DType::F32, scales},
        p.v_scales = {v_scales.data(), DType::F32, scales};
        p.stream = 11, p.first_row = 4;
        const auto device = make_cpu_device(2);
        alignas(256) static uint8_t workspace[1 << 20];
        device->ops().set_workspace({workspace, DType::U8, {1 << 20}});
        float clip[] = {1.0f, 1.0f};
        device->ops().adamw({&p, 1}, {clip, DType::F32, {2}}, {.learning_rate = 1e-3f, .step = 5, .seed = 3});
      };
      std::vector<Bf16> new_weight = weight, new_exact = exact;
      std::vector<uint8_t> new_pairs = pairs;
      std::vector<uint16_t> new_remainder = remainder;
      step({new_weight.data(), DType::BF16, shape}, {new_pairs.data(), DType::U8, {rows, across}});
      step({new_exact.data(), DType::BF16, shape}, {new_remainder.data(), DType::U16, shape});
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t col = 0; col < cols; ++col) {
          const auto i = static_cast<size_t>(row * cols + col);
          const RoundingBits bits = RoundingBits::of(3, 11, 5, 4 + row, div_up(cols, int64_t{8}), col / 8);
          const uint32_t expected = to_compact_stochastic(join_fp32(new_exact[i].bits, new_remainder[i]),
                                                          bits.weight(static_cast<int>(col % 8)));
          const uint8_t pair = new_pairs[static_cast<size_t>(row * across + col / 2)];
          ASSERT_EQ(new_weight[i].bits, split_high(expected)) << row << " " << col;
          ASSERT_EQ(nibble_of(pair, col), compact_nibble(expected)) << row << " " << col;
          if (col + 1 == cols && cols % 2 == 1) {
            ASSERT_EQ(pair >> 4, 0) << "behind the last column";
          }
        }
      }
    }
  }
}

TEST(StochasticWeights, ARemainderThatDoesNotFitIsRefused) {
  for (const Tensor& remainder : {Tensor{nullptr, DType::U8, {Matrix::kRows, Matrix::kCols}},
                                  Tensor{nullptr, DType::U16, {Matrix::kRows, Matrix::kCols / 2}},
                                  Tensor{nullptr, DType::F32, {Matrix::kRows, Matrix::kCols}}}) {
    Matrix x(DType::F32, RemainderKind::None);
    std::vector<uint8_t> memory(1 << 20);
    x.view.remainder = {memory.data(), remainder.dtype, remainder.shape};
    EXPECT_THROW(x.step(1), Error);
  }
}

void expect_same_rounding(RemainderKind kind) {
  Matrix one(DType::E4M3, kind), three(DType::E4M3, kind), other(DType::E4M3, kind);
  for (int64_t number = 1; number <= 3; ++number) {
    one.step(number, 1);
    three.step(number, 3);
    other.step(number, 1, 4);
  }
  const auto same = [](const Matrix& a, const Matrix& b) {
    return std::equal(a.weight.begin(), a.weight.end(), b.weight.begin(),
                      [](Bf16 x, Bf16 y) { return x.bits == y.bits; }) &&
           a.pairs == b.pairs && a.m8 == b.m8 && a.v8 == b.v8 && a.m_scales == b.m_scales &&
           a.v_scales == b.v_scales;
  };
  EXPECT_TRUE(same(one, three));
  EXPECT_FALSE(same(one, other));
}

TEST(StochasticWeights, DependOnSeedStepAndPlaceAlone) {
  for (const RemainderKind kind : {RemainderKind::None, RemainderKind::Compact}) expect_same_rounding(kind);
}

TEST(GradNorm, NeitherHugeNorTinyGradientsAreLost) {
  const auto device = make_cpu_device(2);
  alignas(256) static uint8_t workspace[1 << 16];
  device->ops().set_workspace({workspace, DType::U8, {1 << 16}});
  std::vector<float> huge = {3e30f, 4e30f}, tiny = {3e-30f, 4e-30f};
  float result[2];
  const auto norm_of = [&](std::vector<float>& x, float max_norm) {
    const Tensor gradient{x.data(), DType::F32, {2}};
    device->ops().grad_norm({result, DType::F32, {2}}, {&gradient, 1}, max_norm, {});
  };
  norm_of(huge, 1.0f);
  EXPECT_FLOAT_EQ(result[0], 5e30f);
  EXPECT_FLOAT_EQ(result[1], 2e-31f);
  norm_of(tiny, 1.0f);
  EXPECT_FLOAT_EQ(result[0], 5e-30f);
  EXPECT_EQ(result[1], 1.0f);
  norm_of(huge, 0.0f);
  EXPECT_EQ(result[1], 1.0f);
}

// Every 4267th of all floats: about a million, NaN among them.
TEST(FastExp, IsWithinOneAndAHalfUlp) {
  double worst = 0;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 251 * 17) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    const float got = cpu::fast_exp(x);
    if (std::isnan(x)) {
      ASSERT_TRUE(std::isnan(got));
      continue;
    }
    const double expected = std::exp(static_cast<double>(x));
    if (x > 88.0f) continue;
    if (x < -87.0f) {
      ASSERT_EQ(got, 0.0f) << x;
    } else {
      const double ulp = std::exp2(std::floor(std::log2(expected)) - 23);
      worst = std::max(worst, std::fabs(static_cast<double>(got) - expected) / ulp);
    }
  }
  EXPECT_LE(worst, 1.5);
  RecordProperty("worst_ulp", std::to_string(worst));
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(cpu::fast_exp(-kInfinity), 0.0f);
  EXPECT_EQ(cpu::fast_exp(std::nextafter(-87.0f, -kInfinity)), 0.0f);
  EXPECT_NEAR(cpu::fast_exp(-87.0f) / std::exp(-87.0f), 1.0, 2e-7);
  EXPECT_EQ(cpu::fast_exp(0.0f), 1.0f);
  EXPECT_NEAR(cpu::fast_exp(88.0f) / std::exp(88.0f), 1.0, 2e-7);
}

}  // namespace
}  // namespace octet
