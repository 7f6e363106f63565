// Bytes against formulas that are written out by hand, and seconds against small cases.

#include "plan/rank_costs.h"

#include <gtest/gtest.h>

#include <cmath>

namespace octet::test {
namespace {

constexpr int64_t kLayers = 3, kWidth = 64, kFfn = 128, kVocab = 256;

// One head of width 32 for keys and values; 64-wide rows everywhere, so no part needs padding with 2 or 4 ranks.
ModelConfig tiny_model() {
  ModelConfig config = model_preset("llama-tiny");
  config.layers = kLayers;
  config.width = kWidth;
  config.heads = 2;
  config.kv_heads = 1;
  config.head_dim = 32;
  config.ffn = kFfn;
  config.vocab = kVocab;
  config.tied_head = false;
  return config;
}
constexpr int64_t kLayerMatrices = kWidth * (2 + 2) * 32 + 64 * kWidth + 2 * kFfn * kWidth + kFfn * kWidth;
constexpr int64_t kTable = kVocab * kWidth;  // embedding, and the same again for the head
constexpr int64_t kNorms = kWidth;           // two per layer, and a last one

class RankCosts : public testing::Test {
 protected:
  RankTraffic traffic(ShardingMode mode, int64_t ranks, int64_t group = 0,
                      Precision precision = Precision::Fp8, DType wire = DType::BF16) {
    Numerics numerics;
    numerics.precision = precision;
    Finetuning finetuning;
    finetuning.sharding = {.mode = mode, .ranks = ranks, .group = group == 0 ? ranks : group, .wire = wire};
    Transformer transformer(tiny_model(), {.rows = 1, .length = 64}, numerics, *device_, finetuning);
    return rank_traffic(transformer);
  }
  const std::unique_ptr<Device> device_ = make_cpu_device(1);
};

GroupTransfer sum_of(const RankTraffic& traffic, GroupTransfer GroupTraffic::*member) {
  GroupTransfer sum;
  for (const GroupTraffic& group : traffic.groups) sum += group.*member;
  return sum;
}

TEST_F(RankCosts, BytesOfZero1AreThoseOfTheFormula) {
  const RankTraffic t = traffic(ShardingMode::Zero1, 4);
  const double all = kLayers * (kLayerMatrices + 2 * kNorms) + 2 * kTable + kNorms;
  // Gradients as bf16, three quarters of them from others.
  EXPECT_EQ(sum_of(t, &GroupTraffic::exchange).inside.bytes, all * 2 * 3 / 4);
  EXPECT_EQ(sum_of(t, &GroupTraffic::exchange_early).inside.bytes, 0);
  // Codes of one byte for the layers' matrices, bf16 for embedding, head and norms.
  const double weights = kLayers * (kLayerMatrices + 2 * kNorms * 2) + 2 * kTable * 2 + kNorms * 2;
  EXPECT_EQ(sum_of(t, &GroupTraffic::gather_kept).inside.bytes, weights * 3 / 4);
  EXPECT_EQ(sum_of(t, &GroupTraffic::gather_per_layer).inside.calls, 0);
  EXPECT_EQ(sum_of(t, &GroupTraffic::gather_kept).between.calls, 0);
  int64_t updated = 0;
  for (const GroupTraffic& group : t.groups) updated += group.updated_elements;
  EXPECT_EQ(updated, static_cast<int64_t>(all) / 4);
}

TEST_F(RankCosts, BytesOfOtherModesAreThoseOfTheFormulas) {
  const double matrices = kLayers * kLayerMatrices, rest = kLayers * 2 * kNorms + 2 * kTable + kNorms;
  const RankTraffic none = traffic(ShardingMode::None, 2);
  EXPECT_EQ(sum_of(none, &GroupTraffic::exchange).inside.bytes, (matrices + rest) * 2 / 2);
  EXPECT_EQ(sum_of(none, &GroupTraffic::gather_sums).inside.bytes, (matrices + rest) * 4 / 2);
  EXPECT_EQ(sum_of(none, &GroupTraffic::gather_kept).inside.calls, 0);

  const RankTraffic zero2 = traffic(ShardingMode::Zero2, 2, 0, Precision::Bf16, DType::F32);
  EXPECT_EQ(sum_of(zero2, &GroupTraffic::exchange).inside.bytes, (matrices + rest) * 4 / 2);
  EXPECT_EQ(sum_of(zero2, &GroupTraffic::exchange_early).inside.bytes, matrices * 4 / 2);

  const RankTraffic fsdp = traffic(ShardingMode::FsdpFull, 2);
  EXPECT_EQ(sum_of(fsdp, &GroupTraffic::gather_per_layer).inside.bytes, matrices / 2);
  EXPECT_EQ(sum_of(fsdp, &GroupTraffic::gather_kept).inside.bytes,
            (kLayers * 2 * kNorms * 2 + 2 * kTable * 2 + kNorms * 2) / 2.0);

  // Two nodes of two: half of a group's gradients comes from its other rank; sums of a quarter cross the network.
  const RankTraffic hsdp = traffic(ShardingMode::Hsdp, 4, 2);
  EXPECT_EQ(sum_of(hsdp, &GroupTraffic::exchange).inside.bytes, (matrices + rest) * 2 / 2);
  EXPECT_EQ(sum_of(hsdp, &GroupTraffic::exchange).between.bytes, (matrices + rest) / 2 * 2 / 2);
  EXPECT_EQ(sum_of(hsdp, &GroupTraffic::gather_per_layer).inside.bytes, matrices / 2);
  const double kept = kLayers * (kLayerMatrices + 2 * kNorms * 2) + 2 * kTable * 2 + kNorms * 2;
  EXPECT_EQ(sum_of(hsdp, &GroupTraffic::gather_kept).between.bytes, kept / 2 / 2);
}

TEST_F(RankCosts, ASingleRankSendsNothing) {
  const RankTraffic t = traffic(ShardingMode::None, 1);
  const StepForecast step = forecast_step(t, {.layer_forward = 1, .layer_backward = 2, .head = 3}, {}, 2, 1);
  EXPECT_DOUBLE_EQ(step.step, 2.0 * (kLayers * 3 + 3));
  EXPECT_EQ(step.efficiency(), 1);
  EXPECT_EQ(step.gather_bytes + step.reduce_bytes, 0);
}

TEST(TransferSeconds, TakeTheSlowerOfNodeAndNetwork) {
  const LinkSpeeds speeds{.node_gb = 100, .network_gb = 10, .node_latency_us = 20, .network_latency_us = 5};
  const Transfer one{.bytes = 1e9, .calls = 1};
  EXPECT_DOUBLE_EQ(transfer_seconds(one, CollectiveKind::Gather, 8, 8, speeds), 20e-6 + 1e9 / 100e9);
  EXPECT_DOUBLE_EQ(transfer_seconds({1e9, 3}, CollectiveKind::Exchange, 8, 8, speeds), 60e-6 + 1e9 / 100e9);
  EXPECT_EQ(transfer_seconds(one, CollectiveKind::Gather, 1, 8, speeds), 0);
  EXPECT_EQ(transfer_seconds({}, CollectiveKind::Gather, 8, 8, speeds), 0);
  // 4 of the 7 other ranks are on the other node; four adapters share a gather.
  EXPECT_DOUBLE_EQ(transfer_seconds(one, CollectiveKind::Gather, 8, 4, speeds),
                   20e-6 + 4 * 5e-6 + 1e9 * 4 / 7 / 40e9);
  EXPECT_DOUBLE_EQ(transfer_seconds(one, CollectiveKind::Exchange, 8, 4, speeds),
                   20e-6 + 4 * 5e-6 + 1e9 * 4 / 7 / 10e9);
}

// Two layers, everything by hand. Speeds: 1 byte takes 1 s inside a node; no latency.
TEST(ForecastStep, FollowsTheQueues) {
  const LinkSpeeds speeds{.node_gb = 1e-9, .node_latency_us = 0, .compute_slowdown = 0, .step_spread = 0};
  RankTraffic t{.sharding = {.mode = ShardingMode::Zero1, .ranks = 2, .group = 2}};
  t.groups.resize(4);
  const auto calls = [](double bytes) {
    return GroupTransfer{.inside = {.bytes = bytes, .calls = 1}, .between = {}};
  };
  for (GroupTraffic& group : t.groups) group.updated_elements = 1;
  t.groups[1].exchange = t.groups[2].exchange = calls(3);
  t.groups[1].gather_kept = t.groups[2].gather_kept = calls(2);
  const ComputeTimes compute{.layer_forward = 5, .layer_backward = 10, .head = 1, .per_updated_element = 1};
  // Computation 2 x 5 + 1 + 2 x 10 + 4 of the optimizer = 35. The exchange of the first layer ends 3 s after backward.
  // Its weights travel while later groups are updated: they are there when the next step begins.
  const StepForecast step = forecast_step(t, compute, speeds, 1, 2);
  EXPECT_DOUBLE_EQ(step.compute, 35);
  EXPECT_DOUBLE_EQ(step.step, 38);
  EXPECT_DOUBLE_EQ(step.reduce_waits, 3);
  EXPECT_DOUBLE_EQ(step.gather_waits, 0);
  EXPECT_DOUBLE_EQ(step.gather, 4);
  EXPECT_DOUBLE_EQ(step.reduce, 6);
  EXPECT_DOUBLE_EQ(step.gather_bytes, 4);
  EXPECT_DOUBLE_EQ(step.efficiency(), 35.0 / 38);
  // Exchanges that take longer than a layer's backward wait for each other: 12 + 12 after the first layer's 10.
  t.groups[1].exchange = t.groups[2].exchange = calls(12);
  EXPECT_DOUBLE_EQ(forecast_step(t, compute, speeds, 1, 2).reduce_waits, 14);
  // Weights that take longer than the optimizer: both layers' 10 s, from 2 and 12 s after the update began, are needed at
  // 4 and 17 s.
  t.groups[1].gather_kept = t.groups[2].gather_kept = calls(10);
  EXPECT_DOUBLE_EQ(forecast_step(t, compute, speeds, 1, 2).gather_waits, 8 + 5);
}

// Layers of fsdp_full are fetched for forward and again for backward, except the two that are still there.
TEST(ForecastStep, FetchesLayersThatAreNotThere) {
  const LinkSpeeds speeds{.node_gb = 1e-9, .node_latency_us = 0, .compute_slowdown = 0, .step_spread = 0};
  RankTraffic t{.sharding = {.mode = ShardingMode::FsdpFull, .ranks = 2, .group = 2}};
  t.groups.resize(2 + 5);
  for (size_t layer = 1; layer <= 5; ++layer)
    t.groups[layer].gather_per_layer.inside = {.bytes = 1, .calls = 1};
  const ComputeTimes compute{.layer_forward = 2, .layer_backward = 4, .head = 1};
  EXPECT_DOUBLE_EQ(forecast_step(t, compute, speeds, 1, 2).gather_bytes, 5 + 3);
  EXPECT_DOUBLE_EQ(forecast_step(t, compute, speeds, 2, 2).gather_bytes, 5 + 3 + 3 + 3);
  // All are hidden: each is fetched while the layer before it runs, and the first ones with the optimizer of the last.
  const StepForecast step = forecast_step(t, compute, speeds, 1, 2);
  EXPECT_DOUBLE_EQ(step.gather_waits, 1) << "without an optimizer nothing hides the first";
}

TEST_F(RankCosts, EfficiencyFallsWithTheNumberOfRanks) {
  const ComputeTimes compute{
      .layer_forward = 1e-4, .layer_backward = 2e-4, .head = 1e-4, .per_updated_element = 1e-9};
  for (const ShardingMode mode : {ShardingMode::None, ShardingMode::Zero1, ShardingMode::Zero2,
                                  ShardingMode::FsdpFull, ShardingMode::Hsdp}) {
    double before = 1 + 1e-12;
    for (int64_t ranks = 1; ranks <= 32; ranks *= 2) {
      const int64_t local = std::min<int64_t>(ranks, 8);
      const bool hsdp = mode == ShardingMode::Hsdp;
      const double now =
          forecast_step(traffic(ranks == 1 ? ShardingMode::None : mode, ranks, hsdp && ranks > 1 ? local : 0),
                        compute, {}, 1, local)
              .efficiency();
      EXPECT_LT(now, before) << name_of(mode) << " on " << ranks;
      EXPECT_GT(now, 0);
      before = now;
    }
  }
}

}  // namespace
}  // namespace octet::test
