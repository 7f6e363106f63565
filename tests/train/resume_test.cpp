// Runs that are resumed: to the bit, in another precision, and from which of their checkpoints.

#include "checkpoint/resume.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <thread>

#include "base/exit_codes.h"
#include "checkpoint/run_history.h"
#include "plan/resume_config.h"
#include "report/metrics.h"
#include "report/run_parent.h"
#include "resume_support.h"
#include "support/captured_log.h"
#include "support/error_of.h"
#include "train/trainer.h"

namespace octet::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

struct ExactCase {
  const char* name;
  bool fp8;
  Settings changes;
};

void PrintTo(const ExactCase& c, std::ostream* out) {
  *out << c.name;
}

struct ExactResume : Resume, testing::WithParamInterface<ExactCase> {};

// FAULTS 11 to 14: 6 + 6 steps are 12 steps, to the bit, and so whichever checkpointing level the second half takes.
TEST_P(ExactResume, TwoHalvesAreTheWhole) {
  const ExactCase& c = GetParam();
  ASSERT_EQ(train(config("whole", c.changes)), kExitDone);
  Settings second = c.changes;
  second.push_back({"resume", checkpoint("whole", 6, c.fp8)});
  ASSERT_EQ(train(config("halves", second)), kExitDone);
  expect_equal_states(checkpoint("whole", 12, c.fp8), checkpoint("halves", 12, c.fp8));

  second.push_back({"gradient_checkpointing", "block"});
  ASSERT_EQ(train(config("recomputed", second)), kExitDone);
  expect_equal_states(checkpoint("whole", 12, c.fp8), checkpoint("recomputed", 12, c.fp8));
}

INSTANTIATE_TEST_SUITE_P(
    , ExactResume,
    testing::Values(
        ExactCase{"fp32", false, {{"mixed_precision", "fp32"}}},
        ExactCase{"bf16", false, {{"mixed_precision", "bf16"}}},
        ExactCase{"bf16_moments", false, {{"mixed_precision", "bf16"}, {"optimizer_state", "bf16"}}},
        ExactCase{
            "fp8_moments_stochastic", true, {{"optimizer_state", "fp8"}, {"master_weights", "stochastic"}}},
        ExactCase{"fp8_moments_compact", true, {{"optimizer_state", "fp8"}, {"master_weights", "compact"}}},
        ExactCase{"delayed", true, {{"fp8_recipe", "delayed"}}},
        ExactCase{"delayed_interval",
                  true,
                  {{"fp8_recipe", "delayed"}, {"fp8_interval", "4"}, {"fp8_head", "true"}}},
        ExactCase{"delayed_accumulation",
                  true,
                  {{"fp8_recipe", "delayed"}, {"gradient_accumulation_steps", "3"}, {"fp8_head", "true"}}},
        ExactCase{"current", true, {{"fp8_recipe", "current"}, {"gradient_checkpointing", "act"}}},
        ExactCase{"block",
                  true,
                  {{"fp8_recipe", "block"}, {"fp8_head", "true"}, {"gradient_checkpointing", "mlp"}}},
        ExactCase{
            "mxfp8_accumulation", true, {{"fp8_recipe", "mxfp8"}, {"gradient_accumulation_steps", "2"}}},
        ExactCase{"sequential_second_epoch",
                  false,
                  {{"mixed_precision", "bf16"},
                   {"data_order", "sequential"},
                   {"per_device_train_batch_size", "60"}}}),
    [](const auto& test) { return std::string(test.param.name); });

TEST_F(Resume, MetricsHoldEveryStepOnce) {
  ASSERT_EQ(train(config("run", {{"mixed_precision", "bf16"}, {"save_steps", "5"}})), kExitDone);
  const auto whole = read_metrics(folder.path() + "/runs/run/metrics.jsonl");
  // The last checkpoint is lost; the run goes on from step 10, and its records of 11 and 12 are written again.
  fs::remove_all(checkpoint("run", 12, false));
  ASSERT_EQ(train(config("run", {{"mixed_precision", "bf16"}, {"save_steps", "5"}, {"resume", "latest"}})),
            kExitDone);
  const auto records = read_metrics(folder.path() + "/runs/run/metrics.jsonl");
  ASSERT_EQ(records.size(), whole.size());
  for (size_t i = 0; i < records.size(); ++i) {
    EXPECT_EQ(records[i].step, static_cast<int64_t>(i + 1));
    EXPECT_EQ(records[i].loss, whole[i].loss);
    EXPECT_EQ(records[i].tokens, whole[i].tokens);
  }
}

