// Plans for one of several ranks: modes, batches, memory and what is said about them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/overview.h"
#include "plan/resolve.h"
#include "plan/sharding_choice.h"
#include "support/captured_log.h"
#include "support/error_of.h"

namespace octet::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Flags = std::vector<std::pair<std::string, std::string>>;
using Key = ShardingKey;

constexpr int64_t kGib = int64_t{1} << 30;

TrainConfig config_of(const Flags& flags) {
  std::vector<std::string> arguments, errors;
  for (const auto& [key, value] : flags) arguments.push_back("--" + key + "=" + value);
  const KeyArguments parsed = parse_key_arguments(train_keys().keys(), arguments, errors);
  throw_config_errors(errors);
  return load_plan_config("", parsed.settings);
}

// As one of `ranks` GPUs with 80 GB, of which a program finds 79 GiB.
RunPlan plan_on_80gb(const Flags& flags, int ranks, int local_ranks = 0) {
  const TrainConfig config = config_of(flags);
  const std::unique_ptr<Device> device = make_planned_gpu("80 GB", 79 * kGib, 132);
  const RankPlace place{.ranks = ranks, .local_ranks = local_ranks == 0 ? ranks : local_ranks};
  PlanOptions options = plan_options(config);
  options.sharding = sharding_of(config, place);
  return plan_run(config, model_preset(config.model_preset), *device, options);
}

TEST(ShardingOf, ResolvesTheModeAndItsGroups) {
  const auto resolve = [](Key key, int ranks, int local_ranks) {
    TrainConfig config;
    config.sharding_mode = key;
    return sharding_of(config, {.rank = ranks - 1, .ranks = ranks, .local_ranks = local_ranks});
  };
  EXPECT_EQ(resolve(Key::Auto, 1, 1).mode, ShardingMode::None);
  EXPECT_FALSE(resolve(Key::Auto, 1, 1).is_active());
  // Nobody to share with: evaluation stays in BF16, and nothing is cut into parts.
  for (const Key key : {Key::Zero1, Key::FsdpFull, Key::Hsdp}) EXPECT_FALSE(resolve(key, 1, 1).is_active());
  EXPECT_EQ(resolve(Key::Auto, 2, 2).mode, ShardingMode::Zero1);
  EXPECT_EQ(resolve(Key::None, 2, 2).mode, ShardingMode::None);
  EXPECT_EQ(resolve(Key::Zero2, 2, 2).mode, ShardingMode::Zero2);
  EXPECT_EQ(resolve(Key::FsdpFull, 8, 4).group, 8);
  EXPECT_EQ(resolve(Key::FsdpFull, 8, 4).rank, 7);
  const Sharding hsdp = resolve(Key::Hsdp, 8, 4);
  EXPECT_EQ(hsdp.group, 4);
  EXPECT_EQ(hsdp.groups(), 2);
  EXPECT_EQ(hsdp.wire, DType::BF16);
  TrainConfig config;
  config.gradient_reduce_dtype = GradientReduceDtype::Fp32;
  EXPECT_EQ(sharding_of(config, {}).wire, DType::F32);
}

TEST(ShardingOf, HsdpNeedsEqualNodesAndSaysWhenItIsFsdp) {
  TrainConfig config;
  config.sharding_mode = Key::Hsdp;
  const CapturedLog log;
  EXPECT_EQ(sharding_of(config, {.ranks = 4, .local_ranks = 4}).group, 4);
  EXPECT_THAT(log.messages, ElementsAre(HasSubstr("hsdp on one node is the same as fsdp_full")));
  EXPECT_THROW(sharding_of(config, {.ranks = 5, .local_ranks = 2}), ConfigError);
}

