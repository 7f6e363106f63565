// What a run checks before it writes.

#include "train/run_files.h"

#include <gmock/gmock.h>

#include <functional>
#include <limits>
#include <utility>

#include "base/exit_codes.h"
#include "plan/resolve.h"
#include "report/metrics.h"
#include "resume_support.h"
#include "support/captured_log.h"
#include "support/error_of.h"
#include "train/trainer.h"

namespace octet::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

struct RunFilesSpace : Resume {
  void check(int64_t bytes, int64_t kept, const Settings& changes = {}) {
    const std::optional<Checkpoint> none;
    RunFiles(posix_env(), files_spec(config("run", changes), true), std::nullopt, none).check_space(bytes, kept);
  }
  CapturedLog log;
};

TEST_F(RunFilesSpace, ACheckpointThatDoesNotFitIsRefused) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max() / 4;
  check(1, 1);
  EXPECT_THAT(log.messages, IsEmpty());
  EXPECT_THAT(error_of([&] { check(kHuge, 1); }),
              AllOf(HasSubstr("a checkpoint takes "), HasSubstr("are free where output_dir is (")));
  EXPECT_THAT(error_of([&] {
                check(kHuge, 1, {{"checkpoint_dir", folder.path() + "/here"}});
              }),
              HasSubstr("are free where checkpoint_dir is (" + folder.path() + "/here)"));
  check(kHuge, 1, {{"save_strategy", "no"}});
}

TEST_F(RunFilesSpace, CheckpointsThatDoNotAllFitAreWarnedOf) {
  check(1 << 20, int64_t{1} << 40);
  ASSERT_EQ(log.messages.size(), 1u);
  EXPECT_THAT(
      log.messages.front(),
      testing::ContainsRegex("set save_total_limit to [1-9][0-9]*, free .* or choose another folder$"));
}

// Otherwise every resume on a disk of the right size would warn.
TEST_F(RunFilesSpace, CheckpointsThatAreThereNeedNoMoreRoom) {
  const auto free = static_cast<int64_t>(fs::space(folder.path()).available);
  const int64_t one = free / 10 * 6;  // two do not fit
  check(one, 2);
  ASSERT_EQ(log.messages.size(), 1u);
  EXPECT_THAT(log.messages.front(), Not(HasSubstr("save_total_limit"))) << "no limit helps";
  log.messages.clear();
  CheckpointStore store(posix_env(), folder.path() + "/runs/run/checkpoints_fp8");
  store.save(3,
             [&](CheckpointWriter& writer) {  // a file with a hole, which takes no room
               std::ofstream(writer.directory() + "/weights") << "x";
               fs::resize_file(writer.directory() + "/weights", static_cast<uintmax_t>(one));
               writer.add({.name = "weights", .size = one});
             },
             {});
  check(one, 2);
  EXPECT_THAT(log.messages, IsEmpty());
  check(one, 4);
  EXPECT_EQ(log.messages.size(), 1u);
}

TEST_F(RunFilesSpace, ThePlanKnowsTheSizeOfACheckpoint) {
  for (const Settings& changes :
       {Settings{}, Settings{{"optimizer_state", "bf16"}}, Settings{{"mixed_precision", "fp32"}},
        Settings{{"finetuning_type", "lora"}}}) {
    const TrainConfig keys = config("run", changes);
    ASSERT_EQ(train(keys), kExitDone);
    double written = 0;
    const bool fp8 = keys.mixed_precision == Precision::Fp8;
    for (const char* name : {"model.safetensors", "adapter_model.safetensors", "optimizer.safetensors"}) {
      const std::string file = checkpoint("run", 12, fp8) + "/" + name;
      if (fs::exists(file)) written += static_cast<double>(fs::file_size(file));
    }
    fs::remove_all(folder.path() + "/runs");
    const ResolvedRun stages = resolve(keys, Wanted::by_train());
    EXPECT_NEAR(static_cast<double>(stages.plan.checkpoint_bytes) / written, 1, 0.1) << changes.size();
  }
}

struct RunFilesFolder : Resume {
  RunFiles files(const Settings& changes = {}) {
    return {posix_env(), files_spec(config("run", changes), true), std::nullopt, none};
  }
  static StepRecord record(int64_t step) {
    StepRecord record;
    record.step = step;
    return record;
  }
  std::vector<int64_t> steps_of(const std::string& path) {
    std::vector<int64_t> steps;
    for (const StepRecord& one : read_metrics(path)) steps.push_back(one.step);
    return steps;
  }
  const RunFiles::About about{.model = "llama", .plan_json = "{}", .tokenizer = "bytes"};
  const std::optional<Checkpoint> none;
  const std::string run = folder.path() + "/runs/run", metrics = run + "/metrics.jsonl";
  CapturedLog log;
};

