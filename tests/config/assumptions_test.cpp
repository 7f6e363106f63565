
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/notes.h"
#include "support/captured_log.h"
#include "support/process.h"

namespace octet {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

TrainConfig config_of(const std::string& yaml) {
  const test::TemporaryFolder folder;
  return load_train_config(folder.write("run.yaml", yaml), {});
}

TEST(Assumptions, WhatTheKeysLeaveOpenIsSaid) {
  EXPECT_THAT(assumptions_of(config_of("dataset: a.txt")).notes, ElementsAre(HasSubstr("model_preset gpt2")));
  EXPECT_THAT(assumptions_of(config_of("penalty_weight: 0.01")).notes,
              ElementsAre(AllOf(HasSubstr("0.01"), HasSubstr("z_loss"))));
  EXPECT_THAT(assumptions_of(config_of("dataset: a.txt\nhidden_size: 64\nnum_hidden_layers: 2")).notes,
              ElementsAre(AllOf(HasSubstr("GPT-2 in your sizes"), Not(HasSubstr("124M")))));
  for (const char* said :
       {"seed: 1", "dataset: a.txt\nresume: latest", "dataset: demo", "dataset: a.txt\nmodel_preset: gpt2",
        "dataset: a.txt\nmodel_name_or_path: gpt2", "dataset: a.txt\nadapter_name_or_path: a",
        "penalty_weight: 0", "penalty_weight: 1\npenalty_type: z_loss"})
    EXPECT_THAT(assumptions_of(config_of(said)).notes, IsEmpty()) << said;
}

TEST(Assumptions, ANameThatSaysAnotherPrecisionIsWarnedOf) {
  const auto warnings = [](const std::string& yaml) { return assumptions_of(config_of(yaml)).warnings; };
  EXPECT_THAT(warnings("run_name: compare_bf16"),
              ElementsAre(AllOf(HasSubstr("run_name is compare_bf16"), HasSubstr("fp8, the default"))));
  EXPECT_THAT(warnings("wandb_run_name: llama32-3b-FP8\nmixed_precision: bf16"),
              ElementsAre(HasSubstr("set mixed_precision to fp8")));
  for (const char* right : {"run_name: compare_fp8", "run_name: a-bf16\nuse_fp8: false",
                            "run_name: bf16-to-fp8", "run_name: first"})
    EXPECT_THAT(warnings(right), IsEmpty()) << right;
}

TEST(Assumptions, EachIsSaidOnceForAllRuns) {
  test::CapturedLog log;
  const std::vector<TrainConfig> runs = {config_of("dataset: a.txt\nrun_name: bf16"),
                                         config_of("dataset: b.txt")};
  tell_assumptions(runs);
  EXPECT_THAT(log.messages, ElementsAre(HasSubstr("no model is named")));
}

}  // namespace
}  // namespace octet