TEST(RankPlans, CountTheSequencesOfAllRanks) {
  const Flags flags = {{"model_preset", "llama-tiny"}, {"dataset", "x"}, {"max_seq_length", "64"}};
  const auto with = [&](const Flags& more) {
    Flags all = flags;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const RunPlan plain =
      plan_on_80gb(with({{"per_device_train_batch_size", "2"}, {"gradient_accumulation_steps", "3"}}), 4);
  EXPECT_EQ(plain.accumulation, 3);
  EXPECT_EQ(plain.sequences_per_step(), 24);
  const RunPlan target =
      plan_on_80gb(with({{"per_device_train_batch_size", "2"}, {"target_effective_batch_size", "24"}}), 4);
  EXPECT_EQ(target.accumulation, 3);
  EXPECT_EQ(target.sequences_per_step(), 24);
  EXPECT_THAT(
      error_of([&] {
        plan_on_80gb(with({{"per_device_train_batch_size", "2"}, {"target_effective_batch_size", "20"}}), 4);
      }),
      HasSubstr("target_effective_batch_size 20 is not a multiple of 8 (per_device_train_batch_size 2 on 4"));
  const RunPlan automatic =
      plan_on_80gb(with({{"auto_batch_size", "true"}, {"target_effective_batch_size", "24"}}), 4);
  EXPECT_EQ(automatic.shape.rows, 6);
  EXPECT_EQ(automatic.accumulation, 1);
  EXPECT_EQ(automatic.sequences_per_step(), 24);
  // The schedule of one pass over the data is shorter with more ranks.
  const TrainConfig config = config_of(with({{"num_train_epochs", "1"}}));
  EXPECT_EQ(plan_schedule(config, 240, plain.sequences_per_step()).max_steps, 10);
}

TEST(RankPlans, MemoryFallsFromModeToMode) {
  for (const char* precision : {"fp8", "bf16"}) {
    int64_t before = INT64_MAX;
    for (const char* mode : {"none", "zero1", "zero2", "fsdp_full"}) {
      const RunPlan plan = plan_on_80gb({{"model_preset", "llama-3.2-1b"},
                                         {"dataset", "x"},
                                         {"mixed_precision", precision},
                                         {"per_device_train_batch_size", "1"},
                                         {"gradient_checkpointing", "block"},
                                         {"sharding_mode", mode}},
                                        8);
      EXPECT_LT(plan.bytes(), before) << mode << " " << precision;
      before = plan.bytes();
    }
  }
}

// The fit is that of the plan; nothing was measured on such machines.
TEST(RankPlans, LargeModelsFitSeveralGpusWith80Gb) {
  struct Case {
    const char* model;
    int ranks;
    const char *rows, *checkpointing;
  };
  for (const Case& c : {Case{"llama-3.1-8b", 4, "2", "auto"}, Case{"llama-3.1-8b", 4, "1", "block"},
                        Case{"qwen2.5-14b", 8, "2", "auto"}, Case{"qwen2.5-14b", 8, "1", "block"}}) {
    const Flags flags = {{"model_preset", c.model},
                         {"dataset", "x"},
                         {"max_seq_length", "1024"},
                         {"per_device_train_batch_size", c.rows},
                         {"gradient_checkpointing", c.checkpointing},
                         {"sharding_mode", "fsdp_full"}};
    const RunPlan plan = plan_on_80gb(flags, c.ranks);
    EXPECT_TRUE(plan.is_fp8());
    EXPECT_FALSE(plan.shortage) << c.model << ": " << (plan.shortage ? plan.shortage->text : "");
    EXPECT_LE(plan.bytes(), 79 * kGib);
    // One GPU alone has not enough memory with the same exact state.
    EXPECT_TRUE(plan_on_80gb(flags, 1).shortage) << c.model;
  }
}

TEST(RankPlans, ASharedRunThatDoesNotFitIsToldToShareMore) {
  const Flags flags = {{"model_preset", "llama-3.1-8b"},
                       {"dataset", "x"},
                       {"per_device_train_batch_size", "1"},
                       {"gradient_checkpointing", "block"},
                       {"sharding_mode", "none"}};
  const RunPlan plan = plan_on_80gb(flags, 8);
  ASSERT_TRUE(plan.shortage);
  ASSERT_FALSE(plan.shortage->remedies.fitting.empty());
  const MemoryAdvice& first = plan.shortage->remedies.fitting.front();
  ASSERT_EQ(first.changes.size(), 1u);
  EXPECT_EQ(first.changes.front().key, "sharding_mode");
  Flags followed = flags;
  followed.back().second = first.changes.front().value;
  const RunPlan fits = plan_on_80gb(followed, 8);
  EXPECT_FALSE(fits.shortage);
  EXPECT_EQ(fits.bytes(), first.need);
}

TEST(RankPlans, SamplesNeedTheWholeModel) {
  const Flags flags = {{"model_preset", "llama-tiny"}, {"dataset", "x"}, {"sample_steps", "5"}};
  const auto planned = [&](const char* mode, std::vector<std::string>& messages) {
    Flags all = flags;
    all.emplace_back("sharding_mode", mode);
    const CapturedLog log;
    const RunPlan plan = plan_on_80gb(all, 2);
    messages = log.messages;
    return plan;
  };
  std::vector<std::string> messages;
  EXPECT_GT(planned("zero2", messages).sampling_bytes, 0);
  EXPECT_THAT(messages, IsEmpty());
  EXPECT_EQ(planned("fsdp_full", messages).sampling_bytes, 0);
  EXPECT_THAT(messages, ElementsAre(HasSubstr("no samples are made: with sharding_mode fsdp_full")));
}

TEST(RankPlans, SayWhatEachRankKeeps) {
  const Flags flags = {{"model_preset", "llama-tiny"}, {"dataset", "x"}};
  const RunPlan zero1 = plan_on_80gb(flags, 4);
  EXPECT_THAT(ranks_text(zero1),
              HasSubstr("4; sharding_mode zero1: each rank keeps the weights, the gradients and "
                        "1/4 of the optimizer state; buffers for communication take"));
  EXPECT_TRUE(zero1.evaluates_in_fp8);
  Flags mxfp8 = flags;
  mxfp8.insert(mxfp8.end(), {{"fp8_recipe", "mxfp8"}, {"fp8_emulation", "true"}});
  EXPECT_FALSE(plan_on_80gb(mxfp8, 4).evaluates_in_fp8) << "BF16 weights travel";
  EXPECT_FALSE(plan_on_80gb(flags, 1).evaluates_in_fp8);
}

}  // namespace
}  // namespace octet::test