TEST_F(RunFilesFolder, WhatIsTakenAwayDuringTheRunIsWrittenAnew) {
  RunFiles open_files = files();
  open_files.open(about);
  open_files.metrics()->write(record(1));
  open_files.restore_if_gone();
  EXPECT_THAT(log.messages, IsEmpty());
  fs::remove(metrics);
  open_files.restore_if_gone();
  EXPECT_EQ(steps_of(metrics), std::vector<int64_t>{1});
  ASSERT_EQ(log.messages.size(), 1u);
  EXPECT_THAT(log.messages.front(), HasSubstr("metrics.jsonl was removed"));

  fs::rename(run, run + "-renamed");
  open_files.metrics()->write(record(2));
  open_files.restore_if_gone();
  open_files.metrics()->write(record(3));
  EXPECT_EQ(steps_of(metrics), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_TRUE(fs::exists(run + "/config.yaml"));
  EXPECT_THROW(RunLock(posix_env(), run), Error) << "it is locked again";

  // Another run has begun there meanwhile: it is left alone.
  fs::remove_all(run);
  const RunLock other(posix_env(), run);
  log.messages.clear();
  EXPECT_TRUE(open_files.restore_if_gone());
  EXPECT_TRUE(open_files.is_displaced());
  EXPECT_FALSE(fs::exists(metrics));
  ASSERT_EQ(log.messages.size(), 1u);
  EXPECT_THAT(log.messages.front(), AllOf(HasSubstr("is in use by"), HasSubstr("as the run run-2 and ends")));
  EXPECT_FALSE(open_files.restore_if_gone()) << "the metrics of the other run stay as they are";
  EXPECT_FALSE(fs::exists(metrics));
}

// Does something to the folder of a run, once, when its first checkpoint is there.
struct AfterTheFirstSave : Env {
  AfterTheFirstSave(std::string last_checkpoint, std::function<void()> work)
      : name(std::move(last_checkpoint)), act(std::move(work)) {}
  int sys_rename(const std::string& from, const std::string& to) override {
    const int result = Env::sys_rename(from, to);
    if (to == name && act) std::exchange(act, nullptr)();
    return result;
  }
  std::string name;
  std::function<void()> act;
};

TEST_F(RunFilesFolder, TheStateIsSavedThoughAnotherRunHasTakenTheFolder) {
  std::optional<RunLock> other;
  AfterTheFirstSave env(run + "/last_checkpoint", [&] {
    fs::rename(run, run + "-moved");
    other.emplace(posix_env(), run);
  });
  EXPECT_EQ(train(config("run", {{"save_async", "false"}}), env), kExitFailure);
  EXPECT_EQ(posix_env().list(run), std::vector<std::string>{"run.lock"}) << "nothing of ours";
  EXPECT_TRUE(fs::exists(checkpoint("run-moved", 6, true)));
  EXPECT_EQ(train(config("run-2", {{"resume", "latest"}, {"max_steps", "13"}})), kExitDone);
  EXPECT_EQ(steps_of(run + "-2/metrics.jsonl"), std::vector<int64_t>{13}) << "it goes on after step 12";
}

// The loss does not change, so only a checkpoint without others before it is the best.
TEST_F(RunFilesFolder, ACheckpointThatIsGoneIsNotTheBest) {
  AfterTheFirstSave env(run + "/last_checkpoint", [&] { fs::remove_all(run); });
  const Settings changes = {{"save_async", "false"}, {"mixed_precision", "fp32"}, {"learning_rate", "1e-15"}};
  ASSERT_EQ(train(config("run", changes), env), kExitDone);
  const auto best = CheckpointStore(posix_env(), run + "/checkpoints").open_best();
  ASSERT_TRUE(best);
  EXPECT_EQ(best->step, 12);
}

TEST_F(RunFilesFolder, AStartThatFailsLeavesNothing) {
  const std::string shared = folder.path() + "/shared";
  {
    const RunLock other(posix_env(), shared);
    EXPECT_THAT(error_of([&] {
                  files({{"checkpoint_dir", shared}}).open(about);
                }),
                HasSubstr("is in use by"));
    EXPECT_FALSE(fs::exists(run));
    EXPECT_TRUE(fs::exists(shared + "/run.lock")) << "of the other process";
  }
  // A file of the user's stays.
  fs::create_directories(run + "/plan.json");  // so that it cannot be written
  folder.write("runs/run/notes.txt", "mine");
  EXPECT_THROW(files().open(about), Error);
  EXPECT_FALSE(fs::exists(run + "/run.lock"));
  EXPECT_FALSE(fs::exists(run + "/config.yaml"));
  EXPECT_TRUE(fs::exists(run + "/notes.txt"));
}

TEST_F(RunFilesFolder, MetricsWithoutARecordAreNoRun) {
  fs::create_directories(run);
  folder.write("runs/run/metrics.jsonl", "");
  files().check();
  folder.write("runs/run/metrics.jsonl", "{\"step\": 1}\n");
  EXPECT_THAT(error_of([&] { files().check(); }), HasSubstr("already holds a run"));
}

TEST_F(RunFilesFolder, CheckpointsHaveAFolderOfTheirOwn) {
  EXPECT_THAT(error_of([&] {
                files({{"checkpoint_dir", run + "/"}}).check();
              }),
              HasSubstr("the folder of the run itself"));
  EXPECT_FALSE(fs::exists(run));
}

}  // namespace
}  // namespace octet::test
