#include <gmock/gmock.h>

#include "base/error.h"
#include "config/config.h"
#include "support/captured_log.h"
#include "support/process.h"

// How people write keys and values who come from other programs.

namespace octet {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TrainConfig from_flags(std::vector<std::string> words) {
  std::vector<std::string> errors;
  const KeyArguments read = parse_key_arguments(train_keys().keys(), words, errors);
  throw_config_errors(errors);
  return load_train_config("", read.settings);
}

TrainConfig from_yaml(const std::string& text) {
  const test::TemporaryFolder folder;
  return load_train_config(folder.write("run.yaml", text), {});
}

std::string error_of(const std::vector<std::string>& words) {
  try {
    from_flags(words);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

struct Spelling {
  std::vector<std::string> flags;
  const char* key;
  const char* value;
};

class Spellings : public testing::TestWithParam<Spelling> {};

TEST_P(Spellings, MeansTheKey) {
  EXPECT_EQ(config_text(from_flags(GetParam().flags), GetParam().key), GetParam().value);
}

const Spelling kSpellings[] = {
    {{"--model", "org/name"}, "model_name_or_path", "org/name"},
    {{"--model_name", "meta-llama/Llama-3.2-1B"}, "model_name_or_path", "meta-llama/Llama-3.2-1B"},
    {{"--base_model", "org/name"}, "model_name_or_path", "org/name"},
    {{"--model", "gpt2"}, "model_name_or_path", "openai-community/gpt2"},
    {{"--n_layer", "3"}, "num_hidden_layers", "3"},
    {{"--dataset_name", "nvidia/OpenMathInstruct-2"}, "dataset", "nvidia/OpenMathInstruct-2"},
    {{"--split_name", "train_1M"}, "dataset_split", "train_1M"},
    {{"--sequence_len", "64"}, "max_seq_length", "64"},
    {{"--max_seq_length", "64"}, "max_seq_length", "64"},
    {{"--cutoff_len", "64"}, "max_seq_length", "64"},
    {{"--batch_size", "12"}, "per_device_train_batch_size", "12"},
    {{"--grad_accum", "4"}, "gradient_accumulation_steps", "4"},
    {{"--global_batch_size", "16"}, "target_effective_batch_size", "16"},
    {{"--steps", "7"}, "max_steps", "7"},
    {{"--num_epochs", "2"}, "num_train_epochs", "2"},
    {{"--val_set_size", "0.1"}, "eval_split", "0.1"},
    {{"--eval_interval", "9"}, "eval_steps", "9"},
    {{"--eval_freq", "250"}, "eval_steps", "250"},
    {{"--log_interval", "9"}, "logging_steps", "9"},
    {{"--save_interval", "9"}, "save_steps", "9"},
    {{"--checkpoint_freq", "250"}, "save_steps", "250"},
    {{"--out_dir", "d"}, "output_dir", "d"},
    {{"--name", "r"}, "run_name", "r"},
    {{"--max_lr", "6e-4"}, "learning_rate", "0.0006"},
    {{"--lora_rank", "4"}, "lora_rank", "4"},
    {{"--use_tensorboard"}, "use_tensorboard", "true"},
    {{"--use_wandb"}, "use_wandb", "true"},
    {{"--no_wandb"}, "use_wandb", "false"},
    {{"--wandb_project", "P"}, "wandb_project", "P"},
    {{"--wandb_run_name", "R"}, "wandb_run_name", "R"},
    {{"--no_fp8_head"}, "fp8_head", "none"},
    {{"--fp8_head"}, "fp8_head", "backward"},
    {{"--fp8_head", "all"}, "fp8_head", "all"},
    {{"--no_fp8_eval"}, "fp8_eval", "false"},
    {{"--no_tensorboard"}, "use_tensorboard", "false"},
    {{"--no-gradient-checkpointing"}, "gradient_checkpointing", "none"},
    {{"--no_use_fp8"}, "mixed_precision", "bf16"},
    {{"--use_fp8"}, "mixed_precision", "fp8"},
    {{"--precision", "bf16"}, "mixed_precision", "bf16"},
    {{"--dtype", "bfloat16"}, "mixed_precision", "bf16"},
    {{"--mixed_precision", "BF16"}, "mixed_precision", "bf16"},
    {{"--mixed_precision", "no"}, "mixed_precision", "fp32"},
    {{"--mixed_precision", "float32"}, "mixed_precision", "fp32"},
    {{"--fp8_format", "HYBRID"}, "fp8_format", "hybrid"},
    {{"--fp8_format", "E4M3"}, "fp8_format", "e4m3"},
    {{"--fp8_scenario", "mxfp8"}, "fp8_recipe", "mxfp8"},
    {{"--fp8_scenario", "MXFP8"}, "fp8_recipe", "mxfp8"},
    {{"--device", "cuda:0"}, "device", "cuda"},
    {{"--save_strategy", "epoch"}, "save_strategy", "epoch"},
    {{"--saves_per_epoch", "2"}, "save_strategy", "epoch"},
    {{"--eval_strategy", "epoch"}, "eval_strategy", "epoch"},
    {{"--evals_per_epoch", "4"}, "eval_strategy", "epoch"},
    {{"--eval_strategy", "no"}, "eval_split", "0"},
    {{"--lr_scheduler_type", "constant_with_warmup"}, "lr_scheduler_type", "constant"},
    {{"--sharding_mode", "fsdp_full"}, "sharding_mode", "fsdp_full"},
    {{"--gradient_checkpointing"}, "gradient_checkpointing", "block"},
    {{"--resume"}, "resume", "latest"},
    {{"--resume", "--max_steps", "3"}, "max_steps", "3"},
    {{"--resume", "runs/a"}, "resume", "runs/a"},
    {{"--resume", "false"}, "resume", ""},
    {{"--resume_from_checkpoint", "true"}, "resume", "latest"},
    {{"--max_steps", "-1"}, "max_steps", "600"},
};

INSTANTIATE_TEST_SUITE_P(Config, Spellings, testing::ValuesIn(kSpellings));

TEST(ConfigSpellings, NoBeforeAKeyWorksInFilesToo) {
  EXPECT_FALSE(from_yaml("no_tensorboard: true").use_tensorboard);
  EXPECT_TRUE(from_yaml("no_tensorboard: false").use_tensorboard);
  EXPECT_THAT(error_of({"--no_learning_rate"}), HasSubstr("unknown flag '--no_learning_rate'"));
  EXPECT_THAT(error_of({"--no_no_fp8_eval"}), HasSubstr("unknown flag"));
  EXPECT_THAT(error_of({"--no_fp8_eval=maybe"}), HasSubstr("expected true or false"));
  EXPECT_THAT(error_of({"--no_fp8_eval", "--fp8_eval"}), HasSubstr("are the same key"));
}

TEST(ConfigSpellings, ValuesThatCannotBeAreExplained) {
  EXPECT_THAT(error_of({"--mixed_precision", "fp16"}),
              AllOf(HasSubstr("'fp16'"), HasSubstr("use bf16 or fp8")));
  EXPECT_THAT(error_of({"--dtype", "float16"}), HasSubstr("octet has no fp16"));
  EXPECT_THAT(error_of({"--device", "cuda:1"}), HasSubstr("CUDA_VISIBLE_DEVICES"));
  EXPECT_THAT(error_of({"--mixed_precision", "E4M3"}), HasSubstr("fp8_format"));
  EXPECT_THAT(error_of({"--lr_scheduler_type", "polynomial"}), HasSubstr("octet has cosine"));
  EXPECT_THAT(error_of({"--save_strategy", "best"}), HasSubstr("always keeps the best"));
}

TEST(ConfigSpellings, AnEmptyResumeIsNoNewRun) {
  EXPECT_THAT(error_of({"--resume", ""}), HasSubstr("--resume is empty"));
  EXPECT_THAT(error_of({"--resume_from_checkpoint="}), HasSubstr("--resume_from_checkpoint is empty"));
}

TEST(ConfigSpellings, AConfigurationBehindResumeIsNotItsValue) {
  std::vector<std::string> errors;
  const KeyArguments read =
      parse_key_arguments(train_keys().keys(), std::vector<std::string>{"--resume", "run.yaml"}, errors);
  EXPECT_THAT(read.positionals, ElementsAre("run.yaml"));
  EXPECT_THAT(read.settings.front().values, ElementsAre("latest"));
}

TEST(ConfigSpellings, StepsWinOverEpochsAndThatIsSaid) {
  const test::CapturedLog log;
  const TrainConfig config = from_flags({"--max_steps", "7", "--num_train_epochs", "3"});
  EXPECT_EQ(config.max_steps, 7);
  EXPECT_EQ(config.num_train_epochs, 0);
  EXPECT_THAT(log.messages,
              ElementsAre("max_steps 7 sets the length of the run; num_train_epochs 3 is not used"));
  // -1 is how others say that epochs decide.
  EXPECT_EQ(from_yaml("max_steps: -1\nnum_train_epochs: 3").num_train_epochs, 3);
  EXPECT_EQ(log.messages.size(), 1u);
}

TEST(ConfigSpellings, TheFinalLearningRateMayBeGivenItself) {
  const TrainConfig config = from_flags({"--learning_rate", "1e-3", "--min_lr", "1e-4"});
  EXPECT_DOUBLE_EQ(config.min_lr_ratio, 0.1);
  EXPECT_EQ(from_flags({"--min_lr", "0"}).min_lr_ratio, 0);
  EXPECT_DOUBLE_EQ(from_yaml(to_yaml(config)).min_lr_ratio, 0.1);
  EXPECT_THAT(to_yaml(config), HasSubstr("# min_lr_ratio: 0.1  (from min_lr)"));
  EXPECT_THAT(error_of({"--learning_rate", "1e-5", "--min_lr", "1e-4"}), HasSubstr("min_lr is 0.0001"));
  EXPECT_THAT(error_of({"--min_lr", "1e-4", "--min_lr_ratio", "0.5"}), HasSubstr("contradict each other"));
}

// An unset variable in a shell must not train the demo.
TEST(ConfigSpellings, AnEmptyDatasetIsAnError) {
  EXPECT_THAT(error_of({"--dataset", ""}), HasSubstr("dataset is empty"));
}

TEST(ConfigSpellings, TheNameOfAPresetIsReadAsOne) {
  const test::CapturedLog log;
  const TrainConfig config = from_flags({"--model", "llama-tiny"});
  EXPECT_EQ(config.model_preset, "llama-tiny");
  EXPECT_EQ(config.model_name_or_path, "");
  EXPECT_THAT(log.messages, ElementsAre(HasSubstr("starts from random weights")));
}

TEST(Intervals, StepsAndEpochs) {
  const auto due = [](const Interval& interval, int64_t steps) {
    std::vector<int64_t> found;
    for (int64_t step = 0; step < steps; ++step) {
      if (interval.is_due(step)) found.push_back(step + 1);
    }
    return found;
  };
  EXPECT_THAT(due(make_interval(Strategy::Steps, 4, 1, 10), 10), ElementsAre(4, 8));
  EXPECT_THAT(due(make_interval(Strategy::Steps, 0, 1, 10), 10), IsEmpty());
  EXPECT_THAT(due(make_interval(Strategy::No, 4, 1, 10), 10), IsEmpty());
  // The step that completes an epoch, also if an epoch is not a whole number of steps.
  EXPECT_THAT(due(make_interval(Strategy::Epoch, 4, 1, 3.5), 11), ElementsAre(4, 7, 11));
  EXPECT_THAT(due(make_interval(Strategy::Epoch, 4, 2, 10), 20), ElementsAre(5, 10, 15, 20));
  EXPECT_THAT(due(make_interval(Strategy::Epoch, 4, 5, 2), 4), ElementsAre(1, 2, 3, 4));
}

}  // namespace
}  // namespace octet
