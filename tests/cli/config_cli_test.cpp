// The command line as a user meets it: the program is run, and each bad input must give exactly its error and
// exit code 2.
#include <gtest/gtest.h>

#include "support/places.h"
#include "support/process.h"

namespace octet::test {
namespace {

ProcessResult octet(const std::vector<std::string>& arguments, const std::string& folder = "") {
  return run_process(test::octet_program(), arguments, folder);
}

void expect_usage_error(const ProcessResult& result, const std::string& errors) {
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err, errors);
}

// octet train run.yaml FLAGS --dry_run, in a folder of its own so that messages name the file as "run.yaml".
ProcessResult train_with(const std::string& yaml, std::vector<std::string> flags = {}) {
  const TemporaryFolder folder;
  folder.write("run.yaml", yaml);
  flags.insert(flags.begin(), {"train", "run.yaml"});
  flags.push_back("--dry_run");
  return octet(flags, folder.path());
}

struct BadFile {
  const char* name;
  const char* yaml;
  const char* errors;
};

// Else the list of tests shows its bytes, which are addresses and differ from call to call.
void PrintTo(const BadFile& file, std::ostream* out) {
  *out << file.name;
}

class BadFiles : public testing::TestWithParam<BadFile> {};

TEST_P(BadFiles, GiveTheirErrorAndExitWithTwo) {
  expect_usage_error(train_with(GetParam().yaml), GetParam().errors);
}

constexpr BadFile kBadFiles[] = {
    {"UnknownKey", "max_steps: 3\n\nlearnig_rate: 1\n",
     "error: unknown key 'learnig_rate' in run.yaml:3; did you mean 'learning_rate'?\n"},
    {"UnknownKeyNearAnAlias", "cutof_len: 8\n",
     "error: unknown key 'cutof_len' in run.yaml:1; did you mean 'max_seq_length'?\n"},
    {"UnknownKeyNearNothing", "zebra_crossing_count: 8\n",
     "error: unknown key 'zebra_crossing_count' in run.yaml:1\n"},
    {"NotANumber", "learning_rate: fast\n",
     "error: learning_rate in run.yaml:1 is 'fast'; expected a number from 0 to 1000\n"},
    {"NumberWithUnderscore", "max_steps: 1_000\n",
     "error: max_steps in run.yaml:1 is '1_000'; expected an integer from -1 to 1000000000000\n"},
    {"NotAnInteger", "max_steps: 2.5\n",
     "error: max_steps in run.yaml:1 is '2.5'; expected an integer from -1 to 1000000000000\n"},
    {"Infinite", "max_grad_norm: inf\n",
     "error: max_grad_norm in run.yaml:1 is 'inf'; expected a number of at least 0\n"},
    {"OpenRange", "adam_beta1: 1\n",
     "error: adam_beta1 in run.yaml:1 is '1'; expected a number of at least 0 and below 1\n"},
    {"ZeroEpsilon", "adam_epsilon: 0\n",
     "error: adam_epsilon in run.yaml:1 is '0'; expected a number above 0 and at most 1\n"},
    {"NotABool", "fp8_eval: maybe\n", "error: fp8_eval in run.yaml:1 is 'maybe'; expected true or false\n"},
    {"NotAChoice", "mixed_precision: fp16\n",
     "error: mixed_precision in run.yaml:1 is 'fp16'; octet has no fp16: bf16 has the same speed and size and needs no "
     "loss scaling; use bf16 or fp8\n"},
    {"NotACheckpointing", "gradient_checkpointing: all\n",
     "error: gradient_checkpointing in run.yaml:1 is 'all'; expected one of auto, none, act, mlp, "
     "block (true = block, false = none)\n"},
    {"NotABoolForAnAlias", "use_fp8: fp8\n",
     "error: use_fp8 in run.yaml:1 (alias of mixed_precision) is 'fp8'; expected true or false\n"},
    {"BadValueForAnAlias", "batch_size: 0\n",
     "error: batch_size in run.yaml:1 (alias of per_device_train_batch_size) is '0'; expected an integer "
     "from 1 to "
     "1048576\n"},
    {"ListForAScalar", "max_steps: [1, 2]\n",
     "error: max_steps in run.yaml:1 is [1, 2]; expected an integer from -1 to 1000000000000\n"},
    {"EmptyListItem", "fp8_skip_layers: [0, '']\n",
     "error: fp8_skip_layers in run.yaml:1 is [0, ]; expected a list of names, none empty\n"},
    {"NestedMap", "max_steps: 3\noptimizer:\n  learning_rate: 1\n",
     "error: optimizer in run.yaml:2 is a nested map; expected one value or a list of values, in a flat "
     "file\n"},
    {"ListInsideList", "fp8_skip_layers:\n  - [1]\n",
     "error: fp8_skip_layers in run.yaml:1 is a list inside a list; expected one value or a list of values, "
     "in a flat "
     "file\n"},
    {"DuplicateKey", "max_steps: 3\nseed: 1\nmax_steps: 4\n",
     "error: max_steps in run.yaml:3 is given twice, first in run.yaml:1\n"},
    {"KeyAndItsAlias", "learning_rate: 1e-3\nlr: 1e-4\n",
     "error: learning_rate in run.yaml:1 and lr in run.yaml:2 are the same key; give one of them\n"},
    {"TopLevelList", "- a\n- b\n", "error: run.yaml:1 holds a list; expected 'key: value' lines\n"},
    {"TopLevelScalar", "hello\n", "error: run.yaml:1 holds only 'hello'; expected 'key: value' lines\n"},
    {"TwoDocuments", "seed: 1\n---\nseed: 2\n",
     "error: run.yaml:2 starts a second YAML document; expected one\n"},
    {"Anchor", "seed: &x 1\n",
     "error: run.yaml:1 uses a YAML anchor or alias ('x'), which is not supported; write the value out\n"},
    {"ValueForgotten", "seed:\nmax_steps: 3\n",
     "error: seed in run.yaml:1 has no value; write null to keep the default\n"},
    {"ColonForgotten", "seed: 1\nmax_steps\n",
     "error: max_steps in run.yaml:2 has no value; write null to keep the default\n"},
    {"QuoteNotClosed", "seed: 1\nrun_name: \"open\nmax_steps: 2\n",
     "error: run.yaml: not valid YAML: a quote or bracket is not closed\n"},
    {"BracketNotClosed", "fp8_skip_layers: [1, 2\n",
     "error: run.yaml: not valid YAML: a quote or bracket is not closed\n"},
    {"Indented", "seed: 1\n  max_steps: 2\n", "error: run.yaml:2: not valid YAML: illegal map value\n"},
    {"NotUtf8", "run_name: \xff\n", "error: run.yaml is not UTF-8 text; expected a YAML file\n"},
    {"BothModels", "model_preset: llama-tiny\nmodel_name_or_path: gpt2\n",
     "error: model_preset in run.yaml:1 and model_name_or_path in run.yaml:2 contradict each other: both "
     "name the "
     "model; give one of them\n"},
    {"BothWarmups", "warmup_ratio: 0.1\nwarmup_steps: 2\n",
     "error: warmup_steps in run.yaml:2 and warmup_ratio in run.yaml:1 contradict each other: both set the "
     "length of "
     "the warm-up; give one of them\n"},
    {"TargetBesideAccumulation", "target_effective_batch_size: 32\ngradient_accumulation_steps: 4\n",
     "error: target_effective_batch_size in run.yaml:1 and gradient_accumulation_steps in run.yaml:2 "
     "contradict each "
     "other: the first sets the second; give one of them\n"},
    {"TargetNotAMultiple", "target_effective_batch_size: 10\nbatch_size: 4\n",
     "error: target_effective_batch_size 10 is not a multiple of 4 (per_device_train_batch_size 4 on 1 "
     "device)\n"},
    {"AutoBesideBatchSize", "auto_batch_size: true\nbatch_size: 4\n",
     "error: auto_batch_size in run.yaml:1 and batch_size in run.yaml:2 contradict each other: the first "
     "picks the "
     "second; give one of them\n"},
    {"RequireFp8WithoutFp8", "require_fp8: true\nmixed_precision: bf16\n",
     "error: require_fp8 contradicts mixed_precision bf16; expected fp8\n"},
    {"RunNameWithFolder", "run_name: a/b\n",
     "error: run_name is 'a/b'; expected a plain folder name (output_dir takes paths)\n"},
    {"SeveralAtOnce", "learnig_rate: 1\nmax_steps: x\na: {b: c}\n",
     "error: a in run.yaml:3 is a nested map; expected one value or a list of values, in a flat file\n"
     "error: unknown key 'learnig_rate' in run.yaml:1; did you mean 'learning_rate'?\n"
     "error: max_steps in run.yaml:2 is 'x'; expected an integer from -1 to 1000000000000\n"},
};

INSTANTIATE_TEST_SUITE_P(Cli, BadFiles, testing::ValuesIn(kBadFiles),
                         [](const auto& test_case) { return std::string(test_case.param.name); });

TEST(ConfigCli, DeepNestingIsRefused) {
  const ProcessResult result = train_with("a: " + std::string(100000, '[') + std::string(100000, ']'));
  expect_usage_error(result, "error: run.yaml:1 is nested deeper than 16 levels\n");
}

TEST(ConfigCli, MissingFileAndFolderAreNamed) {
  expect_usage_error(octet({"train", "nowhere.yaml"}),
                     "error: nowhere.yaml does not exist; expected a YAML file\n");
  expect_usage_error(octet({"train", "/"}),
                     "error: '/' is a folder, not a configuration file; give data as --dataset /\n");
}

TEST(ConfigCli, BadFlags) {
  expect_usage_error(octet({"train", "--learnig_rate", "1"}),
                     "error: unknown flag '--learnig_rate'; did you mean '--learning_rate'?\n");
  expect_usage_error(octet({"train", "--max_steps"}),
                     "error: --max_steps needs a value; expected an integer from -1 to 1000000000000\n");
  expect_usage_error(octet({"train", "--dataset", "--max_steps", "3"}),
                     "error: --dataset needs a value; expected one path, or a list of paths\n");
  expect_usage_error(octet({"train", "--seed", "-1"}),
                     "error: --seed is '-1'; expected an integer of at least 0\n");
  expect_usage_error(octet({"train", "-lr", "1"}),
                     "error: '-lr' is not a flag; flags are written --key value\n");
  expect_usage_error(octet({"train", "--lr=1", "--learning_rate=2"}),
                     "error: --lr and --learning_rate are the same key; give one of them\n");
  expect_usage_error(octet({"train", "--lr=1", "--lr=1"}), "error: --lr is given twice\n");
  expect_usage_error(octet({"train", "a.yaml", "b.yaml"}),
                     "error: octet train takes one configuration file, got 'a.yaml' and 'b.yaml'\n");
  expect_usage_error(octet({"train", "--run_name", "\xff"}),
                     "error: --run_name is '\\xff'; expected UTF-8 text\n");
  expect_usage_error(
      train_with("seed: 3\n", {"--warmup_steps", "3", "--warmup_ratio", "0.1"}),
      "error: --warmup_steps and --warmup_ratio contradict each other: both set the length of the warm-up; give one of "
      "them\n");
}

TEST(ConfigCli, AFlagOverridesTheKeyOfTheFileThatItExcludes) {
  const ProcessResult result =
      train_with("num_train_epochs: 3\nwarmup_ratio: 0.1\n", {"--max_steps", "7", "--warmup_steps", "2"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("\nmax_steps: 7\n"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("\nwarmup_steps: 2\n"), std::string::npos) << result.out;
  EXPECT_EQ(result.out.find("\nnum_train_epochs: 3"), std::string::npos) << result.out;
}

TEST(ConfigCli, FlagsWinOverTheFileAndBoolsStandAlone) {
  const ProcessResult result =
      train_with("lr: 1e-5\nmax_steps: 1e3\nfp8_eval: false\n",
                 {"--learning-rate=6e-4", "--fp8_eval", "--use_fp8", "no", "--gradient_checkpointing"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "warning: fp8_eval has no effect: mixed_precision is bf16\n");
  for (const char* line : {"\nlearning_rate: 0.0006\n", "\nmax_steps: 1000\n", "\nfp8_eval: true\n",
                           "\nmixed_precision: bf16\n", "\ngradient_checkpointing: block\n"}) {
    EXPECT_NE(result.out.find(line), std::string::npos) << line << result.out;
  }
}

TEST(ConfigCli, ABoolFlagBeforeTheFileDoesNotTakeItsName) {
  const TemporaryFolder folder;
  folder.write("run.yaml", "seed: 7\n");
  const ProcessResult result = octet({"train", "--dry_run", "run.yaml"}, folder.path());
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_NE(result.out.find("\nseed: 7\n"), std::string::npos);
}

// As other programs are called.
TEST(ConfigCli, TheFileMayBeAFlag) {
  const TemporaryFolder folder;
  folder.write("run.yaml", "seed: 7\n");
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"--config", "run.yaml"}, {"--config=run.yaml"}, {"-c", "run.yaml"}}) {
    std::vector<std::string> arguments = {"train", "--no_wandb", "--dry_run"};
    arguments.insert(arguments.end(), words.begin(), words.end());
    const ProcessResult result = octet(arguments, folder.path());
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_NE(result.out.find("\nseed: 7\n"), std::string::npos) << words.front();
  }
}

TEST(ConfigCli, AMissingFolderOfCheckpointsHasNone) {
  const TemporaryFolder folder;
  const ProcessResult result =
      octet({"train", "--list_checkpoints", "--checkpoint_dir", "D", "--resume", "latest"}, folder.path());
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "checkpoint_dir D does not exist yet: there are no checkpoints\n");
}

