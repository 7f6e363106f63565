// Steps of several ranks, which are threads here: every mode, recipe and accumulation.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "backend/cpu/cpu_device.h"
#include "support/lora_run.h"
#include "support/rank_run.h"

namespace octet::test {
namespace {

TinyRunOptions numerics(const std::string& name) {
  TinyRunOptions o{.threads = 1, .rows = 1, .length = 32};  // the ranks are threads already
  if (name == "fp32") return o;
  o.precision = name == "bf16" ? Precision::Bf16 : Precision::Fp8;
  if (name == "current") o.fp8.recipe = Fp8Recipe::Current;
  if (name == "block") o.fp8.recipe = Fp8Recipe::Block;
  if (name == "mxfp8") o.fp8.recipe = Fp8Recipe::Mxfp8;
  if (name == "block_head") o.fp8.recipe = Fp8Recipe::Block;
  if (name == "delayed_head" || name == "block_head") o.fp8.head = Fp8Head::Backward;
  if (name == "delayed_all_head" || name == "delayed_untied_head") o.fp8.head = Fp8Head::All;
  o.untied_head = name == "delayed_untied_head";
  return o;
}

const char* const kNumerics[] = {
    "fp32",    "bf16",  "delayed",    "delayed_head", "delayed_all_head", "delayed_untied_head",
    "current", "block", "block_head", "mxfp8"};

class RankStep : public testing::TestWithParam<std::tuple<const char*, int, int>> {};

// One micro-batch: what is shared makes no difference to any bit.
TEST_P(RankStep, ModesGiveTheSameBits) {
  const auto& [name, ranks, accumulation] = GetParam();
  RankRunOptions options{.run = numerics(name), .mode = ShardingMode::None, .ranks = ranks};
  options.run.accumulation = accumulation;
  // A single rank is compared with one that has no code for ranks at all.
  const RankOutcome none = ranks == 1 ? run_alone(options.run, options.steps) : run_ranks(options);
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
      // Other recipes have no state.
      const bool stateful = options.run.fp8.recipe <= Fp8Recipe::Current;
      EXPECT_TRUE(!stateful || outcome.fp8_state == none.fp8_state);
    } else {
      // Gradients are added over ranks before they are added over micro-batches. FP8 rounds other weights differently.
      const double tolerance = options.run.precision == Precision::Fp32 ? 1e-6 : 1e-3;
      for (size_t i = 0; i < none.losses.size(); ++i)
        EXPECT_NEAR(outcome.losses[i], none.losses[i], tolerance);
    }
  }
}

