// The command line as a user meets it. config/bad_config_test.cpp and apps/command_line_test.cpp have every error; here the
// program is run once for each kind of error, and must exit with code 2.
#include <gmock/gmock.h>
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

TEST(ConfigCli, ErrorsOfEachKindExitWithTwo) {
  expect_usage_error(
      train_with("learnig_rate: 1\nmax_steps: x\na: {b: c}\n"),
      "error: a in run.yaml:3 is a nested map; expected one value or a list of values, in a flat file\n"
      "error: unknown key 'learnig_rate' in run.yaml:1; did you mean 'learning_rate'?\n"
      "error: max_steps in run.yaml:2 is 'x'; expected an integer from -1 to 1000000000000\n");
  expect_usage_error(train_with("seed: 1\n  max_steps: 2\n"),
                     "error: run.yaml:2: not valid YAML: illegal map value\n");
  expect_usage_error(train_with("require_fp8: true\nmixed_precision: bf16\n"),
                     "error: require_fp8 contradicts mixed_precision bf16; expected fp8\n");
  expect_usage_error(train_with("seed: 1\n", {"--fp8_eval", "maybe"}),
                     "error: --fp8_eval is 'maybe'; expected true or false\n");
  expect_usage_error(octet({"train", "--run_name", "\xff"}),
                     "error: --run_name is '\\xff'; expected UTF-8 text\n");
  expect_usage_error(octet({"trian"}), "error: unknown command 'trian'; did you mean 'train'?\n");
  EXPECT_EQ(octet({"--frobnicate"}).exit_code, 2);
}

TEST(ConfigCli, MissingFileAndFolderAreNamed) {
  expect_usage_error(octet({"train", "nowhere.yaml"}),
                     "error: nowhere.yaml does not exist; expected a YAML file\n");
  expect_usage_error(octet({"train", "/"}),
                     "error: '/' is a folder, not a configuration file; give data as --dataset /\n");
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

TEST(ConfigCli, TheDocumentationSaysWhatTheProgramSays) {
  EXPECT_EQ(read_text(test::source_path("/docs/configuration.md")), octet({"keys", "--markdown"}).out)
      << "run: octet keys --markdown > docs/configuration.md";
}

TEST(KeysCli, AKeyOfAnotherProgramLeadsToOctetsOwn) {
  const ProcessResult result = run_process(test::octet_program(), {"keys", "load_in_fp8"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, testing::AllOf(testing::HasSubstr("it loads weights for inference"),
                                         testing::HasSubstr("--mixed_precision")));
  EXPECT_THAT(run_process(test::octet_program(), {"keys", "num_workers"}).out,
              testing::HasSubstr("--num_threads"));
  // The name of a key inside another word does not count: --device.
  EXPECT_THAT(run_process(test::octet_program(), {"keys", "per_device_eval_batch_size"}).out,
              testing::AllOf(testing::HasSubstr("evaluation takes the batch of training"),
                             testing::Not(testing::HasSubstr("--device "))));
  EXPECT_EQ(run_process(test::octet_program(), {"keys", "load_in_fp9"}).exit_code, 2);
}

}  // namespace
}  // namespace octet::test
