// Spikes, numbers that are not finite, and where they come from.

#include "train/guards.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/tiny_run.h"

namespace octet::test {
namespace {

TEST(SpikeDetector, AFlatWindowAndOneHugeLoss) {
  SpikeDetector detector;
  for (int i = 0; i < 128; ++i) EXPECT_FALSE(detector.look(2.0));
  const auto spike = detector.look(1e6);
  ASSERT_TRUE(spike);
  // With the candidate inside the window, no value of 128 can be further than sqrt(127) = 11.27 deviations away.
  EXPECT_GT(spike->deviations, 11.27);
  EXPECT_EQ(spike->mean, 2.0);
}

TEST(SpikeDetector, TenTimesTheLargestOfANoisyWindowIsFlaggedAtOnce) {
  SpikeDetector detector;
  for (int i = 0; i < 100; ++i)
    EXPECT_FALSE(detector.look(i % 2 == 0 ? 0.1 : 3.0));  // deviations alone would pass 20
  EXPECT_FALSE(detector.look(4.0));
  EXPECT_TRUE(detector.look(40.0));
  EXPECT_FALSE(detector.look(3.0)) << "the spike itself must not widen the window";
}

TEST(SpikeDetector, AFallingLossWithNoiseIsNoSpike) {
  SpikeDetector detector;
  for (int i = 0; i < 1000; ++i) {
    EXPECT_FALSE(detector.look(6.0 * std::exp(-i / 300.0) + 1.5 + 0.1 * std::sin(12.9898 * i))) << i;
  }
}

TEST(SpikeDetector, NothingIsJudgedBeforeThereIsSomethingToJudgeBy) {
  SpikeDetector detector;
  for (size_t i = 0; i < SpikeDetector::kFewest; ++i) EXPECT_FALSE(detector.look(i == 3 ? 1e6 : 1.0)) << i;
}

TEST(SpikeDetector, ALossThatStaysHighIsTheNewLevel) {
  SpikeDetector detector;
  for (int i = 0; i < 50; ++i) detector.look(1.0 + 0.01 * (i % 3));
  int flagged = 0;
  for (int i = 0; i < 200; ++i) flagged += detector.look(3.0 + 0.01 * (i % 3)).has_value();
  EXPECT_GE(flagged, SpikeDetector::kAccepted);
  EXPECT_LT(flagged, 30);
}

TEST(SpikeDetector, ARestoredOneJudgesAsTheFirst) {
  SpikeDetector first, second;
  for (int i = 0; i < 200; ++i) first.look(2.0 + 0.1 * std::sin(i));
  first.look(30.0);
  second.restore(first.window(), first.spikes_in_a_row());
  for (const double loss : {2.0, 25.0, 2.1, 2.6, 30.0}) {
    const auto a = first.look(loss), b = second.look(loss);
    ASSERT_EQ(a.has_value(), b.has_value());
    EXPECT_EQ(a ? a->deviations : 0, b ? b->deviations : 0);
  }
}

TEST(AllFinite, FindsOneBadValueAmongMany) {
  std::vector<float> values(10001, 1.0f);
  const auto bytes = std::as_bytes(std::span(values));
  EXPECT_TRUE(all_finite(bytes, DType::F32));
  for (const float bad :
       {std::nanf(""), std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    values[9999] = bad;
    EXPECT_FALSE(all_finite(bytes, DType::F32));
  }
  values[9999] = std::numeric_limits<float>::max();
  EXPECT_TRUE(all_finite(bytes, DType::F32));
  std::vector<uint16_t> half(333, 0x3F80);
  EXPECT_TRUE(all_finite(std::as_bytes(std::span(half)), DType::BF16));
  half[0] = 0xFF80;
  EXPECT_FALSE(all_finite(std::as_bytes(std::span(half)), DType::BF16));
}

TEST(NonFiniteGradients, TheUppermostLayerIsNamed) {
  TinyRun run({.precision = Precision::Bf16});
  run.step();
  EXPECT_EQ(describe_nonfinite_gradients(*run.backend, run.model->parameters()), "");
  for (const char* name : {"layers.0.mlp.up.weight", "layers.1.attention.out.weight"}) {
    Tensor gradient = run.model->parameters()[name].gradient;
    std::vector<float> values(static_cast<size_t>(gradient.numel()), std::nanf(""));
    ASSERT_EQ(gradient.dtype, DType::F32);
    run.backend->copy_to_device(gradient, values.data());
  }
  const std::string text = describe_nonfinite_gradients(*run.backend, run.model->parameters());
  EXPECT_NE(text.find("2 of "), std::string::npos) << text;
  EXPECT_NE(text.find("layers.1.attention.out.weight"), std::string::npos) << text;
}

// FAULTS 16: a gradient that is not finite leaves weights and moments as they are.
TEST(SkippedStep, ChangesNoWeightAndNoMoment) {
  TinyRun run({.precision = Precision::Bf16});
  run.step();
  Parameter& gain = run.model->parameters()["final_norm.gain"];
  const std::vector<float> good = ParameterSet::weight_values(*run.backend, gain);
  std::vector<float> huge(good.size(), 3e38f);
  ParameterSet::set_weight(*run.backend, gain, huge);
  const std::vector<float> before = run.weights();
  std::vector<float> moment(static_cast<size_t>(gain.m.numel())), after_moment(moment.size());
  run.backend->copy_to_host(moment.data(), gain.m);
  const StepResult bad = run.step();
  EXPECT_TRUE(bad.skipped) << bad.loss << " " << bad.grad_norm;
  run.backend->copy_to_host(after_moment.data(), gain.m);
  EXPECT_EQ(run.weights(), before);
  EXPECT_EQ(after_moment, moment);
  ParameterSet::set_weight(*run.backend, gain, good);
  EXPECT_FALSE(run.step().skipped);
}

}  // namespace
}  // namespace octet::test
