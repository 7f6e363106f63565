// What octet plan --ranks predicts for large models.

#include "bench/rank_forecast.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace octet::test {
namespace {

using testing::HasSubstr;

constexpr int64_t kGib = int64_t{1} << 30;

class RankForecast : public testing::Test {
 protected:
  Transformer& make(ShardingMode mode, int64_t ranks, Checkpointing level = Checkpointing::None,
                    Fp8FastAccum sums = Fp8FastAccum::Forward) {
    Numerics numerics;
    numerics.fp8.fast_accumulation = sums;
    numerics.precision = Precision::Fp8;
    numerics.moments = DType::BF16;
    numerics.gradients = DType::BF16;
    Finetuning finetuning;
    finetuning.sharding = {.mode = mode,
                           .ranks = ranks,
                           .group = mode == ShardingMode::Hsdp ? std::min<int64_t>(ranks, 8) : ranks};
    transformer_ = std::make_unique<Transformer>(
        model_preset("llama-3.1-8b"),
        RunShape{.rows = 8, .length = 1024, .checkpointing = level, .head_chunk_bytes = int64_t{2} << 30},
        numerics, *device_, finetuning);
    return *transformer_;
  }
  const GpuRates rates_ = *gpu_rates("h200");
  const std::unique_ptr<Device> device_ = make_planned_gpu("H200", 139 * kGib, 132);
  std::unique_ptr<Transformer> transformer_;
};

TEST_F(RankForecast, ComputationIsThatOfTheEstimate) {
  for (const Checkpointing level : {Checkpointing::None, Checkpointing::Mlp, Checkpointing::Block}) {
    const Transformer& model = make(ShardingMode::None, 1, level);
    const ComputeTimes times = compute_times(model, rates_);
    EXPECT_NEAR(32 * (times.layer_forward + times.layer_backward) + times.head,
                estimate_step(model, rates_, false).total(), 1e-9);
    EXPECT_GT(times.layer_backward, 1.5 * times.layer_forward);
    EXPECT_LT(times.layer_backward, 3.5 * times.layer_forward);
    // Exact sums make forward products longer, and nothing else.
    const ComputeTimes exact = compute_times(make(ShardingMode::None, 1, level, Fp8FastAccum::None), rates_);
    EXPECT_GT(exact.layer_forward, 1.02 * times.layer_forward);
    if (level == Checkpointing::None) {
      EXPECT_NEAR(exact.layer_backward, times.layer_backward, 1e-9);
    }
    // Fast ones in the gradients of inputs make backward shorter.
    const ComputeTimes fast =
        compute_times(make(ShardingMode::None, 1, level, Fp8FastAccum::ForwardDgrad), rates_);
    EXPECT_NEAR(fast.layer_forward, times.layer_forward, 1e-9);
    EXPECT_LT(fast.layer_backward, 0.995 * times.layer_backward);
  }
}

// Measured on one H200: 19,633 tokens/s, with gradients, optimizer and everything else, with exact sums.
TEST_F(RankForecast, OneGpuIsNearWhatWasMeasured) {
  const Transformer& model = make(ShardingMode::None, 1, Checkpointing::None, Fp8FastAccum::None);
  const auto points = forecast_scaling(model, *device_, rates_, {}, 1, 8, 139 * kGib, {}, 1);
  ASSERT_EQ(points.size(), 1u);
  EXPECT_NEAR(points[0].tokens_per_second, 19633, 0.1 * 19633);
}

TEST_F(RankForecast, EfficiencyFallsUpTo1024Gpus) {
  for (const ShardingMode mode : {ShardingMode::Zero1, ShardingMode::FsdpFull, ShardingMode::Hsdp}) {
    const Transformer& model = make(mode, 8);
    const auto points = forecast_scaling(model, *device_, rates_, {}, 2, 8, 139 * kGib);
    ASSERT_EQ(points.size(), 11u);
    EXPECT_EQ(points.back().ranks, 1024);
    EXPECT_EQ(points.back().nodes, 128);
    EXPECT_NEAR(points.front().step.efficiency(), 1, 1e-12);
    for (size_t i = 1; i < points.size(); ++i) {
      EXPECT_LT(points[i].step.efficiency(), points[i - 1].step.efficiency()) << name_of(mode) << " " << i;
      EXPECT_GT(points[i].tokens_per_second, points[i - 1].tokens_per_second) << name_of(mode) << " " << i;
      EXPECT_LT(points[i].bytes, points[i - 1].bytes) << name_of(mode) << " " << i;
    }
    EXPECT_THAT(scaling_text(points), HasSubstr("predicted efficiency"));
  }
}

TEST_F(RankForecast, BetweenNodesHsdpIsFasterThanOneFlatGroup) {
  const auto last = [&](ShardingMode mode) {
    return forecast_scaling(make(mode, 8), *device_, rates_, {}, 1, 8, 139 * kGib).back();
  };
  const ScalePoint flat = last(ShardingMode::FsdpFull), hsdp = last(ShardingMode::Hsdp);
  EXPECT_GT(hsdp.tokens_per_second, 2 * flat.tokens_per_second);
  EXPECT_LT(hsdp.step.between_nodes, flat.step.between_nodes);
}

// Each time is either hidden or waited for.
TEST_F(RankForecast, TheTimesAddUp) {
  for (const ShardingMode mode : {ShardingMode::None, ShardingMode::Zero2, ShardingMode::FsdpFull}) {
    Transformer& model = make(mode, 8);
    const StepForecast s = forecast_step(rank_traffic(model), compute_times(model, rates_), {}, 3, 8);
    EXPECT_NEAR(s.step, s.compute + s.small + s.gather_waits + s.reduce_waits + s.slowdown + s.stragglers,
                1e-9 * s.step);
    EXPECT_LE(s.gather_waits, s.gather);
    EXPECT_EQ(s.between_nodes, 0);
  }
}

}  // namespace
}  // namespace octet::test
