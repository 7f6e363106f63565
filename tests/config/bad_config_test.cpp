// Errors of configuration files and of the flags of `octet train`, word by word.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "config/config.h"
#include "support/error_of.h"
#include "support/process.h"

namespace octet::test {
namespace {

// run.yaml (none if `yaml` is null) and these flags, read as `octet train` reads them.
std::string config_error(const char* yaml, const std::vector<std::string>& flags = {}) {
  const TemporaryFolder folder;
  if (yaml) folder.write("run.yaml", yaml);
  std::filesystem::current_path(folder.path());  // so that messages name the file without its folder
  const std::string error = error_of([&] {
    std::vector<std::string> errors;
    const KeyArguments read =
        parse_key_arguments(train_keys().keys(), flags, errors, PositionalKind::ConfigFile);
    throw_config_errors(errors);
    load_train_config(yaml ? "run.yaml" : "", read.settings);
  });
  std::filesystem::current_path("/");
  return error;
}

struct BadFile {
  const char* name;
  const char* yaml;
  const char* errors;
};

void PrintTo(const BadFile& file, std::ostream* out) {
  *out << file.name;
}

class BadFiles : public testing::TestWithParam<BadFile> {};

TEST_P(BadFiles, GiveTheirErrors) {
  EXPECT_EQ(config_error(GetParam().yaml), GetParam().errors);
}

constexpr BadFile kBadFiles[] = {
    {"UnknownKey", "max_steps: 3\n\nlearnig_rate: 1\n",
     "unknown key 'learnig_rate' in run.yaml:3; did you mean 'learning_rate'?"},
    {"UnknownKeyNearAnAlias", "cutof_len: 8\n",
     "unknown key 'cutof_len' in run.yaml:1; did you mean 'max_seq_length'?"},
    {"UnknownKeyNearNothing", "zebra_crossing_count: 8\n",
     "unknown key 'zebra_crossing_count' in run.yaml:1"},
    {"NotANumber", "learning_rate: fast\n",
     "learning_rate in run.yaml:1 is 'fast'; expected a number from 0 to 1000"},
    {"NumberWithUnderscore", "max_steps: 1_000\n",
     "max_steps in run.yaml:1 is '1_000'; expected an integer from -1 to 1000000000000"},
    {"NotAnInteger", "max_steps: 2.5\n",
     "max_steps in run.yaml:1 is '2.5'; expected an integer from -1 to 1000000000000"},
    {"Infinite", "max_grad_norm: inf\n",
     "max_grad_norm in run.yaml:1 is 'inf'; expected a number of at least 0"},
    {"OpenRange", "adam_beta1: 1\n",
     "adam_beta1 in run.yaml:1 is '1'; expected a number of at least 0 and below 1"},
    {"ZeroEpsilon", "adam_epsilon: 0\n",
     "adam_epsilon in run.yaml:1 is '0'; expected a number above 0 and at most 1"},
    {"NotABool", "fp8_eval: maybe\n", "fp8_eval in run.yaml:1 is 'maybe'; expected true or false"},
    {"NotAChoice", "mixed_precision: fp16\n",
     "mixed_precision in run.yaml:1 is 'fp16'; octet has no fp16: bf16 has the same speed and size and needs no "
     "loss scaling; use bf16 or fp8"},
    {"NotACheckpointing", "gradient_checkpointing: all\n",
     "gradient_checkpointing in run.yaml:1 is 'all'; expected one of auto, none, act, mlp, "
     "block (true = block, false = none)"},
    {"NotABoolForAnAlias", "use_fp8: fp8\n",
     "use_fp8 in run.yaml:1 (alias of mixed_precision) is 'fp8'; expected true or false"},
    {"BadValueForAnAlias", "batch_size: 0\n",
     "batch_size in run.yaml:1 (alias of per_device_train_batch_size) is '0'; expected an integer "
     "from 1 to "
     "1048576"},
    {"ListForAScalar", "max_steps: [1, 2]\n",
     "max_steps in run.yaml:1 is [1, 2]; expected an integer from -1 to 1000000000000"},
    {"EmptyListItem", "fp8_skip_layers: [0, '']\n",
     "fp8_skip_layers in run.yaml:1 is [0, ]; expected a list of names, none empty"},
    {"NestedMap", "max_steps: 3\noptimizer:\n  learning_rate: 1\n",
     "optimizer in run.yaml:2 is a nested map; expected one value or a list of values, in a flat "
     "file"},
    {"ListInsideList", "fp8_skip_layers:\n  - [1]\n",
     "fp8_skip_layers in run.yaml:1 is a list inside a list; expected one value or a list of values, "
     "in a flat "
     "file"},
    {"DuplicateKey", "max_steps: 3\nseed: 1\nmax_steps: 4\n",
     "max_steps in run.yaml:3 is given twice, first in run.yaml:1"},
    {"KeyAndItsAlias", "learning_rate: 1e-3\nlr: 1e-4\n",
     "learning_rate in run.yaml:1 and lr in run.yaml:2 are the same key; give one of them"},
    {"TopLevelList", "- a\n- b\n", "run.yaml:1 holds a list; expected 'key: value' lines"},
    {"TopLevelScalar", "hello\n", "run.yaml:1 holds only 'hello'; expected 'key: value' lines"},
    {"TwoDocuments", "seed: 1\n---\nseed: 2\n", "run.yaml:2 starts a second YAML document; expected one"},
    {"Anchor", "seed: &x 1\n",
     "run.yaml:1 uses a YAML anchor or alias ('x'), which is not supported; write the value out"},
    {"ValueForgotten", "seed:\nmax_steps: 3\n",
     "seed in run.yaml:1 has no value; write null to keep the default"},
    {"ColonForgotten", "seed: 1\nmax_steps\n",
     "max_steps in run.yaml:2 has no value; write null to keep the default"},
    {"QuoteNotClosed", "seed: 1\nrun_name: \"open\nmax_steps: 2\n",
     "run.yaml: not valid YAML: a quote or bracket is not closed"},
    {"BracketNotClosed", "fp8_skip_layers: [1, 2\n",
     "run.yaml: not valid YAML: a quote or bracket is not closed"},
    {"Indented", "seed: 1\n  max_steps: 2\n", "run.yaml:2: not valid YAML: illegal map value"},
    {"NotUtf8", "run_name: \xff\n", "run.yaml is not UTF-8 text; expected a YAML file"},
    {"BothModels", "model_preset: llama-tiny\nmodel_name_or_path: gpt2\n",
     "model_preset in run.yaml:1 and model_name_or_path in run.yaml:2 contradict each other: both "
     "name the "
     "model; give one of them"},
    {"BothWarmups", "warmup_ratio: 0.1\nwarmup_steps: 2\n",
     "warmup_steps in run.yaml:2 and warmup_ratio in run.yaml:1 contradict each other: both set the "
     "length of "
     "the warm-up; give one of them"},
    {"TargetBesideAccumulation", "target_effective_batch_size: 32\ngradient_accumulation_steps: 4\n",
     "target_effective_batch_size in run.yaml:1 and gradient_accumulation_steps in run.yaml:2 "
     "contradict each "
     "other: the first sets the second; give one of them"},
    {"TargetNotAMultiple", "target_effective_batch_size: 10\nbatch_size: 4\n",
     "target_effective_batch_size 10 is not a multiple of 4 (per_device_train_batch_size 4 on 1 "
     "device)"},
    {"AutoBesideBatchSize", "auto_batch_size: true\nbatch_size: 4\n",
     "auto_batch_size in run.yaml:1 and batch_size in run.yaml:2 contradict each other: the first "
     "picks the "
     "second; give one of them"},
    {"RequireFp8WithoutFp8", "require_fp8: true\nmixed_precision: bf16\n",
     "require_fp8 contradicts mixed_precision bf16; expected fp8"},
    {"RunNameWithFolder", "run_name: a/b\n",
     "run_name is 'a/b'; expected a plain folder name (output_dir takes paths)"},
    {"SeveralAtOnce", "learnig_rate: 1\nmax_steps: x\na: {b: c}\n",
     "a in run.yaml:3 is a nested map; expected one value or a list of values, in a flat file\n"
     "unknown key 'learnig_rate' in run.yaml:1; did you mean 'learning_rate'?\n"
     "max_steps in run.yaml:2 is 'x'; expected an integer from -1 to 1000000000000"},
};

INSTANTIATE_TEST_SUITE_P(, BadFiles, testing::ValuesIn(kBadFiles),
                         [](const auto& test_case) { return std::string(test_case.param.name); });

TEST(BadConfig, DeepNestingIsRefused) {
  EXPECT_EQ(config_error(("a: " + std::string(100000, '[') + std::string(100000, ']')).c_str()),
            "run.yaml:1 is nested deeper than 16 levels");
}

TEST(BadConfig, Flags) {
  EXPECT_EQ(config_error(nullptr, {"--learnig_rate", "1"}),
            "unknown flag '--learnig_rate'; did you mean '--learning_rate'?");
  EXPECT_EQ(config_error(nullptr, {"--max_steps"}),
            "--max_steps needs a value; expected an integer from -1 to 1000000000000");
  EXPECT_EQ(config_error(nullptr, {"--dataset", "--max_steps", "3"}),
            "--dataset needs a value; expected one path, or a list of paths");
  EXPECT_EQ(config_error(nullptr, {"--seed", "-1"}), "--seed is '-1'; expected an integer of at least 0");
  EXPECT_EQ(config_error(nullptr, {"-lr", "1"}), "'-lr' is not a flag; flags are written --key value");
  EXPECT_EQ(config_error(nullptr, {"--lr=1", "--learning_rate=2"}),
            "--lr and --learning_rate are the same key; give one of them");
  EXPECT_EQ(config_error(nullptr, {"--lr=1", "--lr=1"}), "--lr is given twice");
  EXPECT_EQ(config_error(nullptr, {"--use_fp8", "fp8"}),
            "--use_fp8 (alias of mixed_precision) is 'fp8'; expected true or false");
  EXPECT_EQ(
      config_error(nullptr, {"--gradient_checkpointing", "all"}),
      "--gradient_checkpointing is 'all'; expected one of auto, none, act, mlp, block (true = block, false = none)");
  EXPECT_EQ(
      config_error("seed: 3\n", {"--warmup_steps", "3", "--warmup_ratio", "0.1"}),
      "--warmup_steps and --warmup_ratio contradict each other: both set the length of the warm-up; give one of "
      "them");
}

}  // namespace
}  // namespace octet::test