// Behind a flag that may stand alone, a word that is no value and no file is a mistake in the value.
TEST(ConfigCli, ABadValueBehindABoolFlagIsToldAsOne) {
  const TemporaryFolder folder;
  folder.write("run.yaml", "seed: 7\n");
  folder.write("plain", "seed: 8\n");
  const auto with = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), "train");
    flags.push_back("--dry_run");
    return octet(flags, folder.path());
  };
  const std::string maybe = "error: --fp8_eval is 'maybe'; expected true or false\n";
  expect_usage_error(with({"--fp8_eval", "maybe"}), maybe);
  expect_usage_error(with({"run.yaml", "--fp8_eval", "maybe"}), maybe);
  expect_usage_error(with({"--fp8_eval", "maybe", "run.yaml"}), maybe);
  expect_usage_error(with({"--use_fp8", "fp8"}),
                     "error: --use_fp8 (alias of mixed_precision) is 'fp8'; expected true or false\n");
  expect_usage_error(with({"--gradient_checkpointing", "all"}),
                     "error: --gradient_checkpointing is 'all'; expected one of auto, none, act, mlp, "
                     "block (true = block, false = none)\n");
  expect_usage_error(with({"--fp8_eval", ""}), "error: --fp8_eval is ''; expected true or false\n");
  // A configuration is known by being there, or by its name.
  EXPECT_NE(with({"--fp8_eval", "run.yaml"}).out.find("\nseed: 7\n"), std::string::npos);
  EXPECT_NE(with({"--fp8_eval", "plain"}).out.find("\nseed: 8\n"), std::string::npos);
  expect_usage_error(with({"--fp8_eval", "rnu.yaml"}),
                     "error: rnu.yaml does not exist; expected a YAML file\n");
}