TEST_F(Resume, PrecisionMayChangeBothWays) {
  ASSERT_EQ(train(config("bf16", {{"mixed_precision", "bf16"}})), kExitDone);
  const std::string from_bf16 = checkpoint("bf16", 6, false);
  ASSERT_EQ(train(config("to_fp8", {{"mixed_precision", "fp8"}, {"resume", from_bf16}})), kExitDone);
  EXPECT_TRUE(fs::exists(checkpoint("to_fp8", 12, true) + "/fp8_state.bin"));
  const std::string from_fp8 = checkpoint("to_fp8", 12, true);
  ASSERT_EQ(train(config("back", {{"mixed_precision", "bf16"}, {"max_steps", "14"}, {"resume", from_fp8}})),
            kExitDone);
  ASSERT_EQ(train(config("fp32", {{"mixed_precision", "fp32"}, {"resume", from_bf16}})), kExitDone);
  // Another precision computes nearly the same from the same state.
  const auto loss = [&](const std::string& run) {
    return read_metrics(folder.path() + "/runs/" + run + "/metrics.jsonl").back().loss;
  };
  EXPECT_NEAR(loss("to_fp8"), loss("bf16"), 0.02 * loss("bf16"));
  EXPECT_NEAR(loss("fp32"), loss("bf16"), 0.005 * loss("bf16"));
}

TEST_F(Resume, AModelOfAnotherShapeIsRefused) {
  ASSERT_EQ(train(config("run", {{"mixed_precision", "bf16"}})), kExitDone);
  TrainConfig other = config("other", {{"mixed_precision", "bf16"}, {"resume", checkpoint("run", 6, false)}});
  other.model_name_or_path = "";
  other.model_preset = "llama-tiny";
  try {
    train(other);
    FAIL() << "expected an error";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), testing::ContainsRegex(
                                  "model_preset llama-tiny is not the model of .*: [a-z_]+ is [0-9]+ in the "
                                  "preset and [0-9]+ there"));
  }
  EXPECT_FALSE(fs::exists(folder.path() + "/runs/other"));
}

TEST_F(Resume, LatestWithoutACheckpointStartsFromTheBeginning) {
  ASSERT_EQ(train(config("new", {{"resume", "latest"}})), kExitDone);
  EXPECT_EQ(read_metrics(folder.path() + "/runs/new/metrics.jsonl").size(), 12u);
}

TEST_F(Resume, BestIsTheOneWithTheLowestEvaluationLoss) {
  // A learning rate that ruins the model: the first checkpoint stays the best.
  ASSERT_EQ(train(config("run", {{"mixed_precision", "fp32"},
                                 {"learning_rate", "0.5"},
                                 {"save_steps", "3"},
                                 {"save_total_limit", "2"}})),
            kExitDone);
  CheckpointStore store(posix_env(), folder.path() + "/runs/run/checkpoints");
  const auto best = store.open_best();
  ASSERT_TRUE(best);
  double lowest = INFINITY;
  for (const StepRecord& record : read_metrics(folder.path() + "/runs/run/metrics.jsonl")) {
    if (record.eval_loss) lowest = std::min(lowest, *record.eval_loss);
  }
  EXPECT_EQ(best->summary.loss, lowest);
  EXPECT_EQ(store.open_latest()->step, 12);
  EXPECT_EQ(store.list().size(), 2u);
}

