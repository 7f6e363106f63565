// What faults leave of a run: flipped bits, kills, full disks, numbers that are not finite.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/exit_codes.h"
#include "support/fault_env.h"
#include "report/metrics.h"
#include "resume_support.h"
#include "train/trainer.h"

namespace octet::test {
namespace {

using testing::HasSubstr;

// FAULTS 6 and 7: latest passes over what is broken, a path that was asked for does not.
TEST_F(Resume, ABrokenCheckpointIsPassedOverOrNamed) {
  ASSERT_EQ(train(config("run", {})), kExitDone);
  const std::string broken = checkpoint("run", 12, true);
  std::string bytes = read_text(broken + "/optimizer.safetensors");
  bytes[bytes.size() / 2] ^= 4;
  std::ofstream(broken + "/optimizer.safetensors", std::ios::binary) << bytes;
  try {
    train(config("fork", {{"resume", broken}}));
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("optimizer.safetensors"));
  }
  Stderr log;
  ASSERT_EQ(train(config("run", {{"resume", "latest"}})), kExitDone);
  EXPECT_THAT(log.text(), HasSubstr("step_12"));
  open_checkpoint(posix_env(), broken);  // written again, and whole
}

// FAULTS 1, 2 and 4 on a whole run: the process dies at an I/O call of a save behind the training, unsynced data is
// lost with it, and the same command goes on to the same end.
TEST_F(Resume, AKillAtAnyCallOfASaveEndsInTheSameState) {
  const Settings changes = {{"save_steps", "2"}, {"max_steps", "6"}, {"save_total_limit", "2"}};
  fs::create_directories(folder.path() + "/runs");
  int64_t calls = 0;
  {
    FaultEnv env(folder.path() + "/runs");
    ASSERT_EQ(train(config("whole", changes), env), kExitDone);
    calls = env.calls();
  }
  ASSERT_GT(calls, 60);
  Settings again = changes;
  again.push_back({"resume", "latest"});
  int killed = 0;
  for (int64_t call = 3; call <= calls; call += 29) {
    const std::string name = fmt::format("killed_{}", call);
    FaultEnv env(folder.path() + "/runs");
    env.arm(call, call % 2 == 0 ? IoFault::Kill : IoFault::KillInside);
    Stderr log;
    try {
      train(config(name, changes), env);
    } catch (const SimulatedKill&) {
      ++killed;
    }
    log.text();
    env.disarm();
    env.lose_power(Unsynced::Random, Unsynced::Random, static_cast<uint64_t>(call));
    ASSERT_EQ(train(config(name, again), env), kExitDone) << "killed at call " << call;
    expect_equal_states(checkpoint("whole", 6, true), checkpoint(name, 6, true));
  }
  EXPECT_GT(killed, 4);
}

// Names of files and folders that a killed process has left.
std::vector<std::string> leftovers(const std::string& run) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(run)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(".") || name.find(".tmp-") != std::string::npos) names.push_back(name);
  }
  return names;
}

// FAULTS 1 and 8 at the end of a run: the last save is whole, and nothing is left to do but to clean up.
TEST_F(Resume, AKillAfterTheLastSaveLeavesNothingBehind) {
  const Settings changes = {{"save_steps", "2"}, {"max_steps", "6"}, {"save_total_limit", "2"}};
  fs::create_directories(folder.path() + "/runs");
  int64_t calls = 0;
  {
    FaultEnv env(folder.path() + "/runs");
    ASSERT_EQ(train(config("whole", changes), env), kExitDone);
    calls = env.calls();
  }
  Settings again = changes;
  again.push_back({"resume", "latest"});
  int left = 0;
  for (int64_t call = calls - 12; call < calls; ++call) {  // the last one closes the lock, and cannot throw
    const std::string name = fmt::format("killed_{}", call), run = folder.path() + "/runs/" + name;
    FaultEnv env(folder.path() + "/runs");
    env.arm(call, IoFault::Kill);
    Stderr log;
    EXPECT_THROW(train(config(name, changes), env), SimulatedKill) << call;
    log.text();
    env.disarm();
    const auto latest = CheckpointStore(env, run + "/checkpoints_fp8").open_latest();
    left += latest && latest->step == 6 && !leftovers(run).empty();
    EXPECT_EQ(train(config(name, again), env), kExitDone) << call;
    EXPECT_THAT(leftovers(run), testing::IsEmpty()) << call;
  }
  EXPECT_GT(left, 0) << "no kill came after the last checkpoint was there";
}

// What is left of files that are replaced at the start of a process. Files of others stay.
TEST_F(Resume, LeftoversInTheRunsFolderAreRemoved) {
  ASSERT_EQ(train(config("run", {})), kExitDone);
  const std::string run = folder.path() + "/runs/run";
  for (const char* name :
       {"/config.yaml.tmp-123", "/metrics.jsonl.tmp-7", "/crashes.tmp-8", "/wandb.json.tmp-9",
        "/events.out.tfevents.1.host.2.3.tmp-4", "/.octet-can-write-99"})
    std::ofstream(run + name) << "x";
  for (const char* name : {"/notes.tmp-a1", "/notes.tmp-1", "/notes.tmp-", "/123"})
    std::ofstream(run + name) << "mine";
  fs::create_directories(checkpoint("run", 99, true) + "/../.tmp-step_99-4321");
  Stderr log;
  ASSERT_EQ(train(config("run", {{"resume", "latest"}})), kExitDone);
  EXPECT_THAT(log.text(),
              HasSubstr("config.yaml.tmp-123] is left over from an interrupted process and is removed"));
  EXPECT_THAT(leftovers(run), testing::UnorderedElementsAre("notes.tmp-a1", "notes.tmp-1", "notes.tmp-"));
  EXPECT_TRUE(fs::exists(run + "/123"));
}

