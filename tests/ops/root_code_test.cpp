// The 8-bit code of square roots that AdamW keeps for v.

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <cmath>
#include <memory>

#include "base/philox.h"
#include "ops/device.h"
#include "ops/stochastic.h"

namespace octet {
namespace {

constexpr uint32_t kAllNoise = 0xFFFFFF;

float shifted_value(int code) {
  return root_value(static_cast<uint8_t>(code)) * kE4m3AsFp32;
}

TEST(RootCode, SpansTwelveOctavesInEvenSteps) {
  EXPECT_EQ(root_value(0), kRootSmallest);
  EXPECT_EQ(root_value(255), kRootLargest);
  for (int code = 0; code < 255; ++code) {
    const auto value = static_cast<double>(root_value(static_cast<uint8_t>(code)));
    const double octave = std::exp2(std::floor(std::log2(value)));
    EXPECT_EQ(static_cast<double>(root_value(static_cast<uint8_t>(code + 1))) - value,
              octave / (code < 128 ? 16 : 32))
        << code;
  }
  EXPECT_EQ(root_value(128), 512.0f) << "the first with 5 bits of mantissa";
}

TEST(RootCode, GoesToANeighbourAndIsRightInTheMean) {
  for (int code = 0; code < 256; ++code) {
    const float below = shifted_value(code);
    for (const uint32_t noise : {0u, 0x123456u, kNoiseToNearest, kAllNoise})
      EXPECT_EQ(to_root_code(below, noise), code) << noise;
    if (code == 255) continue;
    const float step = shifted_value(code + 1) - below;
    for (const float share : {0.125f, 0.5f, 0.8125f, 1.0f - 0x1p-18f}) {
      const float x = below + share * step;
      // As many of all noises as the share says lead to the code above.
      const auto first_up = static_cast<uint32_t>((1.0f - share) * 0x1p24f);
      EXPECT_EQ(to_root_code(x, 0), code) << code << " " << share;
      EXPECT_EQ(to_root_code(x, first_up - 1), code) << code << " " << share;
      EXPECT_EQ(to_root_code(x, first_up), code + 1) << code << " " << share;
      EXPECT_EQ(to_root_code(x, kAllNoise), code + 1) << code << " " << share;
      EXPECT_EQ(to_root_code(x, kNoiseToNearest), share < 0.5f ? code : code + 1) << code << " " << share;
    }
  }
}

// The same with the noise that AdamW has: over 2^16 draws, the mean of a value's codes is the value, to five times the
// deviation that such a mean has.
TEST(RootCode, MeanOverManyDraws) {
  constexpr int64_t kDraws = 1 << 16;
  for (const float value : {2.03f, 3.9f, 100.7f, 511.0f, 530.0f, 4000.1f, 8050.0f}) {
    double sum = 0, step = 0;
    for (int64_t draw = 0; draw < kDraws; ++draw) {
      const RoundingBits bits = RoundingBits::of(5, 1, 7, 0, kDraws / 8, draw / 8);
      const auto noise = bits.root(static_cast<int>(draw % 8));
      const uint8_t code = to_root_code(value * kE4m3AsFp32, noise);
      sum += static_cast<double>(root_value(code));
      if (draw == 0) {
        const uint8_t below = to_root_code(value * kE4m3AsFp32, 0);
        step = static_cast<double>(root_value(static_cast<uint8_t>(below + 1)) - root_value(below));
      }
    }
    EXPECT_NEAR(sum / kDraws, static_cast<double>(value), 5 * 0.5 * step / std::sqrt(kDraws)) << value;
  }
}

// Moments that live on for many steps under gradients like noise: the mean over elements stays right. (What is rounded depends
// on earlier noise here.)
TEST(RootCode, MeanOfRootsOverManySteps) {
  constexpr int64_t kGroups = 256, kSteps = 400;
  constexpr double kBeta = 0.95, kTypical = 1000;
  double sum = 0, exact_sum = 0;
  for (int64_t group = 0; group < kGroups; ++group) {
    for (int j = 0; j < 8; ++j) {
      double root = kTypical, square = kTypical * kTypical;
      for (int64_t step = 1; step <= kSteps; ++step) {
        const double g =
            kTypical *
            static_cast<double>(
                Philox(7, static_cast<uint64_t>(8 * group + j)).normal(static_cast<uint64_t>(step)));
        square = kBeta * square + (1 - kBeta) * g * g;
        const auto next = static_cast<float>(std::sqrt(kBeta * root * root + (1 - kBeta) * g * g));
        const RoundingBits bits = RoundingBits::of(5, 1, step, 0, kGroups, group);
        root = static_cast<double>(root_value(to_root_code(next * kE4m3AsFp32, bits.root(j))));
        if (step > kSteps / 2) sum += root, exact_sum += std::sqrt(square);
      }
    }
  }
  EXPECT_NEAR(sum / exact_sum, 1, 0.01);
}

// The largest of a block is code 255 and never gets past it; what is below 2^-12 of it is code 0.
TEST(RootCode, FactorsFitTheLargestOfABlock) {
  for (const int exponent : {-48, -20, 0, 13, 14, 15, 40, 63}) {
    for (uint64_t i = 0; i < 10000; ++i) {
      const float largest = std::ldexp(1.0f + Philox(4).uniform(i), exponent);
      const float factor = root_factor(largest);
      const MomentShift shift = MomentShift::of_root(largest);
      ASSERT_EQ(to_root_code(shift(largest), kAllNoise), 255) << largest;
      ASSERT_EQ(to_root_code(shift(largest), kNoiseToNearest), 255) << largest;
      ASSERT_NEAR(static_cast<double>(root_value(255)) * static_cast<double>(factor),
                  static_cast<double>(largest), 1.2e-6 * static_cast<double>(largest));
      const float x = largest * (0x1p-11f + Philox(5).uniform(i));
      if (x <= largest) {
        const double expected = static_cast<double>(x) / static_cast<double>(factor);
        ASSERT_NEAR(static_cast<double>(shift(x)) * 0x1p120, expected, 1e-6 * expected) << largest;
        const double nearest = static_cast<double>(root_value(to_root_code(shift(x), kNoiseToNearest)));
        ASSERT_NEAR(nearest, expected, expected / (expected < 512 ? 32 : 64) * (1 + 1e-5)) << largest;
      }
      for (const float tiny : {0.0f, 0x1p-50f / 0x1p20f * largest, 0x1p-13f * largest})
        ASSERT_EQ(to_root_code(shift(tiny), kAllNoise), 0) << largest << " " << tiny;
    }
  }
}

TEST(RootCode, ABlockOfZerosHasFactorZero) {
  for (const float dust : {0.0f, 0x1p-50f, 0x1p-49f}) {
    EXPECT_EQ(root_factor(dust), 0.0f);
    EXPECT_EQ(MomentShift::of_root(dust)(dust), 0.0f);
    EXPECT_EQ(to_root_code(MomentShift::of_root(dust)(dust), kAllNoise), 0);
  }
  // What is not finite becomes some code, and the factor tells.
  EXPECT_EQ(to_root_code(std::nanf(""), kAllNoise), 0);
  EXPECT_EQ(root_factor(HUGE_VALF), HUGE_VALF);
}

// Two parameters with the same gradients, one with moments of 8 bits and one with fp32 moments.
class RootNoise : public testing::Test {
 protected:
  static constexpr int64_t kRows = 8, kCols = 128;
  static constexpr size_t kSize = kRows * kCols;