TEST_F(Resume, ACheckpointFolderBelongsToOneRun) {
  const Settings shared = {{"checkpoint_dir", folder.path() + "/shared"}, {"max_steps", "2"}};
  ASSERT_EQ(train(config("first", shared)), kExitDone);
  try {
    train(config("second", shared));
    FAIL() << "expected an error";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("already holds checkpoints of another run"));
  }
  // The run itself goes on, found through its configuration.
  ASSERT_EQ(train(config(
                "first",
                {{"checkpoint_dir", folder.path() + "/shared"}, {"max_steps", "4"}, {"resume", "latest"}})),
            kExitDone);
  EXPECT_EQ(CheckpointStore(posix_env(), folder.path() + "/shared").open_latest()->step, 4);
}

TEST_F(Resume, TheNewestStateCountsWhateverItsPrecision) {
  ASSERT_EQ(train(config("run", {{"mixed_precision", "bf16"}, {"max_steps", "4"}})), kExitDone);
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));  // checkpoints tell their age in seconds
  ASSERT_EQ(train(config("run", {{"mixed_precision", "fp8"}, {"max_steps", "8"}, {"resume", "latest"}})),
            kExitDone);
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  ASSERT_EQ(train(config("run", {{"mixed_precision", "bf16"}, {"max_steps", "10"}, {"resume", "latest"}})),
            kExitDone);
  const auto records = read_metrics(folder.path() + "/runs/run/metrics.jsonl");
  ASSERT_EQ(records.size(), 10u);
  EXPECT_EQ(records[7].precision, "FP8 (emulated)");
  EXPECT_EQ(records[9].precision, "BF16");
}

// A run that is resumed does not need what it was started from.
TEST_F(Resume, TheStartModelMayBeGone) {
  ASSERT_EQ(train(config("run", {{"max_steps", "2"}})), kExitDone);
  const std::string path = model_folder();
  fs::rename(path, path + "-elsewhere");
  TrainConfig again = config("run", {{"max_steps", "4"}, {"resume", "latest"}});
  fs::remove_all(path);  // config() has made it anew
  EXPECT_EQ(train(again), kExitDone);
}

// Checkpoints of both precisions from one second, in which times say nothing: the further one counts.
TEST_F(Resume, GoesOnFromTheFurtherOneOfASecond) {
  const auto run = [&](const char* precision, const char* steps) {
    return config(
        "run",
        {{"resume", "latest"}, {"mixed_precision", precision}, {"max_steps", steps}, {"save_steps", steps}});
  };
  int64_t step = 0;
  for (const char* precision : {"bf16", "fp8", "bf16", "fp8"}) {
    step += 2;
    ASSERT_EQ(train(run(precision, std::to_string(step).c_str())), kExitDone);
    const std::optional<Checkpoint> found = find_checkpoint(posix_env(), run(precision, "99"));
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->step, step) << precision;
  }
}

TrainConfig load(const Settings& flags, const std::string& file = "") {
  std::vector<KeySetting> settings;
  for (const auto& [key, value] : flags) settings.push_back({.name = key, .values = {value}});
  FileSettings given{.path = file, .settings = {}, .errors = {}};
  if (!file.empty()) given.settings = read_settings_file(file, given.errors);
  return load_resumable_config(given, settings);
}

// Whatever leads to a checkpoint, and wherever it is: the run goes on with its own data and settings.
TEST_F(Resume, ACheckpointOutsideItsRunHasItsSettings) {
  const std::string outside = folder.path() + "/outside", runs = folder.path() + "/runs";
  const CapturedLog log;
  ASSERT_EQ(train(config("own", {{"checkpoint_dir", outside}, {"mixed_precision", "bf16"}})), kExitDone);
  for (const std::string& path : {outside + "/step_6", outside, outside + "/latest"}) {
    const TrainConfig found = load({{"resume", path}});
    EXPECT_EQ(config_text(found, "dataset"), dataset) << path;
    EXPECT_EQ(found.max_seq_length, 24);
    EXPECT_EQ(run_folder(found), runs + "/own") << "it saves its checkpoints there";
    EXPECT_EQ(found.checkpoint_dir, outside);
  }
  ASSERT_EQ(train(load({{"resume", outside + "/step_12"}, {"max_steps", "13"}})), kExitDone);
  EXPECT_EQ(read_metrics(runs + "/own/metrics.jsonl").size(), 13u);
  const TrainConfig other = load({{"resume", outside}, {"run_name", "other"}});
  EXPECT_EQ(other.checkpoint_dir, "") << "two runs do not share a folder";

  fs::copy(outside + "/step_13", folder.path() + "/copy", fs::copy_options::recursive);
  const TrainConfig copy = load({{"resume", folder.path() + "/copy"}});
  EXPECT_EQ(config_text(copy, "dataset"), dataset);
  EXPECT_EQ(copy.run_name, "") << "a run of its own";
  EXPECT_EQ(copy.checkpoint_dir, "");
}

