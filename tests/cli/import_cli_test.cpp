// `octet import`, and the other commands with a configuration of another program.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "support/places.h"
#include "support/process.h"

namespace octet {
namespace {

using test::ProcessResult;
using test::run_process;
using test::TemporaryFolder;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

const std::string kFiles = test::source_path("/tests/import/files/");

// A run of a few steps that a LLaMA-Factory file describes.
constexpr const char* kTinyRun =
    "stage: pt\ndo_train: true\ntemplate: default\ndataset: words.txt\ndataset_dir: ONLINE\nfinetuning_type: full\n"
    "cutoff_len: 64\nper_device_train_batch_size: 2\nmax_steps: 2\nlearning_rate: 1e-4\noutput_dir: saves/tiny\n"
    "bf16: true\nreport_to: none\nplot_loss: true\nsave_strategy: \"no\"\n";

std::string words() {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "a line of words, number " + std::to_string(i) + "\n";
  return text;
}

TEST(ImportCli, PrintsTheConfigurationAndTheReport) {
  const ProcessResult result = run_process(test::octet_program(), {"import", kFiles + "lf_llama31_lora_sft.yaml"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("# Made by 'octet import'"), HasSubstr("\nmax_seq_length: 4096 "),
                                HasSubstr("# cutoff_len\n"), HasSubstr("# default of LLaMA-Factory\n")));
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("mapped (23)"), HasSubstr("ignored ("), HasSubstr("33 keys: 23 mapped, "),
                    HasSubstr("0 refused; "), HasSubstr("defaults of LLaMA-Factory")));
}

// What it comes to may cost accuracy: other trainers have a beta2 of 0.999 by default.
TEST(ImportCli, WarnsOfSettingsThatMayCostAccuracy) {
  const TemporaryFolder folder;
  const std::string lf = folder.write("lf.yaml", std::string(kTinyRun) + "optim: adamw_8bit\n");
  EXPECT_THAT(run_process(test::octet_program(), {"import", lf}).err,
              HasSubstr("optimizer_state fp8 may cost accuracy with adam_beta2 0.999"));
  folder.write("lf.yaml", std::string(kTinyRun) + "optim: adamw_8bit\nadam_beta2: 0.95\n");
  const ProcessResult sound = run_process(test::octet_program(), {"import", lf});
  EXPECT_EQ(sound.exit_code, 0) << sound.err;
  EXPECT_THAT(sound.err, Not(HasSubstr("may cost accuracy")));
}

TEST(ImportCli, FormatSaysWhoseAFileIs) {
  const TemporaryFolder folder;
  const std::string file =
      folder.write("short.yaml",
                   "model_name_or_path: org/llama\ndataset_name: org/d\noutput_dir: out/a\n"
                   "per_device_train_batch_size: 4\nnum_train_epochs: 1\n");
  const ProcessResult own = run_process(test::octet_program(), {"import", file});
  EXPECT_EQ(own.exit_code, 2);
  EXPECT_THAT(own.err, HasSubstr("--format hf"));
  const ProcessResult forced = run_process(test::octet_program(), {"import", file, "--format", "trl"});
  EXPECT_EQ(forced.exit_code, 0) << forced.err;
  EXPECT_THAT(forced.out, HasSubstr("\nweight_decay: 0 "));
}

TEST(ImportCli, WritesAFileThatLoads) {
  const TemporaryFolder folder;
  const std::string lf = folder.write("lf.yaml", kTinyRun);
  folder.write("words.txt", words());
  const ProcessResult imported =
      run_process(test::octet_program(), {"import", "lf.yaml", "--output", "run.yaml"}, folder.path());
  ASSERT_EQ(imported.exit_code, 0) << imported.err;
  EXPECT_THAT(imported.out, HasSubstr("run.yaml: written; use it with 'octet train run.yaml'"));
  const ProcessResult dry = run_process(
      test::octet_program(), {"train", "run.yaml", "--dry_run", "--model_preset", "llama-tiny"}, folder.path());
  EXPECT_EQ(dry.exit_code, 0) << dry.err;
  // It may be written again, but nothing else is replaced.
  EXPECT_EQ(run_process(test::octet_program(), {"import", "lf.yaml", "-o", "run.yaml"}, folder.path()).exit_code, 0);
  const ProcessResult other =
      run_process(test::octet_program(), {"import", "lf.yaml", "-o", "words.txt"}, folder.path());
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.err, HasSubstr("was not written by 'octet import'"));
  EXPECT_EQ(test::read_text(folder.path() + "/words.txt"), words());
}

