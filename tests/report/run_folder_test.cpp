#include "report/run_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/names.h"
#include "config/config.h"
#include "report/metrics.h"
#include "report/run_parent.h"
#include "report_test_support.h"

namespace octet {
namespace {

using testing::HasSubstr;

std::string error_of(const std::string& path) {
  try {
    read_run_folder(path);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(RunFolder, HasNameRecordsAndSettings) {
  TemporaryFolder folder;
  const auto run = folder.path() / "first";
  std::filesystem::create_directory(run);
  write_contents(run / "metrics.jsonl",
                 "{\"step\": 1, \"loss\": 4}\n{\"step\": 2, \"loss\": 3}\n{\"step\": 2, \"loss\": 2}\n");
  write_contents(run / "config.yaml", "learning_rate: 3e-4\ndataset: [a.txt, b.txt]\n");
  const RunFolder read = read_run_folder(run.string());
  EXPECT_EQ(read.name, "first");
  EXPECT_EQ(read.folder, run.string());
  ASSERT_EQ(read.records.size(), 2u) << "the second record of step 2 replaces the first";
  EXPECT_EQ(read.records[1].loss, 2);
  EXPECT_EQ(read.setting("learning_rate"), "3e-4") << "as it is written";
  EXPECT_EQ(read.setting("dataset"), "[a.txt, b.txt]");
  EXPECT_EQ(read.setting("no_such_key"), "");
  EXPECT_EQ(read_run_folder((run / "metrics.jsonl").string()).name, "first");
}

// to_yaml writes such a key as a comment.
TEST(RunFolder, AKeyThatFollowsFromAnotherHasAValue) {
  TemporaryFolder folder;
  write_contents(folder.path() / "metrics.jsonl", "");
  write_contents(folder.path() / "given.yaml",
                 "per_device_train_batch_size: 2\ntarget_effective_batch_size: 8\nwarmup_steps: 5\n");
  const TrainConfig config = load_train_config((folder.path() / "given.yaml").string(), {});
  write_contents(folder.path() / "config.yaml", "# note: [1  (from me)\n" + to_yaml(config));
  const RunFolder read = read_run_folder(folder.path().string());
  EXPECT_EQ(read.setting("gradient_accumulation_steps"), "");
  EXPECT_EQ(read.value("gradient_accumulation_steps"), "4");
  EXPECT_EQ(read.value("max_batch_size"), config_text(config, "max_batch_size"));
  EXPECT_EQ(read.value("warmup_ratio"), "0");
  EXPECT_EQ(read.setting("warmup_steps"), "5");
  EXPECT_EQ(read.value("warmup_steps"), "5");
  EXPECT_EQ(read.value("note"), "") << "a comment of somebody else";
}

TEST(RunFolder, SaysWhatIsMissing) {
  TemporaryFolder folder;
  EXPECT_THAT(error_of((folder.path() / "none").string()), HasSubstr("is not there"));
  EXPECT_THAT(error_of(folder.path().string()), HasSubstr("has no metrics.jsonl"));
  write_contents(folder.path() / "metrics.jsonl", "");
  EXPECT_TRUE(read_run_folder(folder.path().string()).records.empty());
  write_contents(folder.path() / "config.yaml", "a: [1\nb: 2\n");
  EXPECT_THAT(error_of(folder.path().string()), HasSubstr("config.yaml:"));
}

// c continues b after step 3, which continues a after step 2. All may be moved together.
TEST(RunParent, ACurveBeginsWithThoseOfTheRunsThatItContinues) {
  namespace fs = std::filesystem;
  TemporaryFolder folder;
  const auto make = [&](const char* name, int64_t first, int64_t last, double loss, const RunParent* parent) {
    const fs::path run = folder.path() / "runs" / name;
    fs::create_directories(run);
    std::string lines;
    for (int64_t step = first; step <= last; ++step) {
      lines += fmt::format("{{\"step\": {}, \"loss\": {}, \"device_seconds\": {}}}\n", step, loss,
                           step - first + 1);
    }
    write_contents(run / "metrics.jsonl", lines);
    if (parent) write_contents(run / kRunParent, run_parent_json(run.string(), *parent));
    return run.string();
  };
  const RunParent a{.folder = make("a", 1, 5, 1, nullptr), .step = 2};
  const RunParent b{.folder = make("b", 3, 6, 2, &a), .step = 3};
  make("c", 4, 5, 3, &b);
  fs::rename(folder.path() / "runs", folder.path() / "moved");
  RunFolder run = read_run_folder((folder.path() / "moved" / "c").string());
  const RunLineage lineage = add_parents(run);
  EXPECT_EQ(lineage.fork, 3);
  EXPECT_EQ(lineage.parents.size(), 2u);
  EXPECT_EQ(lineage.missing, "");
  std::vector<double> losses, seconds;
  for (const StepRecord& record : run.records) {
    EXPECT_EQ(record.step, std::ssize(losses) + 1);
    losses.push_back(record.loss);
    seconds.push_back(*record.device_seconds);
  }
  EXPECT_EQ(losses, (std::vector<double>{1, 1, 2, 3, 3}));
  EXPECT_EQ(seconds, (std::vector<double>{1, 2, 3, 4, 5}));

  fs::remove_all(folder.path() / "moved" / "a");
  run = read_run_folder((folder.path() / "moved" / "c").string());
  EXPECT_THAT(add_parents(run).missing, HasSubstr("continues after step 2"));
  EXPECT_EQ(run.records.front().step, 3);
}

TEST(RunFolder, RunsOfOneNameGetThePathThatWasGiven) {
  std::vector<RunFolder> runs(3);
  runs[0].name = runs[2].name = "run";
  runs[1].name = "other";
  tell_apart(runs, {"a/run", "other", "b/run"});
  EXPECT_EQ(runs[0].name, "a/run");
  EXPECT_EQ(runs[1].name, "other");
  EXPECT_EQ(runs[2].name, "b/run");
}

TEST(RunFolder, EveryFieldOfARecordIsReadBack) {
  TemporaryFolder folder;
  StepRecord record = example_record();
  record.eval_losses = {{"code", 2.5}, {"text", 3.5}};
  record.task_scores = {{"hellaswag/acc", 0.25}, {"hellaswag/acc_norm", 0.3}};
  record.time = 1.7e9;
  record.data_wait_ms = 0.5;
  record.memory_bytes = int64_t{1} << 35;
  record.loss_spike = 7;
  record.grad_norm_spike = 12;
  record.fp8_fwd_scale = 64;
  record.fp8_bwd_scale = 4096;
  record.skipped_steps = 2;
  record.gpu = GpuFigures{.power_watts = 500,
                          .energy_joules = 12345,
                          .utilization = 0.5,
                          .sm_clock_mhz = 1700,
                          .temperature_c = 60,
                          .throttled = "power cap"};
  record.red_flags = {{"saturation", "x"}, {"low_utilization", "y"}};
  write_contents(folder.path() / "metrics.jsonl", metrics_line(record) + "\n");
  const StepRecord read = read_run_folder(folder.path().string()).records.at(0);
  EXPECT_EQ(read.eval_losses, record.eval_losses);
  EXPECT_EQ(read.task_scores, record.task_scores);
  EXPECT_EQ(read.time, record.time);
  EXPECT_EQ(read.data_wait_ms, record.data_wait_ms);
  EXPECT_EQ(read.memory_bytes, record.memory_bytes);
  EXPECT_EQ(read.loss_spike, record.loss_spike);
  EXPECT_EQ(read.grad_norm_spike, record.grad_norm_spike);
  EXPECT_EQ(read.fp8_fwd_scale, record.fp8_fwd_scale);
  EXPECT_EQ(read.fp8_bwd_scale, record.fp8_bwd_scale);
  EXPECT_EQ(read.skipped_steps, record.skipped_steps);
  ASSERT_TRUE(read.gpu);
  EXPECT_EQ(read.gpu->energy_joules, 12345);
  EXPECT_EQ(read.gpu->throttled, "power cap");
  ASSERT_EQ(read.red_flags.size(), 2u);
  EXPECT_EQ(read.red_flags[1].kind, "low_utilization");
  EXPECT_EQ(metrics_line(read), metrics_line(record));
}

}  // namespace
}  // namespace octet