// Two projects with a run of the same name, below an output_dir as it was typed.
TEST_F(Resume, ACheckpointDoesNotLeadIntoAnUnrelatedRun) {
  struct CurrentFolder {
    ~CurrentFolder() { fs::current_path(before); }
    fs::path before = fs::current_path();
  } const restored;
  const std::string outside = folder.path() + "/outside", one = folder.path() + "/one",
                    two = folder.path() + "/two";
  const CapturedLog log;
  for (const std::string& project : {one, two}) {
    fs::create_directories(project);
    fs::current_path(project);
    Settings changes = {{"output_dir", "runs"}};
    if (project == one) changes.emplace_back("checkpoint_dir", outside);
    ASSERT_EQ(train(config("base", changes)), kExitDone);
  }
  const std::string settings = read_text(two + "/runs/base/config.yaml");
  const TrainConfig found = load({{"resume", outside + "/step_6"}, {"max_steps", "7"}});
  EXPECT_EQ(found.run_name, "") << "a run of its own";
  ASSERT_EQ(train(found), kExitDone);
  EXPECT_EQ(read_metrics(two + "/runs/base/metrics.jsonl").size(), 12u);
  EXPECT_EQ(read_text(two + "/runs/base/config.yaml"), settings);
  fs::current_path(one);
  EXPECT_EQ(load({{"resume", outside + "/step_6"}}).run_name, "base");
}

// Otherwise one run would go on under the name of another, with no word of where it began.
TEST_F(Resume, LatestDoesNotTakeTheCheckpointsOfAnotherRun) {
  const std::string shared = folder.path() + "/shared";
  const CapturedLog log;
  ASSERT_EQ(train(config("base", {{"checkpoint_dir", shared}, {"max_steps", "1"}})), kExitDone);
  const auto go_on = [&](const std::string& name) {
    return train(config(name, {{"checkpoint_dir", shared}, {"max_steps", "2"}, {"resume", "latest"}}));
  };
  EXPECT_THAT(error_of([&] { go_on("new"); }), HasSubstr("pass --resume " + shared));
  EXPECT_FALSE(fs::exists(folder.path() + "/runs/new"));
  EXPECT_EQ(go_on("base"), kExitDone);
}

// Opening one would wait without end.
TEST_F(Resume, AFifoInTheFolderOfARunIsRefused) {
  const std::string run = folder.path() + "/run";
  fs::create_directories(run);
  for (const char* name : {"/resumed_from.json", "/metrics.jsonl"})
    ASSERT_EQ(mkfifo((run + name).c_str(), 0600), 0);
  EXPECT_THAT(error_of([&] { read_run_parent(run); }), HasSubstr("is not a regular file"));
  EXPECT_THAT(error_of([&] { last_checkpoint_of(posix_env(), run); }), HasSubstr("is not a regular file"));
}