TEST(ConfigCli, TheResolvedConfigurationReadsBackToItself) {
  const ProcessResult demo = octet({"train", "--dry_run"});
  ASSERT_EQ(demo.exit_code, 0) << demo.err;
  EXPECT_EQ(train_with(demo.out).out, demo.out);
  const TemporaryFolder folder;
  folder.write("my data.txt", std::string(5000, 'a'));
  folder.write("run.yaml",
               "model_preset: llama-tiny\ndataset: \"my data*\"\ntarget_effective_batch_size: 32\n"
               "fp8_skip_layers: [head, 'last:1']\nfp8_head: true\nnum_epochs: 0.5\n");
  const ProcessResult other = octet({"train", "run.yaml", "--dry_run"}, folder.path());
  ASSERT_EQ(other.exit_code, 0) << other.err;
  folder.write("again.yaml", other.out);
  EXPECT_EQ(octet({"train", "again.yaml", "--dry_run"}, folder.path()).out, other.out);
}

TEST(ConfigCli, HelpIsCompleteAndGoesToStdout) {
  const ProcessResult bare = octet({}), help = octet({"--help"}), train = octet({"train", "--help"});
  EXPECT_EQ(bare.exit_code, 0);
  EXPECT_EQ(bare.out, help.out);
  EXPECT_NE(help.out.find("train"), std::string::npos);
  EXPECT_EQ(train.exit_code, 0);
  EXPECT_EQ(train.err, "");
  for (const char* part : {"\nModel\n", "\nRun\n", "--learning_rate X", "also --lr,", "\nLoRA\n",
                           "default: 20 in the demo, else 1", "default: 0 with LoRA, else 0.1",
                           "fp8 | bf16 | fp32", "[auto | on | off; true = on; false = off; default: auto]"}) {
    EXPECT_NE(train.out.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(octet({"keys", "--help"}).exit_code, 0);
  EXPECT_EQ(octet({"--version"}).out.substr(0, 6), "octet ");
}

TEST(ConfigCli, UnknownCommandsAndOptions) {
  expect_usage_error(octet({"trian"}), "error: unknown command 'trian'; did you mean 'train'?\n");
  expect_usage_error(octet({"zzzzzzz"}),
                     "error: unknown command 'zzzzzzz'; 'octet --help' lists the commands\n");
  EXPECT_EQ(octet({"--frobnicate"}).exit_code, 2);
  EXPECT_EQ(octet({"keys", "--frobnicate"}).exit_code, 2);
}

TEST(ConfigCli, TheDocumentationSaysWhatTheProgramSays) {
  EXPECT_EQ(read_text(test::source_path("/docs/configuration.md")), octet({"keys", "--markdown"}).out)
      << "run: octet keys --markdown > docs/configuration.md";
}

TEST(KeysCli, AKeyOfAnotherProgramLeadsToOctetsOwn) {
  const ProcessResult result = run_process(test::octet_program(), {"keys", "load_in_fp8"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, testing::AllOf(testing::HasSubstr("it loads weights for inference"),
                                         testing::HasSubstr("--mixed_precision")));
  EXPECT_THAT(run_process(test::octet_program(), {"keys", "num_workers"}).out, testing::HasSubstr("--num_threads"));
  // The name of a key inside another word does not count: --device.
  EXPECT_THAT(run_process(test::octet_program(), {"keys", "per_device_eval_batch_size"}).out,
              testing::AllOf(testing::HasSubstr("evaluation takes the batch of training"),
                             testing::Not(testing::HasSubstr("--device "))));
  EXPECT_EQ(run_process(test::octet_program(), {"keys", "load_in_fp9"}).exit_code, 2);
}

}  // namespace
}  // namespace octet::test
