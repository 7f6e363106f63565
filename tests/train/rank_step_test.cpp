// Steps of several ranks, which are threads here: every mode, recipe and accumulation.
#include <gtest/gtest.h>

#include <cmath>

#include "support/rank_run.h"

namespace octet::test {
namespace {

TinyRunOptions numerics(const std::string& name) {
  TinyRunOptions o{.rows = 1, .length = 32};
  if (name == "fp32") return o;
  o.precision = name == "bf16" ? Precision::Bf16 : Precision::Fp8;
  if (name == "current") o.fp8.recipe = Fp8Recipe::Current;
  if (name == "block") o.fp8.recipe = Fp8Recipe::Block;
  if (name == "mxfp8") o.fp8.recipe = Fp8Recipe::Mxfp8;
  if (name == "delayed_head") o.fp8.head = true;
  return o;
}

const char* const kNumerics[] = {"fp32", "bf16", "delayed", "delayed_head", "current", "block", "mxfp8"};

class RankStep : public testing::TestWithParam<std::tuple<const char*, int, int>> {};

// One micro-batch: what is shared makes no difference to any bit.
TEST_P(RankStep, ModesGiveTheSameBits) {
  const auto& [name, ranks, accumulation] = GetParam();
  RankRunOptions options{.run = numerics(name), .mode = ShardingMode::None, .ranks = ranks};
  options.run.accumulation = accumulation;
  const RankOutcome none = run_ranks(options);
  for (const ShardingMode mode : {ShardingMode::Zero1, ShardingMode::Zero2, ShardingMode::FsdpFull}) {
    options.mode = mode;
    const RankOutcome outcome = run_ranks(options);
    SCOPED_TRACE(std::string(name_of(mode)));
    for (const uint64_t hash : outcome.hashes) EXPECT_EQ(hash, outcome.hashes.front());
    if (accumulation == 1 || mode == ShardingMode::Zero1) {
      EXPECT_EQ(outcome.losses, none.losses);
      EXPECT_EQ(outcome.norms, none.norms);
      EXPECT_EQ(outcome.weights, none.weights);
      EXPECT_EQ(outcome.moments, none.moments);
      EXPECT_EQ(outcome.fp8_state, none.fp8_state);
    } else {
      // Gradients are added over ranks before they are added over micro-batches.
      for (size_t i = 0; i < none.losses.size(); ++i) EXPECT_NEAR(outcome.losses[i], none.losses[i], 2e-5);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, RankStep,
                         testing::Combine(testing::ValuesIn(kNumerics), testing::Values(1, 2, 3, 4),
                                          testing::Values(1, 2)),
                         [](const auto& param) {
                           return std::string(std::get<0>(param.param)) + "_" +
                                  std::to_string(std::get<1>(param.param)) + "_ranks_" +
                                  std::to_string(std::get<2>(param.param)) + "_micro_batches";
                         });

}  // namespace
}  // namespace octet::test
