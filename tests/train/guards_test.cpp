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
  for (size_t i = 0; i < SpikeDetector::kFewestEarly; ++i)
    EXPECT_FALSE(detector.look(i == 3 ? 1e6 : 1.0)) << i;
}

TEST(SpikeDetector, AJumpInTheFirstStepsIsSeen) {
  SpikeDetector detector;
  for (const double loss : {5.53, 5.20, 4.93, 4.70}) EXPECT_FALSE(detector.look(loss));
  EXPECT_TRUE(detector.look(12.0)) << "the fifth step";
  for (const double loss : {4.55, 4.41, 4.36, 4.31}) EXPECT_FALSE(detector.look(loss));
  EXPECT_TRUE(detector.look(6.51));
}

TEST(SpikeDetector, NoiseOfTheFirstStepsIsNoSpike) {
  SpikeDetector detector;
  for (const double loss : {0.5, 0.9, 0.4, 0.7, 1.3, 0.3, 0.8, 1.1, 0.2, 1.2})
    EXPECT_FALSE(detector.look(loss)) << loss;
  SpikeDetector flat;  // a deviation of nearly 0
  for (const double loss : {10.82, 10.82, 10.82, 10.82, 10.83, 10.81}) EXPECT_FALSE(flat.look(loss)) << loss;
}

TEST(NormSpikeDetector, ANormFarAboveTheRecentOnesIsSeenFromTheFifthStepOn) {
  NormSpikeDetector detector;
  for (const double norm : {6.5, 300.0, 4.0, 5.0}) EXPECT_FALSE(detector.look(norm)) << norm;
  const std::optional<double> times = detector.look(257);
  ASSERT_TRUE(times);
  EXPECT_NEAR(*times, 257 / 6.5, 1e-9);
  EXPECT_FALSE(detector.look(20)) << "single steps of small batches";
}

TEST(NormSpikeDetector, ANewLevelIsAcceptedAndADriftIsNone) {
  NormSpikeDetector detector;
  int flagged = 0;
  for (int i = 0; i < 60; ++i) flagged += detector.look(i < 20 ? 1.0 : 50.0).has_value();
  EXPECT_GE(flagged, NormSpikeDetector::kAccepted);
  EXPECT_LT(flagged, 30);
  NormSpikeDetector drift;
  for (int i = 0; i < 300; ++i) EXPECT_FALSE(drift.look(0.01 * std::exp(0.05 * i))) << i;
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
  EXPECT_EQ(describe_nonfinite_gradients(*run.device, run.model->parameters()), "");
  for (const char* name : {"layers.0.mlp.up.weight", "layers.1.attention.out.weight"}) {
    Tensor gradient = run.model->parameters()[name].gradient;
    std::vector<float> values(static_cast<size_t>(gradient.numel()), std::nanf(""));
    ASSERT_EQ(gradient.dtype, DType::F32);
    run.device->copy_to_device(gradient, values.data());
  }
  const std::string text = describe_nonfinite_gradients(*run.device, run.model->parameters());
  EXPECT_NE(text.find("2 of "), std::string::npos) << text;
  EXPECT_NE(text.find("layers.1.attention.out.weight"), std::string::npos) << text;
}

TEST(NonFiniteGradients, TheLastWordsAreWholeSentences) {
  NotFiniteEnd end{
      .steps_in_a_row = 3, .step = 41, .gradients = "2 of 9 gradients are not finite", .learning_rate = 0.01};
  EXPECT_EQ(no_finite_gradient_text(end),
            "3 steps in a row up to step 41 had no finite gradient; 2 of 9 gradients are not finite. Lower "
            "learning_rate (now 0.01)");
  end.gradients = "";
  end.fp8_margin = 2;
  EXPECT_EQ(
      no_finite_gradient_text(end),
      "3 steps in a row up to step 41 had no finite gradient. Lower learning_rate (now 0.01), raise "
      "fp8_margin (now 2), try fp8_recipe current, add layers to fp8_skip_layers, or train in BF16 with mixed_precision bf16");
}

TEST(NonFiniteGradients, TheLearningRateIsNotBlamedForWhatItCannotChange) {
  NotFiniteEnd end{
      .steps_in_a_row = 2, .step = 2, .was_trained = false, .learning_rate = 0.01, .penalty_weight = 1e38f};
  EXPECT_EQ(
      no_finite_gradient_text(end),
      "2 steps in a row up to step 2 had no finite gradient. No step has changed the weights yet, so "
      "learning_rate is not the cause. Lower penalty_weight (now 1e+38), or look at the weights that the run "
      "started from, and at its data");
  TinyRun run({.precision = Precision::Bf16});
  run.step();
  EXPECT_EQ(describe_nonfinite_weights(*run.device, run.model->parameters()), "");
  Parameter& gain = run.model->parameters()["final_norm.gain"];
  ParameterSet::set_weight(*run.device, gain,
                           std::vector<float>(static_cast<size_t>(gain.weight.numel()), NAN));
  end.was_trained = true;
  end.weights = describe_nonfinite_weights(*run.device, run.model->parameters());
  const std::string text = no_finite_gradient_text(end);
  EXPECT_NE(text.find("1 of "), std::string::npos) << text;
  EXPECT_NE(text.find("Continue from an older checkpoint"), std::string::npos) << text;
}

// FAULTS 16: a gradient or loss that is not finite leaves weights, moments and FP8 scales as they are.
TEST(SkippedStep, ChangesNothing) {
  for (const Precision precision : {Precision::Bf16, Precision::Fp8}) {
    TinyRun run({.precision = precision});
    run.steps(2);
    Parameter& gain = run.model->parameters()["final_norm.gain"];
    const std::vector<float> good = ParameterSet::weight_values(*run.device, gain);
    ParameterSet::set_weight(*run.device, gain, std::vector<float>(good.size(), 3e38f));
    const auto state = [&] {
      std::vector<std::vector<float>> values = {run.weights()};
      for (const Parameter& parameter : run.model->parameters().all()) {
        for (const Tensor& moment : {parameter.m, parameter.v}) {
          values.emplace_back(static_cast<size_t>(moment.numel()));
          run.device->copy_to_host(values.back().data(), moment);
        }
      }
      values.emplace_back();
      for (const auto& report : run.model->scales().reports(*run.device)) {
        values.back().push_back(static_cast<float>(report.scale));
      }
      return values;
    };
    const auto before = state();
    const StepResult bad = run.step();
    EXPECT_TRUE(bad.skipped) << bad.loss << " " << bad.grad_norm;
    EXPECT_EQ(state(), before);
    ParameterSet::set_weight(*run.device, gain, good);
    EXPECT_FALSE(run.step().skipped);
  }
}

TEST(GradNorm, IsNotFiniteWhereTheLossIsNot) {
  const auto device = make_cpu_device(1);
  float gradient[3] = {1, 2, 2}, result[2], sums[2] = {5, 0};
  const Tensor tensor{gradient, DType::F32, {3}};
  const auto memory = device->allocate(1 << 20);
  device->ops().set_workspace({memory.get(), DType::U8, {1 << 20}});
  device->ops().grad_norm({result, DType::F32, {2}}, {&tensor, 1}, 0, {sums, DType::F32, {2}});
  EXPECT_EQ(result[0], 3.0f);
  sums[0] = std::numeric_limits<float>::infinity();
  device->ops().grad_norm({result, DType::F32, {2}}, {&tensor, 1}, 0, {sums, DType::F32, {2}});
  EXPECT_TRUE(std::isnan(result[0]));
}

}  // namespace
}  // namespace octet::test