TEST_F(Resume, ARunWithoutItsConfigurationHasThatOfItsCheckpoints) {
  const CapturedLog log;
  ASSERT_EQ(train(config("run", {{"mixed_precision", "bf16"}})), kExitDone);
  const std::string runs = folder.path() + "/runs", run = runs + "/run";
  fs::remove(run + "/config.yaml");
  const std::vector<Settings> ways = {{{"resume", run}},
                                      {{"resume", run + "/checkpoints/step_6"}},
                                      {{"resume", "latest"}, {"output_dir", runs}, {"run_name", "run"}},
                                      {{"resume", "latest"}, {"output_dir", runs}}};
  for (const Settings& way : ways) {
    const TrainConfig found = load(way);
    EXPECT_EQ(config_text(found, "dataset"), dataset) << way[0].second;
    EXPECT_EQ(run_folder(found), run);
  }
  // Settings of a file count, but a dataset that nobody names is not replaced by the demo.
  folder.write("run.yaml", "run_name: run\n");
  EXPECT_THAT(error_of([&] {
                load({{"resume", run}}, folder.path() + "/run.yaml");
              }),
              HasSubstr("names no dataset, but the run was trained on " + dataset));
  EXPECT_TRUE(load({{"resume", run}, {"dataset", "demo"}}, folder.path() + "/run.yaml").is_demo());
  for (const char* step : {"6", "12"}) fs::remove(run + "/checkpoints/step_" + step + "/train_config.yaml");
  for (const Settings& way : ways)
    EXPECT_THAT(error_of([&] { load(way); }), HasSubstr("it is not known how it was trained"))
        << way[0].second;
}

// A disk that is not mounted must not cost the history of the run.
TEST_F(Resume, CheckpointsThatAreOutOfSightAreMissed) {
  const std::string disk = folder.path() + "/disk", run = folder.path() + "/runs/run";
  const auto again = [&](const std::string& place) {
    return config("run", {{"resume", "latest"}, {"checkpoint_dir", place}, {"max_steps", "14"}});
  };
  ASSERT_EQ(train(config("run", {{"checkpoint_dir", disk}, {"save_async", "false"}})), kExitDone);
  fs::rename(disk, disk + "-unmounted");
  fs::create_directory(disk);
  const std::string before = read_text(run + "/metrics.jsonl");
  EXPECT_THAT(error_of([&] { train(again(disk)); }),
              AllOf(HasSubstr(run + " has saved checkpoints (the last one is " + disk + "/step_12)"),
                    HasSubstr("--checkpoint_dir")));
  fs::remove(run + "/last_checkpoint");  // as of an older version
  EXPECT_THAT(error_of([&] { train(again(disk)); }), HasSubstr("has saved checkpoints, but"));
  EXPECT_EQ(read_text(run + "/metrics.jsonl"), before);
  ASSERT_EQ(train(again(disk + "-unmounted")), kExitDone);
  EXPECT_EQ(read_metrics(run + "/metrics.jsonl").size(), 14u);
}

TEST_F(Resume, LatestLooksWhereTheRunHasSavedBefore) {
  ASSERT_EQ(train(config("run", {})), kExitDone);
  ASSERT_EQ(
      train(config("run",
                   {{"resume", "latest"}, {"checkpoint_dir", folder.path() + "/more"}, {"max_steps", "14"}})),
      kExitDone);
  EXPECT_EQ(read_metrics(folder.path() + "/runs/run/metrics.jsonl").size(), 14u);
  EXPECT_TRUE(fs::exists(folder.path() + "/more/step_14"));
}

// It was ended before its first save, and its scheduler starts it again.
TEST_F(Resume, ARunThatHasNeverSavedBeginsAgainAndKeepsItsRecords) {
  const CapturedLog log;
  ASSERT_EQ(train(config("run", {{"save_strategy", "no"}, {"max_steps", "5"}})), kExitDone);
  ASSERT_EQ(train(config("run", {{"resume", "latest"}})), kExitDone);
  const std::string run = folder.path() + "/runs/run";
  EXPECT_EQ(read_metrics(run + "/metrics.jsonl").size(), 12u);
  EXPECT_EQ(read_metrics(run + "/metrics.1.jsonl").size(), 5u);
}

