// What a run tells its user: threads, rates that do not fit, what happens to the schedule, how to continue.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>

#include "support/model_fixture.h"
#include "support/places.h"
#include "support/process.h"

namespace octet::test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
namespace fs = std::filesystem;
using Flags = std::map<std::string, std::string>;

struct RunMessages : testing::Test {
  RunMessages() {
    std::string text;
    for (int i = 0; i < 300; ++i) text += "line " + std::to_string(i * 7919 % 1000) + " of the text\n";
    folder.write("text.txt", text);
  }
  static std::vector<std::string> arguments(const std::string& name, const Flags& changes = {}) {
    Flags flags = {{"dataset", "text.txt"}, {"device", "cpu"},   {"max_seq_length", "32"},
                   {"max_steps", "8"},      {"eval_steps", "0"}, {"eval_batches", "1"},
                   {"progress", "plain"},   {"run_name", name},  {"per_device_train_batch_size", "2"},
                   {"num_threads", "1"},    {"save_steps", "0"}};
    if (!changes.contains("model_name_or_path")) flags["model_preset"] = "llama-tiny";
    for (const auto& [key, value] : changes) flags[key] = value;
    std::vector<std::string> result = {"train"};
    for (const auto& [key, value] : flags) {
      if (!value.empty()) result.push_back("--" + key + "=" + value);
    }
    return result;
  }
  ProcessResult run(const std::vector<std::string>& words) {
    return run_process(test::octet_program(), words, folder.path());
  }
  ProcessResult run_with(const std::string& variable, std::vector<std::string> words) {
    words.insert(words.begin(), {variable, test::octet_program()});
    return run_process("/usr/bin/env", words, folder.path());
  }
  std::vector<nlohmann::json> metrics(const std::string& name) {
    std::vector<nlohmann::json> lines;
    std::ifstream file(folder.path() + "/runs/" + name + "/metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      nlohmann::json record = nlohmann::json::parse(line, nullptr, false);
      if (record.is_object()) lines.push_back(std::move(record));
    }
    return lines;
  }
  std::string model_folder() {
    const std::string path = folder.path() + "/model";
    fs::create_directories(path);
    RandomModel(two_layers("llama-tiny"), DType::F32).write_folder(path);
    return "model";
  }
  TemporaryFolder folder;
};

// Once, with what to set instead.
TEST_F(RunMessages, ASettingThatCostsAccuracyIsNamed) {
  const auto warnings = [&](const char* master_weights) {
    const ProcessResult result =
        run(arguments(master_weights, {{"master_weights", master_weights}, {"max_steps", "2"}}));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    int64_t count = 0;
    const std::string text = "warning: master_weights stochastic may cost accuracy";
    for (size_t at = result.err.find(text); at != std::string::npos; at = result.err.find(text, at + 1))
      ++count;
    EXPECT_EQ(result.err.find("set master_weights to compact") != std::string::npos, count > 0);
    return count;
  };
  EXPECT_EQ(warnings("stochastic"), 1);
  EXPECT_EQ(warnings("compact"), 0);
}

// Such as a log on a full disk: the warning is lost, the run is not.
TEST_F(RunMessages, AnErrorStreamThatCannotBeWrittenEndsNothing) {
  if (access("/dev/full", W_OK) != 0) GTEST_SKIP() << "no /dev/full on this machine";
  std::string line = test::octet_program();
  for (const std::string& word : arguments("unheard", {{"master_weights", "stochastic"}, {"max_steps", "2"}}))
    line += " '" + word + "'";
  const ProcessResult result = run_process("/bin/sh", {"-c", line + " 2> /dev/full"}, folder.path());
  EXPECT_EQ(result.exit_code, 0) << result.out;
  EXPECT_THAT(result.out, HasSubstr("\nstep 2/2 "));
  EXPECT_EQ(metrics("unheard").back()["step"], 2);
  const ProcessResult wrong =
      run_process("/bin/sh", {"-c", test::octet_program() + " train --unknown 2> /dev/full"});
  EXPECT_EQ(wrong.exit_code, 2);
}

TEST_F(RunMessages, TheThreadsAreShownWithTheirReason) {
  EXPECT_THAT(run(arguments("a", {{"dry_run", "true"}})).out, HasSubstr("cpu: 1 thread (num_threads), "));
  EXPECT_THAT(run_with("OMP_NUM_THREADS=3", arguments("a", {{"dry_run", "true"}, {"num_threads", "0"}})).out,
              HasSubstr("cpu: 3 threads (OMP_NUM_THREADS), "));
}

