#include "compare/variants.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace octet {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::vector<PlannedRun> plan(std::vector<std::string> variants, std::vector<KeySetting> flags = {},
                             int64_t seeds = 1, bool checklist = false) {
  return plan_variants(
      {.variants = std::move(variants), .steps = 50, .seeds = seeds, .for_checklist = checklist}, {}, flags);
}

std::string message_of(const std::vector<std::string>& variants) {
  try {
    plan(variants);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(CompareVariants, NamesAreRecipes) {
  const auto runs = plan({"bf16", "fp32", "fp8", "delayed", "current", "block", "mxfp8"});
  EXPECT_EQ(runs[0].config.mixed_precision, Precision::Bf16);
  EXPECT_EQ(runs[1].config.mixed_precision, Precision::Fp32);
  EXPECT_EQ(runs[2].config.fp8_recipe, Fp8Recipe::Delayed);
  EXPECT_EQ(runs[4].config.fp8_recipe, Fp8Recipe::Current);
  EXPECT_EQ(runs[5].config.fp8_recipe, Fp8Recipe::Block);
  EXPECT_EQ(runs[6].config.fp8_recipe, Fp8Recipe::Mxfp8);
  for (const PlannedRun& run : runs) EXPECT_EQ(run.config.max_steps, 50);
  EXPECT_EQ(runs[0].folder, "runs/compare-bf16");
}

TEST(CompareVariants, SettingsAfterANameOrAlone) {
  const auto runs = plan({"bf16", "fp8:fp8_head=true:fp8_margin=2", "learning_rate=1e-3"},
                         {{.name = "run_name", .values = {"x"}}});
  EXPECT_EQ(runs[1].config.fp8_head, Fp8Head::Backward);
  EXPECT_EQ(runs[1].config.fp8_margin, 2);
  EXPECT_EQ(runs[1].name, "x-fp8-fp8_head-true-fp8_margin-2");
  EXPECT_DOUBLE_EQ(runs[2].config.learning_rate, 1e-3);
}

TEST(CompareVariants, OnlyWhatIsSetIsWritten) {
  const auto runs = plan(
      {"bf16", "fp8"}, {{.name = "lr", .values = {"0.5"}}, {.name = "mixed_precision", .values = {"fp32"}}});
  EXPECT_THAT(runs[0].yaml, HasSubstr("learning_rate: 0.5\n"));
  EXPECT_THAT(runs[0].yaml, HasSubstr("mixed_precision: bf16\n"));  // the variant wins
  EXPECT_THAT(runs[0].yaml, Not(HasSubstr("weight_decay")));
  EXPECT_THAT(runs[0].yaml, HasSubstr("eval_steps: 5\n"));
  std::vector<std::string> errors;
  EXPECT_EQ(
      load_train_config({.path = "x", .settings = parse_settings(runs[0].yaml, "x", errors)}, {}).run_name,
      "compare-bf16");
  EXPECT_THAT(errors, ElementsAre());
}

TEST(CompareVariants, WhatTheUserSetsStays) {
  const auto runs = plan(
      {"bf16", "fp8"}, {{.name = "eval_steps", .values = {"7"}}, {.name = "logging_steps", .values = {"5"}}});
  EXPECT_EQ(runs[0].config.eval_steps, 7);
  EXPECT_EQ(runs[0].config.logging_steps, 5);
}

TEST(CompareVariants, SeedsCountUp) {
  const auto runs = plan({"bf16", "fp8"}, {{.name = "seed", .values = {"7"}}}, 3);
  ASSERT_EQ(runs.size(), 6U);
  EXPECT_EQ(runs[0].name, "compare-bf16");
  EXPECT_EQ(runs[2].name, "compare-bf16-seed9");
  EXPECT_EQ(runs[5].config.seed, 9);
}

TEST(CompareVariants, AChecklistSavesInTheMiddle) {
  const auto runs = plan({"bf16", "fp8"}, {}, 1, true);
  EXPECT_EQ(runs[0].config.save_steps, 25);
  EXPECT_EQ(runs[1].name, "checklist-fp8");
}

TEST(CompareVariants, MistakesAreNamed) {
  EXPECT_EQ(
      message_of({"bf16", "fp9"}),
      "--variants: 'fp9' is unknown, expected bf16, fp32, fp8, delayed, current, block, mxfp8, or key=value");
  EXPECT_THAT(message_of({"bf16", "fp8:fp8_hed=true"}), HasSubstr("did you mean 'fp8_head'?"));
  EXPECT_THAT(message_of({"bf16", "fp8:true"}),
              HasSubstr("'true' of 'fp8:true' is no setting, expected key=value"));
  EXPECT_THAT(message_of({"fp8", "fp8"}), HasSubstr("is given twice"));
  EXPECT_THAT(message_of({"bf16", "fp8:fp8_margin=x"}), HasSubstr("fp8_margin"));
}

TEST(CompareVariants, DefaultsFollowTheConfiguration) {
  const auto names = [](const char* key, const char* value) {
    return default_variants({}, std::vector<KeySetting>{{.name = key, .values = {value}}});
  };
  EXPECT_THAT(names("mixed_precision", "bf16"), ElementsAre("bf16", "fp8"));
  EXPECT_THAT(names("fp8_recipe", "block"), ElementsAre("bf16", "block"));
  EXPECT_THAT(names("mixed_precision", "fp32"), ElementsAre("bf16", "fp32"));
}

// train with this configuration does not emulate mxfp8 on a GPU; only who names the variant wants that.
TEST(CompareVariants, OnlyANamedMxfp8IsEmulated) {
  const std::vector<KeySetting> flags = {{.name = "fp8_recipe", .values = {"mxfp8"}}};
  const PlannedRun configured = plan(default_variants({}, flags), flags).back();
  EXPECT_EQ(configured.config.fp8_recipe, Fp8Recipe::Mxfp8);
  EXPECT_FALSE(configured.config.fp8_emulation);
  EXPECT_TRUE(plan({"bf16", "mxfp8"}, flags).back().config.fp8_emulation);
}

}  // namespace
}  // namespace octet
