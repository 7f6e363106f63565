#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "backend/cpu/vector_math.h"
#include "base/philox.h"
#include "ops/backend.h"

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
      weight16.push_back({static_cast<uint16_t>((bits + 0x8000) >> 16)});
      remainder.push_back(static_cast<uint16_t>(bits));
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
    const auto low = static_cast<uint32_t>(static_cast<int32_t>(static_cast<int16_t>(remainder[i])));
    return std::bit_cast<float>((uint32_t{weight16[i].bits} << 16) + low);
  }
  std::vector<float> exact, weight32, gradient, m32, v32;
  std::vector<Bf16> weight16, m16, v16;
  std::vector<uint16_t> remainder;
  AdamWParameter view;
};

class AdamW : public testing::Test {
 protected:
  void step(Parameter& parameter, int threads, int64_t number, float norm = 1.0f) {
    const auto backend = make_cpu_backend(threads);
    backend->set_workspace({workspace.data(), DType::U8, {static_cast<int64_t>(workspace.size())}});
    float clip[] = {norm, 0.5f};
    const AdamWOptions options{
        .learning_rate = 1e-2f, .beta1 = 0.9f, .beta2 = 0.99f, .epsilon = 1e-8f, .step = number};
    backend->adamw({&parameter.view, 1}, {clip, DType::F32, {2}}, options);
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

TEST(GradNorm, NeitherHugeNorTinyGradientsAreLost) {
  const auto backend = make_cpu_backend(2);
  alignas(256) static uint8_t workspace[1 << 16];
  backend->set_workspace({workspace, DType::U8, {1 << 16}});
  std::vector<float> huge = {3e30f, 4e30f}, tiny = {3e-30f, 4e-30f};
  float result[2];
  const auto norm_of = [&](std::vector<float>& x, float max_norm) {
    const Tensor gradient{x.data(), DType::F32, {2}};
    backend->grad_norm({result, DType::F32, {2}}, {&gradient, 1}, max_norm);
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

// Every 4267th of all floats: about a million, NaN and Inf among them.
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
    if (expected > 3.4028235e38) {
      ASSERT_TRUE(std::isinf(got)) << x;
    } else if (expected < 0x1p-126) {
      ASSERT_LE(std::fabs(static_cast<double>(got) - expected), 0x1p-148) << x;
    } else {
      const double ulp = std::exp2(std::floor(std::log2(expected)) - 23);
      worst = std::max(worst, std::fabs(static_cast<double>(got) - expected) / ulp);
    }
  }
  EXPECT_LE(worst, 1.5);
  RecordProperty("worst_ulp", std::to_string(worst));
}

}  // namespace
}  // namespace octet