TEST_F(Resume, WhatPeopleTypeIsUnderstood) {
  const CapturedLog log;
  const std::string runs = folder.path() + "/runs", run = runs + "/run";
  ASSERT_EQ(train(config("run", {{"mixed_precision", "bf16"}})), kExitDone);
  const std::string checkpoints = run + "/checkpoints";
  const auto best = CheckpointStore(posix_env(), checkpoints).open_best();
  ASSERT_TRUE(best);
  const Settings meanings = {{checkpoints + "/latest", checkpoints},
                             {checkpoints + "/latest.pt", checkpoints},
                             {checkpoints + "/best", best->path},
                             {checkpoints + "/best_model.pt", best->path},
                             {checkpoints + "/step_6.pt", checkpoints + "/step_6"},
                             {"checkpoints/latest.pt", checkpoints},  // of the run
                             {"checkpoints/best_model.pt", best->path},
                             {run + "/latest.pt", run},
                             {"best", best->path},
                             {"latest", "latest"}};
  for (const auto& [typed, meant] : meanings) {
    const TrainConfig found = load({{"resume", typed}, {"output_dir", runs}});
    EXPECT_EQ(found.resume, meant) << typed;
    EXPECT_EQ(run_folder(found), run) << typed;
  }
  EXPECT_THAT(
      log.messages,
      testing::Contains("resume: checkpoints/latest.pt means the latest checkpoint in " + checkpoints));

  folder.write("runs/run/checkpoints/latest.pt", "a pickle");
  EXPECT_THAT(error_of([&] { load({{"resume", checkpoints + "/latest.pt"}}); }), HasSubstr("safetensors"));
  for (const char* wrong : {"checkpoints/nothing.pt", "checkpoints/best_of_all", "elsewhere/latest.pt"})
    EXPECT_THAT(error_of([&] {
                  load({{"resume", wrong}, {"output_dir", runs}});
                }),
                HasSubstr("does not exist"));
}

TEST_F(Resume, TheOtherPrecisionGoesOnFromOldNamesInAnotherFolder) {
  const CapturedLog log;
  const std::string bf16 = folder.path() + "/checkpoints", fp8 = folder.path() + "/checkpoints_fp8";
  ASSERT_EQ(train(config("run", {{"use_fp8", "false"}, {"checkpoint_dir", bf16}})), kExitDone);
  ASSERT_EQ(train(load({{"use_fp8", "true"},
                        {"resume", bf16 + "/latest.pt"},
                        {"checkpoint_dir", fp8},
                        {"max_steps", "14"}})),
            kExitDone);
  ASSERT_EQ(train(load({{"use_fp8", "false"},
                        {"resume", fp8 + "/latest.pt"},
                        {"checkpoint_dir", bf16},
                        {"max_steps", "16"}})),
            kExitDone);
  const auto records = read_metrics(folder.path() + "/runs/run/metrics.jsonl");
  ASSERT_EQ(records.size(), 16u);
  EXPECT_EQ(records[13].precision, "FP8 (emulated)");
  EXPECT_EQ(records[15].precision, "BF16");
}

TEST_F(Resume, ARunThatContinuesAnotherOneSaysSo) {
  ASSERT_EQ(train(config("first", {{"mixed_precision", "bf16"}})), kExitDone);
  ASSERT_EQ(train(config("more", {{"mixed_precision", "bf16"}, {"resume", checkpoint("first", 6, false)}})),
            kExitDone);
  ASSERT_EQ(train(config("more", {{"mixed_precision", "bf16"}, {"resume", "latest"}, {"max_steps", "14"}})),
            kExitDone);
  RunFolder more = read_run_folder(folder.path() + "/runs/more");
  EXPECT_EQ(more.records.front().step, 7);
  EXPECT_EQ(add_parents(more).fork, 6);
  const RunFolder first = read_run_folder(folder.path() + "/runs/first");
  ASSERT_EQ(more.records.size(), 14u);
  for (size_t i = 0; i < 12; ++i) EXPECT_EQ(more.records[i].loss, first.records[i].loss) << i;
}

// It had no way to learn anything, and a checkpoint of it looks like one of a trained model.
TEST_F(Resume, ARunWithoutASingleUpdateHasFailed) {
  const Settings hopeless = {{"penalty_type", "z_loss"},
                             {"penalty_weight", "3e38"},
                             {"max_steps", "2"},
                             {"mixed_precision", "bf16"}};
  Stderr log;
  EXPECT_EQ(train(config("run", hopeless)), kExitNotFinite);
  EXPECT_THAT(log.text(), HasSubstr("learning_rate is not the cause"));
  EXPECT_FALSE(fs::exists(checkpoint("run", 2, false)));
}

}  // namespace
}  // namespace octet::test
