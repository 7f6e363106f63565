// What octet bench compares: planned before it is measured, and alike but for the precision.

#include "bench/bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace octet::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TrainConfig config_of(Precision precision) {
  TrainConfig config;
  config.mixed_precision = precision;
  config.device = DeviceKey::Cpu;
  config.num_threads = 1;
  resolve_defaults(config);
  return config;
}

constexpr double kGiB = double{int64_t{1} << 30};

double gib_of_plan(const TrainConfig& config) {
  const std::unique_ptr<Device> device = make_cpu_device(1);
  const RunPlan plan =
      plan_run(config, choose_model(config).config, *device, {.length = config.max_seq_length});
  return static_cast<double>(plan.bytes()) / kGiB;
}

struct BenchPlan : testing::Test {
  std::vector<BenchVariant> variants = {{"bf16", config_of(Precision::Bf16)},
                                        {"delayed", config_of(Precision::Fp8)}};
  void set(const std::function<void(TrainConfig&)>& change) {
    for (BenchVariant& variant : variants) change(variant.config);
  }
  // What a whole step of the first takes, and of the second nearly.
  void limit_memory_to_the_first() {
    ASSERT_LT(gib_of_plan(variants[0].config), gib_of_plan(variants[1].config));
    const double limit = gib_of_plan(variants[0].config) + 16 / kGiB;
    set([&](TrainConfig& config) { config.device_memory_limit_gb = limit; });
  }
  template <class Kind>
  std::string refusal() {
    try {
      plan_bench(variants);
    } catch (const Kind& error) {
      return error.what();
    }
    return "";
  }
};

TEST_F(BenchPlan, TheHighestLevelOfRecomputationThatOneNeedsIsThatOfAll) {
  limit_memory_to_the_first();
  const Checkpointing needed = plan_bench({&variants[1], 1}).front().plan.shape.checkpointing;
  ASSERT_GT(needed, Checkpointing::None);
  EXPECT_EQ(plan_bench({&variants[0], 1}).front().plan.shape.checkpointing, Checkpointing::None);
  const std::vector<RunSpec> runs = plan_bench(variants);
  for (const RunSpec& run : runs) {
    EXPECT_EQ(run.plan.shape.checkpointing, needed);
    EXPECT_EQ(run.plan.shape.rows, 8);
  }
}

TEST_F(BenchPlan, TheSmallestAutomaticBatchIsThatOfAll) {
  set([](TrainConfig& config) {
    config.auto_batch_size = true;
    config.device_memory_limit_gb = 0.05;
  });
  const int64_t most = plan_bench({&variants[0], 1}).front().plan.shape.rows;
  const int64_t fewest = plan_bench({&variants[1], 1}).front().plan.shape.rows;
  ASSERT_LT(fewest, most);
  for (const RunSpec& run : plan_bench(variants)) EXPECT_EQ(run.plan.shape.rows, fewest);
  // A target is reached by all in the same micro-batches.
  set([&](TrainConfig& config) { config.target_effective_batch_size = most * fewest; });
  ASSERT_EQ(plan_bench({&variants[0], 1}).front().plan.shape.rows, most);
  for (const RunSpec& run : plan_bench(variants)) {
    EXPECT_EQ(run.plan.shape.rows, fewest);
    EXPECT_EQ(run.plan.accumulation, most);
  }
}

TEST_F(BenchPlan, AVariantThatCannotRunIsNamedBeforeAnyIsMeasured) {
  limit_memory_to_the_first();
  set([](TrainConfig& config) { config.gradient_checkpointing = CheckpointingKey::None; });
  EXPECT_THAT(refusal<ConfigError>(),
              AllOf(HasSubstr("variant delayed: the run needs"), Not(HasSubstr("bf16:"))));
  variants[1].config.fp8_skip_layers = {"*"};
  variants[1].config.require_fp8 = variants[1].config.fp8_emulation = true;
  EXPECT_THAT(refusal<Error>(), HasSubstr("variant delayed: [fp8] require_fp8 is set"));
}

TEST_F(BenchPlan, TheResultNamesTheRecipeThatRan) {
  set([](TrainConfig& config) { config.max_seq_length = 16; });
  variants[1].config.fp8_recipe = Fp8Recipe::Current;
  EXPECT_EQ(bench(plan_bench({&variants[1], 1}).front(), {.warmup = 1, .steps = 1}).recipe, "current");
}

TEST_F(BenchPlan, WhatIsWrongWithAllOfThemIsSaidOnce) {
  set([](TrainConfig& config) { config.model_preset = "foo"; });
  EXPECT_THAT(refusal<ConfigError>(), testing::StartsWith("[model] no preset is called 'foo'"));
}

}  // namespace
}  // namespace octet::test