TEST_F(RunMessages, PlainLinesHaveTotalEpochAndTimeLeft) {
  const ProcessResult result = run(arguments("lines", {{"logging_steps", "4"}}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              ContainsRegex("\nstep 4/8 \\| epoch 0\\.[0-9]+ \\| loss: [^\n]* \\| ETA [0-9.]+ (ms|s)\n"));
  EXPECT_THAT(result.out, ContainsRegex("\nstep 8/8 [^\n]* \\| eval: [0-9.]+\n"))
      << "no time is left after the last step";
}

TEST_F(RunMessages, ARateForRandomWeightsOnPretrainedOnesIsWarnedOf) {
  const std::string model = model_folder();
  const auto warning = [&](const Flags& changes) {
    Flags flags = {{"model_name_or_path", model}, {"dry_run", "true"}};
    flags.insert(changes.begin(), changes.end());
    const ProcessResult result = run(arguments("rate", flags));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.err;
  };
  EXPECT_THAT(warning({{"learning_rate", "6e-4"}}),
              AllOf(HasSubstr("warning: learning_rate 0.0006 is high for the pretrained weights of model"),
                    HasSubstr("without the key it is 1e-05")));
  EXPECT_THAT(warning({{"learning_rate", "2e-5"}}), Not(HasSubstr("pretrained")));
  EXPECT_THAT(warning({}), Not(HasSubstr("pretrained")));
  EXPECT_THAT(warning({{"learning_rate", "6e-4"}, {"finetuning_type", "lora"}}),
              Not(HasSubstr("pretrained")));
  EXPECT_THAT(warning({{"learning_rate", "1e-2"}, {"finetuning_type", "lora"}}),
              HasSubstr("LoRA usually takes 1e-4 to 1e-3"));
  EXPECT_THAT(run(arguments("rate", {{"learning_rate", "6e-4"}, {"dry_run", "true"}})).err,
              Not(HasSubstr("pretrained")))
      << "random weights";
}

TEST_F(RunMessages, AWarmUpLongerThanTheRunIsWarnedOf) {
  EXPECT_THAT(
      run(arguments("long", {{"warmup_steps", "2000"}, {"max_steps", "1760"}, {"dry_run", "true"}})).err,
      HasSubstr("warning: the warm-up takes 2000 steps and the run has 1760: the whole run is warm-up"));
}

TEST_F(RunMessages, AResumeWithAnotherLengthSaysWhatHappensToTheSchedule) {
  ASSERT_EQ(run(arguments("run")).exit_code, 0);
  const ProcessResult done = run({"train", "--resume", "runs/run"});
  EXPECT_EQ(done.exit_code, 0) << done.err;
  EXPECT_THAT(done.out, HasSubstr("step 8 of 8 is done: nothing is left to train; a larger max_steps"));
  const ProcessResult longer = run({"train", "--resume", "runs/run", "--max_steps", "16"});
  ASSERT_EQ(longer.exit_code, 0) << longer.err;
  EXPECT_THAT(
      longer.out,
      HasSubstr(
          "changed schedule: cosine over 8 steps -> cosine over 16 steps; the learning rate was 6.00e-05 in "
          "the last step and is "));
  EXPECT_THAT(
      longer.err,
      ContainsRegex("warning: the learning rate rises from 6.00e-05 to [0-9.e-]+, because the schedule "
                    "now ends at step 16 instead of 8"));
  // A change of the rate itself, by a fifth.
  ASSERT_EQ(run(arguments("higher", {{"save_steps", "4"}, {"lr_scheduler_type", "constant"}})).exit_code, 0);
  const ProcessResult higher = run({"train", "--resume", "runs/higher/checkpoints_fp8/step_4", "--run_name",
                                    "risen", "--learning_rate", "7.2e-4"});
  EXPECT_THAT(higher.err,
              HasSubstr("warning: the learning rate rises from 6.00e-04 to 7.20e-04; to continue"));
  // The same length: nothing to say.
  ASSERT_EQ(run(arguments("same", {{"save_steps", "4"}})).exit_code, 0);
  const ProcessResult same =
      run({"train", "--resume", "runs/same/checkpoints_fp8/step_4", "--run_name", "fork"});
  ASSERT_EQ(same.exit_code, 0) << same.err;
  EXPECT_THAT(same.out + same.err, Not(HasSubstr("schedule")));
}

TEST_F(RunMessages, AStoppedRunLogsItsLastStepAndSaysHowToContinue) {
  const pid_t child = start_process(
      test::octet_program(), arguments("stopped", {{"max_steps", "1000000"}, {"logging_steps", "1000000"}}),
      folder.path());
  for (int i = 0; i < 1200 && !fs::exists(folder.path() + "/runs/stopped/metrics.jsonl"); ++i) usleep(20'000);
  usleep(300'000);
  kill(child, SIGTERM);
  EXPECT_EQ(wait_for_process(child), 75);
  const std::string out = read_text(folder.path() + "/out.txt");
  const auto lines = metrics("stopped");
  ASSERT_FALSE(lines.empty()) << out;
  const std::string step = std::to_string(lines.back()["step"].get<int64_t>());
  EXPECT_THAT(out, HasSubstr("step " + step + "/1000000 | "));
  EXPECT_THAT(out, ContainsRegex("steps +" + step + " of 1000000 \\(stopped on request\\)"));
  EXPECT_THAT(out, HasSubstr(test::octet_program() + " train --resume runs/stopped"));
  std::smatch same;
  EXPECT_FALSE(std::regex_search(out, same, std::regex("([0-9.]+) -> \\1(\\s|$)"))) << same.str();
  // What it says works.
  const ProcessResult again = run({"train", "--resume", "runs/stopped", "--max_steps", "1"});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(run({"plot", "runs/stopped"}).out, HasSubstr("stopped"));
}

TEST_F(RunMessages, AfterTheDemoSomethingQuickAndDifferentIsSuggested) {
  const auto next = [&](const char* precision) {
    const ProcessResult result = run({"train", "--max_steps", "2", "--device", "cpu", "--mixed_precision",
                                      precision, "--progress", "plain", "--run_name", precision});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out.substr(std::min(result.out.find("what to try next"), result.out.size()));
  };
  EXPECT_THAT(
      next("fp8"),
      ContainsRegex("train --mixed_precision bf16 --max_steps 100 +train the demo in BF16 \\(about "));
  EXPECT_THAT(next("bf16"), AllOf(HasSubstr("train --mixed_precision fp8 --max_steps 100"),
                                  HasSubstr("--model_preset llama-tiny --dataset my.txt --max_seq_length 128 --max_steps 100")));
}

// As root every folder can be written, so this one is a file.
TEST_F(RunMessages, TheKeyOfAFolderThatCannotBeWrittenIsNamed) {
  const ProcessResult result = run(arguments("x", {{"output_dir", "text.txt"}}));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("error: output_dir/run_name is text.txt/x, which cannot be written: "));
}

}  // namespace
}  // namespace octet::test