std::vector<float> as_floats(const std::vector<std::byte>& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// Ranks with one row each are like one rank with as many micro-batches: the same data, the same mean. In fp32 only the
// order of sums differs. With the delayed recipe ranks calibrate with their own scales in the first step.
TEST(RankStepAlone, RanksAreLikeMicroBatches) {
  for (const char* name :
       {"fp32", "bf16", "delayed", "delayed_head", "current", "block", "block_head", "mxfp8"}) {
    for (const int ranks : {2, 3}) {
      SCOPED_TRACE(fmt::format("{} {}", name, ranks));
      TinyRunOptions one = numerics(name);
      one.masked_every = 5;
      RankRunOptions several{.run = one, .ranks = ranks};
      one.accumulation = ranks;
      const RankOutcome alone = run_alone(one, 3), together = run_ranks(several);
      const bool calibrates = one.precision == Precision::Fp8 &&
                              (one.fp8.recipe == Fp8Recipe::Delayed || one.fp8.head == Fp8Head::Backward);
      const double tolerance = one.precision == Precision::Fp32 ? 2e-6 : calibrates ? 1e-2 : 2e-3;
      for (size_t i = 0; i < alone.losses.size(); ++i) {
        EXPECT_NEAR(together.losses[i], alone.losses[i], tolerance);
        EXPECT_NEAR(together.norms[i], alone.norms[i], 20 * tolerance);
      }
      // All gradients so far, in first moments. With scales of its own for a first step, a run has other codes: up to 15 % of a
      // matrix's moments differ then, so gross faults alone are seen.
      const double of_moments = calibrates ? 0.2 : 1e-6;
      ASSERT_EQ(together.moments.size(), alone.moments.size());
      ASSERT_TRUE(alone.moments.contains("embedding.tokens.m"));
      for (const auto& [parameter, moments] : alone.moments) {
        if (!parameter.ends_with(".m")) continue;
        EXPECT_LT(norm_difference(as_floats(together.moments.at(parameter)), as_floats(moments)), of_moments)
            << parameter;
      }
    }
  }
}

// Two levels of sums: fixed for a given number of groups, and near to the sum over all ranks.
TEST(RankStepAlone, GroupsOfRanks) {
  for (const char* name : kNumerics) {
    SCOPED_TRACE(name);
    RankRunOptions options{.run = numerics(name), .mode = ShardingMode::FsdpFull, .ranks = 4};
    const RankOutcome flat = run_ranks(options);
    options.mode = ShardingMode::Hsdp;
    options.group = 2;
    const RankOutcome grouped = run_ranks(options), again = run_ranks(options);
    EXPECT_TRUE(grouped == again);
    const double tolerance = options.run.precision == Precision::Fp32 ? 2e-6 : 2e-3;
    for (size_t i = 0; i < flat.losses.size(); ++i) EXPECT_NEAR(grouped.losses[i], flat.losses[i], tolerance);
    for (const uint64_t hash : grouped.hashes) EXPECT_EQ(hash, grouped.hashes.front());
  }
}

// bf16 on the wire rounds every rank's gradient once.
TEST(RankStepAlone, WireInBf16) {
  RankRunOptions options{.run = numerics("bf16"), .ranks = 3};
  const RankOutcome exact = run_ranks(options);
  options.wire = DType::BF16;
  const RankOutcome zero1 = run_ranks(options);
  options.mode = ShardingMode::FsdpFull;
  const RankOutcome full = run_ranks(options);
  EXPECT_TRUE(zero1.weights == full.weights);
  EXPECT_TRUE(zero1.weights != exact.weights);
  for (size_t i = 0; i < exact.losses.size(); ++i) EXPECT_NEAR(zero1.losses[i], exact.losses[i], 2e-3);
}

// Runs the modes that share state and compares their weights and moments with those of a run that shares nothing.
void expect_modes_equal(RankRunOptions options, const std::string& what) {
  options.mode = ShardingMode::None;
  const RankOutcome none = run_ranks(options);
  for (const ShardingMode mode : {ShardingMode::Zero1, ShardingMode::FsdpFull}) {
    options.mode = mode;
    const RankOutcome outcome = run_ranks(options);
    EXPECT_EQ(outcome.losses, none.losses) << what << " " << name_of(mode);
    for (const auto& [name, values] : none.weights)
      EXPECT_TRUE(outcome.weights.at(name) == values) << what << " " << name_of(mode) << " " << name;
    EXPECT_TRUE(outcome.moments == none.moments) << what << " " << name_of(mode);
  }
}

TEST(RankStepAlone, SmallMomentsAndRoundedWeights) {
  for (const RemainderKind remainder : {RemainderKind::None, RemainderKind::Compact}) {
    RankRunOptions options{.run = numerics("delayed"), .ranks = 3};
    options.run.moments = DType::E4M3;
    options.run.remainder = remainder;
    options.run.checkpointing = Checkpointing::Block;
    expect_modes_equal(options, remainder == RemainderKind::None ? "stochastic" : "compact");
  }
}

TEST(RankStepAlone, WeightCopiesChangeNoBit) {
  for (const char* name : {"delayed", "current", "block"}) {
    RankRunOptions options{.run = numerics(name), .mode = ShardingMode::None, .ranks = 3};
    for (const ShardingMode mode : {ShardingMode::None, ShardingMode::Zero1, ShardingMode::Zero2}) {
      options.mode = mode;
      options.run.one_copy_layers = 0;
      RankOutcome two = run_ranks(options);
      options.run.one_copy_layers = 1;
      const RankOutcome one = run_ranks(options);
      EXPECT_LT(one.allocated.front(), two.allocated.front()) << name << " " << name_of(mode);
      two.allocated = one.allocated;
      EXPECT_TRUE(one == two) << name << " " << name_of(mode);
    }
  }
}

TEST(RankStepAlone, OtherFamilies) {
  for (const char* preset : {"gpt2-tiny", "qwen2.5-tiny", "qwen3-tiny"}) {
    RankRunOptions options{.run = numerics("delayed"), .ranks = 3};
    options.run.preset = preset;
    expect_modes_equal(options, preset);
  }
}

TEST(RankStepAlone, Adapters) {
  for (const char* name : {"bf16", "delayed", "current", "block", "mxfp8"}) {
    RankRunOptions options{.run = numerics(name), .ranks = 3};
    options.run.adapters = lora_plan("llama-tiny", {.rank = 8, .alpha = 8, .dropout = 0.1});
    expect_modes_equal(options, name);
    // A frozen head is whole on every rank.
    options.run.fp8.head = Fp8Head::Backward;
    for (const bool untied : {false, true}) {
      options.run.untied_head = untied;
      if (options.run.precision == Precision::Fp8) expect_modes_equal(options, std::string(name) + ", head");
    }
  }
}

// An evaluation between steps changes nothing. The FP8 copies of a tied head are made after the weights have arrived:
// that must not happen inside an evaluation, which leaves the scales as they were.
TEST(RankStepAlone, EvaluationChangesNothing) {
  for (const char* name : {"delayed_head", "current", "mxfp8"}) {
    for (const ShardingMode mode : {ShardingMode::Zero1, ShardingMode::FsdpFull}) {
      RankRunOptions options{.run = numerics(name), .mode = mode};
      options.run.fp8.head = Fp8Head::All;
      options.run.preset = "gpt2-tiny";  // its head is tied to the embedding
      const RankOutcome without = run_ranks(options);
      options.evaluates = true;
      const RankOutcome with = run_ranks(options);
      EXPECT_EQ(with.losses, without.losses) << name << " " << name_of(mode);
      EXPECT_TRUE(with.weights == without.weights) << name << " " << name_of(mode);
    }
  }
}

constexpr ShardingMode kModes[] = {ShardingMode::None, ShardingMode::Zero1, ShardingMode::Zero2,
                                   ShardingMode::FsdpFull};

// No rank takes another amount of memory than its plan says.
TEST(RankStepAlone, MemoryIsAsPlanned) {
  for (const ShardingMode mode : kModes) {
    const RankRunOptions options{.run = numerics("delayed"), .mode = mode, .ranks = 3, .steps = 1};
    const RankOutcome outcome = run_ranks(options);
    for (int rank = 0; rank < options.ranks; ++rank) {
      CpuDevice device(1);
      const Transformer planned(
          two_layers(options.run.preset), {.rows = 1, .length = 32, .head_chunk_bytes = 32 * 1024},
          {.precision = Precision::Fp8}, device, {.sharding = sharding_of(options, rank)});
      EXPECT_EQ(outcome.allocated[static_cast<size_t>(rank)], planned.plan().peak_bytes()) << name_of(mode);
    }
  }
}

// What a mode shares is not in memory twice: by plan, rank 0 of 8 of a model with 16 layers.
TEST(RankStepAlone, MemoryFallsFromModeToMode) {
  int64_t before = std::numeric_limits<int64_t>::max();
  for (const ShardingMode mode : kModes) {
    CpuDevice device(1);
    const Transformer planned(model_preset("llama-3.2-1b"), {.rows = 1, .length = 128},
                              {.precision = Precision::Fp8}, device,
                              {.sharding = {.mode = mode, .ranks = 8, .group = 8}});
    EXPECT_LT(planned.plan().peak_bytes(), before) << name_of(mode);
    before = planned.plan().peak_bytes();
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
