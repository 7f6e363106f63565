// Plans of LoRA runs: how many copies of the frozen base, how much memory, and what to change where a run does not fit.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "plan/resolve.h"
#include "support/captured_log.h"
#include "support/tiny_run.h"

namespace octet::test {
namespace {

using testing::HasSubstr;
using Flags = std::vector<std::pair<std::string, std::string>>;

constexpr int64_t kGib = int64_t{1} << 30;

// A LoRA run of rank 16 as `octet plan --finetuning_type lora` plans it, on a GPU of so much memory.
RunPlan plan_lora(const std::string& preset, const Flags& flags, int64_t gib = 139) {
  std::vector<std::string> errors, arguments = {"--finetuning_type=lora", "--model_preset=" + preset};
  for (const auto& [key, value] : flags) arguments.push_back("--" + key + "=" + value);
  if (std::ranges::find(flags, "lora_rank", &Flags::value_type::first) == flags.end())
    arguments.push_back("--lora_rank=16");
  const KeyArguments parsed = parse_key_arguments(train_keys().keys(), arguments, errors);
  throw_config_errors(errors);
  const TrainConfig config = load_plan_config("", parsed.settings);
  const CapturedLog quiet;  // the base has random weights
  const ModelChoice choice = choose_model(config);
  const std::unique_ptr<Device> device = make_planned_gpu("a GPU", gib * kGib, 132);
  PlanOptions options = plan_options(config);
  options.adapters = choice.adapters;
  return plan_run(config, choice.config, *device, options);
}

std::string shortage_text(const RunPlan& plan) {
  return plan.shortage ? plan.shortage->text : "";
}

const Flags k8x1024 = {{"per_device_train_batch_size", "8"}, {"max_seq_length", "1024"}};

Flags with(Flags flags, const Flags& more) {
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

TEST(LoraPlan, Llama70BFitsAnH200WithOneCopyInMostLayers) {
  const Flags flags = {{"per_device_train_batch_size", "4"}, {"max_seq_length", "1024"}};
  const RunPlan plan = plan_lora("llama-3.1-70b", flags);
  EXPECT_EQ(shortage_text(plan), "");
  EXPECT_TRUE(plan.is_fp8());
  EXPECT_LE(plan.bytes(), plan.limit.bytes);
  EXPECT_GT(plan.finetuning.one_copy_layers, 70);
  EXPECT_LT(plan.finetuning.one_copy_layers, 80);
  // A byte for every weight of the layers, two for embedding and head, one for the head's dgrad, and the adapters.
  const RunPlan one = plan_lora("llama-3.1-70b", with(flags, {{"fp8_weight_copies", "one"}}));
  EXPECT_EQ(one.finetuning.one_copy_layers, 80);
  EXPECT_LT(planned_bytes(one.memory, MemoryCategory::Weights), 70 * kGib);
  EXPECT_GT(planned_bytes(one.memory, MemoryCategory::Weights), 67 * kGib);
  // What is asked for is kept to, even if it does not fit; the advice is the other one.
  const RunPlan two = plan_lora("llama-3.1-70b", with(flags, {{"fp8_weight_copies", "two"}}));
  EXPECT_EQ(two.finetuning.one_copy_layers, 0);
  ASSERT_TRUE(two.shortage);
  EXPECT_THAT(two.shortage->text, HasSubstr("fp8_weight_copies"));
  ASSERT_FALSE(two.shortage->remedies.fitting.empty());
  const MemoryAdvice& advice = two.shortage->remedies.fitting.front();
  ASSERT_EQ(advice.changes.size(), 1u);
  EXPECT_EQ(advice.changes[0].key + "=" + advice.changes[0].value, "fp8_weight_copies=one");
  EXPECT_EQ(advice.need, one.bytes());
  // No BF16 copy of 70B parameters fits.
  EXPECT_NE(shortage_text(plan_lora("llama-3.1-70b", with(flags, {{"mixed_precision", "bf16"}}))), "");
}

TEST(LoraPlan, Llama8BKeepsTwoCopiesWhereTheyFit) {
  const RunPlan plan = plan_lora("llama-3.1-8b", k8x1024);
  EXPECT_EQ(shortage_text(plan), "");
  EXPECT_EQ(plan.finetuning.one_copy_layers, 0);
  EXPECT_EQ(plan.shape.checkpointing, Checkpointing::None);
  EXPECT_LE(plan.bytes(), 50 * kGib);
  const RunPlan one = plan_lora("llama-3.1-8b", with(k8x1024, {{"fp8_weight_copies", "one"}}));
  EXPECT_EQ(one.finetuning.one_copy_layers, 32);
  EXPECT_EQ(shortage_text(one), "");
  // A byte less for every weight of the layers; the shared transpose of the largest matrix comes back.
  EXPECT_NEAR(static_cast<double>(plan.bytes() - one.bytes()), 6.98e9 - 0.118e9, 0.1e9);
}

// A frozen base is smallest in FP8, so that is what remains when little memory is left.
TEST(LoraPlan, TheLastAdviceStaysInFp8) {
  const RunPlan plan = plan_lora("llama-3.1-8b", with(k8x1024, {{"device_memory_limit_gb", "10.3"}}));
  ASSERT_TRUE(plan.shortage);
  ASSERT_FALSE(plan.shortage->remedies.fitting.empty()) << plan.shortage->text;
  EXPECT_THAT(plan.shortage->text, testing::Not(HasSubstr("bf16")));
}

TEST(LoraPlan, RanksCostLittle) {
  for (const char* rank : {"16", "64"}) {
    const RunPlan plan =
        plan_lora("llama-3.1-8b", with(k8x1024, {{"lora_rank", rank}, {"gradient_checkpointing", "none"}}));
    EXPECT_LE(plan.bytes(), rank == std::string("16") ? 50 * kGib : 53 * kGib);
    // Gradients and moments of adapters alone: 41.9M parameters at rank 16.
    const int64_t parameters = 41943040 * std::stoll(rank) / 16;
    EXPECT_EQ(planned_bytes(plan.memory, MemoryCategory::Gradients), 4 * parameters);
    EXPECT_EQ(planned_bytes(plan.memory, MemoryCategory::Optimizer), (2 + 4 + 4) * parameters);
  }
}

// With less memory, first the second copy goes, then more is recomputed.
TEST(LoraPlan, AutoTakesTheFastestThatFits) {
  const RunPlan needs_two = plan_lora("llama-3.1-8b", k8x1024);
  const RunPlan needs_one = plan_lora("llama-3.1-8b", with(k8x1024, {{"fp8_weight_copies", "one"}}));
  ASSERT_GT(needs_two.bytes(), 47 * kGib);
  ASSERT_LT(needs_one.bytes(), 45 * kGib);
  const RunPlan middle = plan_lora("llama-3.1-8b", k8x1024, 47);
  EXPECT_EQ(shortage_text(middle), "");
  EXPECT_EQ(middle.shape.checkpointing, Checkpointing::None);
  EXPECT_GT(middle.finetuning.one_copy_layers, 0);
  EXPECT_LT(middle.finetuning.one_copy_layers, 32);
  const RunPlan small = plan_lora("llama-3.1-8b", k8x1024, 24);
  EXPECT_EQ(shortage_text(small), "");
  EXPECT_GT(small.shape.checkpointing, Checkpointing::None);
  EXPECT_LE(small.bytes(), small.limit.bytes);
}

// The batch grows until the memory is full. Two copies are kept, and nothing is recomputed, where a row fits with them.
TEST(LoraPlan, AnAutomaticBatchIsTheLargestThatFits) {
  for (const bool large : {false, true}) {
    const char* preset = large ? "llama-3.1-70b" : "llama-3.1-8b";
    const RunPlan plan = plan_lora(preset, {{"auto_batch_size", "true"}, {"max_seq_length", "1024"}});
    EXPECT_EQ(shortage_text(plan), "") << preset;
    EXPECT_LE(plan.bytes(), plan.limit.bytes) << preset;
    EXPECT_EQ(plan.finetuning.one_copy_layers > 0, large);
    EXPECT_EQ(plan.shape.checkpointing, Checkpointing::None);
    const RunPlan more =
        plan_lora(preset, {{"per_device_train_batch_size", std::to_string(plan.shape.rows + 1)},
                           {"max_seq_length", "1024"},
                           {"gradient_checkpointing", "none"},
                           {"fp8_weight_copies", large ? "one" : "two"}});
    EXPECT_NE(shortage_text(more), "") << preset;
  }
}

TEST(LoraPlan, CopiesAreAMatterOfFp8) {
  const RunPlan bf16 = plan_lora("llama-3.1-8b", with(k8x1024, {{"mixed_precision", "bf16"}}));
  EXPECT_EQ(shortage_text(bf16), "");
  EXPECT_EQ(bf16.finetuning.one_copy_layers, 0);
  // FP8 with both copies takes no more than BF16, and with one much less.
  const RunPlan fp8 = plan_lora("llama-3.1-8b", k8x1024);
  EXPECT_LT(fp8.bytes(), bf16.bytes());
}

}  // namespace
}  // namespace octet::test