  // AdamW without a mean and with a learning rate of 1 moves a weight by g / root, with the root before it is rounded
  // again. So the ratio of two moves is that of the roots.
  void step(int64_t number, float beta2) {
    alignas(256) static uint8_t workspace[1 << 20];
    device->ops().set_workspace({workspace, DType::U8, {1 << 20}});
    const Shape shape{kRows, kCols}, scales{kRows, 1};
    std::fill(small.begin(), small.end(), 0.0f);
    std::fill(wide.begin(), wide.end(), 0.0f);
    AdamWParameter parameters[2];
    for (AdamWParameter& p : parameters) p.gradient = {gradient.data(), DType::F32, shape};
    parameters[0].weight = {small.data(), DType::F32, shape};
    parameters[0].m = {m8.data(), DType::E4M3, shape};
    parameters[0].v = {v8.data(), DType::U8, shape};
    parameters[0].m_scales = {m_scales.data(), DType::F32, scales};
    parameters[0].v_scales = {v_scales.data(), DType::F32, scales};
    parameters[1].weight = {wide.data(), DType::F32, shape};
    parameters[1].m = {m32.data(), DType::F32, shape};
    parameters[1].v = {v32.data(), DType::F32, shape};
    float clip[] = {1.0f, 1.0f};
    device->ops().adamw(
        parameters, {clip, DType::F32, {2}},
        {.learning_rate = 1, .beta1 = 0, .beta2 = beta2, .epsilon = 1e-12f, .step = number, .seed = 3});
  }

  const std::unique_ptr<Device> device = make_cpu_device(2);
  std::vector<float> gradient = std::vector<float>(kSize), small = gradient, wide = gradient, m32 = gradient,
                     v32 = gradient, m_scales = std::vector<float>(kRows), v_scales = m_scales;
  std::vector<uint8_t> m8 = std::vector<uint8_t>(kSize), v8 = m8;
};

// The roots are rounded in every step, and v keeps the errors of 1 / (1 - beta2) steps. docs/fp8.md has these figures. The
// gradients of a block differ in size, as they do in models: small roots have fewer bits.
TEST_F(RootNoise, GrowsWithTheStepsThatVRemembers) {
  struct Case {
    float beta2;
    int64_t steps, settled;
    double least, most, bias;
  };
  for (const Case& c : {Case{0.95f, 100, 60, 0.025, 0.04, 0.003}, Case{0.99f, 600, 400, 0.05, 0.075, 0.006},
                        Case{0.999f, 4000, 3000, 0.07, 0.095, 0.02}}) {
    for (auto* moments : {&m32, &v32, &m_scales, &v_scales})
      std::fill(moments->begin(), moments->end(), 0.0f);
    for (auto* codes : {&m8, &v8}) std::fill(codes->begin(), codes->end(), uint8_t{0});
    double sum = 0, squares = 0, count = 0;
    for (int64_t number = 1; number <= c.steps; ++number) {
      const Philox random(100 + static_cast<uint64_t>(number));
      for (size_t i = 0; i < kSize; ++i) gradient[i] = std::exp(Philox(99).normal(i)) * random.normal(i);
      step(number, c.beta2);
      if (number <= c.settled) continue;
      for (size_t i = 0; i < kSize; ++i) {
        if (wide[i] == 0.0f) continue;
        const auto ratio = static_cast<double>(small[i] / wide[i]);
        sum += ratio, squares += ratio * ratio, count += 1;
      }
    }
    const double mean = sum / count, noise = std::sqrt(squares / count - mean * mean);
    RecordProperty(fmt::format("noise_{}", c.beta2), std::to_string(noise));
    EXPECT_NEAR(mean, 1.0, c.bias) << c.beta2;
    EXPECT_LT(noise, c.most) << c.beta2;
    EXPECT_GT(noise, c.least) << c.beta2;
  }
}

}  // namespace
}  // namespace octet
