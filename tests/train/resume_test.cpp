// Runs that are resumed: to the bit, in another precision, and from which of their checkpoints.

#include "checkpoint/resume.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "base/exit_codes.h"
#include "report/metrics.h"
#include "resume_support.h"
#include "train/trainer.h"

namespace octet::test {
namespace {

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

// A run of an octet that had exact sums and fp8_head as true or false goes on with what these meant, and a change is told.
TEST_F(Resume, OlderSettingsKeepTheirMeaning) {
  ASSERT_EQ(train(config("run", {{"mixed_precision", "fp8"}, {"max_steps", "2"}})), kExitDone);
  const std::string path = checkpoint("run", 2, true), file = path + "/train_config.yaml";
  std::string text = read_text(file);
  const auto replace = [&](const std::string& line, const std::string& by) {
    const size_t at = text.find(line);
    ASSERT_NE(at, std::string::npos) << line;
    text.replace(at, line.size(), by);
  };
  replace("fp8_fast_accum: forward\n",
          "# - - - - - - - - - - -\n");  // as long, because the manifest knows the size
  replace("fp8_head: auto\n", "fp8_head: true\n");
  folder.write(fs::relative(file, folder.path()).string(), text);

  const std::vector<KeySetting> flags = {{.name = "resume", .values = {path}}};
  const TrainConfig resumed = load_resumable_config({}, flags);
  EXPECT_EQ(resumed.fp8_fast_accum, Fp8FastAccum::None);
  EXPECT_EQ(resumed.fp8_head, Fp8Head::All);
  EXPECT_THAT(idle_settings({&resumed, 1}, false), testing::IsEmpty()) << "nobody has set it";
  const Checkpoint found = open_checkpoint(posix_env(), path, false);
  EXPECT_THAT(changed_settings(found, resumed), testing::IsEmpty());
  EXPECT_THAT(changed_settings(found, config("run", {{"mixed_precision", "fp8"}, {"max_steps", "2"}})),
              testing::IsSupersetOf({"fp8_fast_accum none -> forward", "fp8_head all -> auto"}));

  const std::vector<KeySetting> flagged = {flags[0], {.name = "fp8_fast_accum", .values = {"forward"}}};
  EXPECT_EQ(load_resumable_config({}, flagged).fp8_fast_accum, Fp8FastAccum::Forward);
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

}  // namespace
}  // namespace octet::test