TEST(ImportCli, RefusedKeysEndWithTwoAndNothingIsWritten) {
  const TemporaryFolder folder;
  const ProcessResult result = run_process(
      test::octet_program(), {"import", kFiles + "hf_adafactor.json", "--output", "run.yaml"}, folder.path());
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.out, IsEmpty());
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("nothing was written"), HasSubstr("hf_adafactor.json:5 is adafactor"),
                    HasSubstr("hf_adafactor.json:6 is 0.1"), HasSubstr("hf_adafactor.json:7 is polynomial"),
                    HasSubstr("3 refused")));
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/run.yaml"));
}

TEST(ImportCli, OwnUnknownAndMissingFilesAreErrors) {
  const TemporaryFolder folder;
  folder.write("own.yaml", "max_steps: 3\n");
  folder.write("other.yaml", "spam: 3\n");
  const auto error = [&](const std::string& file) {
    const ProcessResult result = run_process(test::octet_program(), {"import", file}, folder.path());
    EXPECT_EQ(result.exit_code, 2);
    return result.err;
  };
  EXPECT_THAT(error("own.yaml"), HasSubstr("use it with 'octet train own.yaml'"));
  EXPECT_THAT(error("other.yaml"), HasSubstr("not recognised"));
  EXPECT_THAT(error("none.yaml"), HasSubstr("does not exist"));
}

TEST(ImportCli, TrainTakesTheFileAsItIs) {
  const TemporaryFolder folder;
  folder.write("lf.yaml", kTinyRun);
  folder.write("words.txt", words());
  const ProcessResult run = run_process(
      test::octet_program(), {"train", "lf.yaml", "--model_preset", "llama-tiny", "--device", "cpu"}, folder.path());
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.err,
              AllOf(HasSubstr("lf.yaml is a configuration of LLaMA-Factory"), HasSubstr("0 refused")));
  // What the run wrote is octet's own configuration.
  const std::string config = test::read_text(folder.path() + "/saves/tiny/config.yaml");
  EXPECT_THAT(config, AllOf(HasSubstr("\nmax_seq_length: 64\n"), HasSubstr("\nadam_beta2: 0.999\n"),
                            Not(HasSubstr("cutoff_len"))));
  const ProcessResult refused =
      run_process(test::octet_program(), {"train", kFiles + "lf_dora.yaml", "--max_steps", "1"}, folder.path());
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("octet has no DoRA"));
}

TEST(ImportCli, PlanTakesTheFileAndFlagsOverrideIt) {
  const ProcessResult plan = run_process(test::octet_program(), {"plan", kFiles + "ds_zero2.json", "--model_preset",
                                                         "llama-tiny", "--mixed_precision", "bf16"});
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_THAT(plan.err, HasSubstr("is a configuration of DeepSpeed"));
}

TEST(ImportCli, FlagsOfGuidesWork) {
  const TemporaryFolder folder;
  const ProcessResult run =
      run_process(test::octet_program(),
                  {"train", "--dry_run", "--use_te", "--empty_cache_freq", "25", "--num_workers", "4",
                   "--fp8_backend", "te", "--per_device_eval_batch_size", "8", "--report_to", "none",
                   "--optim", "adamw_8bit", "--overwrite_output_dir", "--ddp_timeout", "1800"},
                  folder.path());
  EXPECT_EQ(run.exit_code, 0) << run.err;
  for (const char* flag : {"--use_te", "--empty_cache_freq", "--num_workers", "--fp8_backend", "--optim"})
    EXPECT_THAT(run.err, HasSubstr(flag));
  EXPECT_THAT(run.out, HasSubstr("optimizer_state: fp8"));
  const ProcessResult refused =
      run_process(test::octet_program(), {"train", "--use_dora", "--lr", "fast"}, folder.path());
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("--use_dora is true: octet has no DoRA"), HasSubstr("--lr")));
}

TEST(ImportCli, ASwitchBeforeTheFileLeavesTheFile) {
  const TemporaryFolder folder;
  folder.write("own.yaml", "max_steps: 3\n");
  const ProcessResult run =
      run_process(test::octet_program(), {"train", "--overwrite_output_dir", "own.yaml", "--dry_run"}, folder.path());
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("max_steps: 3"));
}

}  // namespace
}  // namespace octet