// FAULTS 5: the disk is full for a while. Training goes on, the checkpoint from before stays whole.
TEST_F(Resume, AFullDiskIsSaidAndSurvived) {
  fs::create_directories(folder.path() + "/runs");
  FaultEnv env(folder.path() + "/runs");
  const Settings changes = {{"save_steps", "3"}, {"save_async", "false"}, {"progress", "plain"}};
  // The first save passes; from the second on, every call that needs space fails.
  ASSERT_EQ(train(config("probe", {{"save_steps", "0"}, {"max_steps", "3"}, {"save_async", "false"}}), env),
            kExitDone);
  const int64_t one_save = env.calls();
  env.arm(one_save + 8, IoFault::Enospc, true);
  Stderr log;
  testing::internal::CaptureStdout();
  EXPECT_EQ(train(config("full", changes), env), kExitSaveFailed);
  const std::string said = log.text(), printed = testing::internal::GetCapturedStdout();
  EXPECT_THAT(said, HasSubstr("No space left on device"));
  EXPECT_THAT(said, HasSubstr("the checkpoint of step 6 was not saved (1 in a row"));
  EXPECT_THAT(said, HasSubstr("3 checkpoints in a row could not be saved"));
  EXPECT_THAT(printed, testing::ContainsRegex("last checkpoint +step 3, "));
  EXPECT_THAT(printed, testing::ContainsRegex("continue with .* train --resume .*/full"));
  EXPECT_EQ(read_metrics(folder.path() + "/runs/full/metrics.jsonl").back().step, 12) << "training went on";
  env.disarm();
  const auto latest = CheckpointStore(env, folder.path() + "/runs/full/checkpoints_fp8").open_latest();
  ASSERT_TRUE(latest);
  EXPECT_EQ(latest->step, 3);
}

// The same when only the last save fails: the run must not end as if all were well.
TEST_F(Resume, ALastSaveThatFailsIsTriedAgainAndThenSaid) {
  fs::create_directories(folder.path() + "/runs");
  const Settings changes = {{"save_steps", "0"}, {"max_steps", "3"}, {"save_async", "false"}};
  FaultEnv env(folder.path() + "/runs");
  ASSERT_EQ(train(config("probe", changes), env), kExitDone);
  const int64_t calls = env.calls();
  // One failure, at a write of the weights: the second attempt passes.
  env.arm(calls / 2, IoFault::Enospc);
  Stderr once;
  EXPECT_EQ(train(config("once", changes), env), kExitDone);
  EXPECT_THAT(once.text(), HasSubstr("trying once more"));
  ASSERT_TRUE(env.struck());
  env.disarm();
  EXPECT_EQ(CheckpointStore(env, folder.path() + "/runs/once/checkpoints_fp8").open_latest()->step, 3);

  env.arm(calls / 2, IoFault::Enospc, true);
  Stderr always;
  EXPECT_EQ(train(config("always", changes), env), kExitSaveFailed);
  EXPECT_THAT(always.text(), HasSubstr("the state of step 3 could not be saved"));
}

// FAULTS 17: weights whose products overflow give no finite gradient; the run ends with its own code and its advice.
TEST_F(Resume, ThreeStepsWithoutAFiniteGradientEndTheRun) {
  const auto device = make_cpu_device(1);
  const std::string path = model_folder();
  Transformer model(read_hf_config(path), {.rows = 1, .length = 8, .training = false},
                    {.precision = Precision::Fp32}, *device);
  model.allocate();
  model.parameters().initialise(*device, 3);
  Parameter& gain = model.parameters()["final_norm.gain"];
  ParameterSet::set_weight(*device, gain, std::vector<float>(64, 3e38f));
  fs::create_directories(folder.path() + "/huge");
  fs::copy(path + "/config.json", folder.path() + "/huge/config.json");
  WritableFile file = posix_env().create(folder.path() + "/huge/model.safetensors");
  save_hf_weights(file, *device, model.parameters(), SafeDType::F32);
  Stderr log;
  EXPECT_EQ(train(config("huge", {{"model_name_or_path", (folder.path() + "/huge")}})), kExitNotFinite);
  const std::string said = log.text();
  EXPECT_THAT(said, HasSubstr("step 1: the gradient is not finite"));
  EXPECT_THAT(
      said,
      HasSubstr(
          "3 steps in a row up to step 3 had no finite gradient; no parameter has a finite "
          "gradient, so the loss itself or the output of the head is not finite. No step has "
          "changed the weights yet, so learning_rate is not the cause. Raise fp8_margin (now 0), try "
          "fp8_recipe current, add layers to fp8_skip_layers, train in BF16 with mixed_precision bf16, or look at the weights that"));
  EXPECT_FALSE(fs::exists(checkpoint("huge", 3, true))) << "a state without hope is not saved";
  const auto records = read_metrics(folder.path() + "/runs/huge/metrics.jsonl");
  EXPECT_EQ(records.size(), 3u);
}

}  // namespace
}  // namespace octet::test
