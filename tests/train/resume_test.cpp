// Checkpoints of whole runs: exact resume, conversion between precisions, and what faults leave behind. The runs here
// are those of octet train, inside this process.

#include "train/resume.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "io/fault_env.h"
#include "report/metrics.h"
#include "support/process.h"
#include "train/checkpoint.h"
#include "train/exit_codes.h"
#include "train/hf_folder.h"
#include "train/trainer.h"

namespace octet::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using Setting = std::pair<std::string, std::string>;
using Settings = std::vector<Setting>;

constexpr const char* kStateFiles[] = {"model.safetensors", "optimizer.safetensors", "fp8_state.bin",
                                       "state.json"};

// What a run says on stderr.
class Stderr {
 public:
  Stderr() { testing::internal::CaptureStderr(); }
  std::string text() { return testing::internal::GetCapturedStderr(); }
};

struct Resume : testing::Test {
  Resume() {
    std::string text;
    for (int i = 0; i < 400; ++i) text += fmt::format("number {} follows {}\n", i * 7919 % 1000, i * 31 % 97);
    dataset = folder.write("text.txt", text);
  }

  // A run of a few steps of a two-layer model, as flags; `changes` come last and win.
  TrainConfig config(const std::string& name, const Settings& changes) {
    std::map<std::string, std::string> flags = {{"dataset", dataset},
                                                {"model_name_or_path", model_folder()},
                                                {"device", "cpu"},
                                                {"max_seq_length", "24"},
                                                {"per_device_train_batch_size", "2"},
                                                {"max_steps", "12"},
                                                {"save_steps", "6"},
                                                {"eval_batches", "1"},
                                                {"eval_split", "0.1"},
                                                {"eval_steps", "0"},
                                                {"learning_rate", "0.002"},
                                                {"num_threads", "2"},
                                                {"use_tensorboard", "false"},
                                                {"progress", "quiet"},
                                                {"output_dir", folder.path() + "/runs"},
                                                {"run_name", name}};
    for (const auto& [key, value] : changes) flags[key] = value;
    std::vector<KeySetting> settings;
    for (const auto& [key, value] : flags) settings.push_back({.name = key, .values = {value}});
    return load_resumable_config("", settings);
  }

  // Two layers of width 64 keep a run under a tenth of a second.
  std::string model_folder() {
    const std::string path = folder.path() + "/model";
    if (fs::exists(path)) return path;
    fs::create_directories(path);
    ModelConfig model = model_preset("llama-tiny");
    model.layers = 2;
    model.width = 64;
    model.heads = 2;
    model.kv_heads = 1;
    model.ffn = 96;
    const auto backend = make_cpu_backend(1);
    Transformer transformer(model, {.rows = 1, .length = 8, .training = false},
                            {.precision = Precision::Fp32}, *backend);
    transformer.allocate();
    transformer.parameters().initialise(*backend, 3);
    std::ofstream(path + "/config.json") << to_hf_config(model, DType::F32);
    WritableFile file = posix_env().create(path + "/model.safetensors");
    save_hf_weights(file, *backend, transformer.parameters(), SafeDType::F32);
    return path;
  }

  std::string checkpoint(const std::string& run, int step, bool fp8) {
    return fmt::format("{}/runs/{}/{}/step_{}", folder.path(), run, fp8 ? "checkpoints_fp8" : "checkpoints",
                       step);
  }

  void expect_equal_states(const std::string& a, const std::string& b) {
    for (const char* name : kStateFiles) {
      ASSERT_EQ(fs::exists(a + "/" + name), fs::exists(b + "/" + name)) << name;
      if (!fs::exists(a + "/" + name)) continue;
      EXPECT_TRUE(read_text(a + "/" + name) == read_text(b + "/" + name)) << name;
    }
  }

  TemporaryFolder folder;
  std::string dataset;
};

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
        ExactCase{"delayed", true, {{"fp8_recipe", "delayed"}}},
        ExactCase{"delayed_interval",
                  true,
                  {{"fp8_recipe", "delayed"}, {"fp8_interval", "4"}, {"fp8_head", "true"}}},
        ExactCase{
            "delayed_accumulation", true, {{"fp8_recipe", "delayed"}, {"gradient_accumulation_steps", "3"}}},
        ExactCase{"current", true, {{"fp8_recipe", "current"}, {"gradient_checkpointing", "act"}}},
        ExactCase{"block", true, {{"fp8_recipe", "block"}, {"gradient_checkpointing", "mlp"}}},
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

// An fp32 run that takes over a bf16 checkpoint begins with its exact master weights, and the way back is exact too.
TEST_F(Resume, MasterWeightsSurviveTheChangeOfPrecision) {
  ASSERT_EQ(train(config("bf16", {{"mixed_precision", "bf16"}})), kExitDone);
  const auto weights = [&](Precision precision, const std::string& path) {
    const auto backend = make_cpu_backend(1);
    Transformer model(read_hf_config(path), {.rows = 1, .length = 8}, {.precision = precision}, *backend);
    model.allocate();
    restore_checkpoint(posix_env(), open_checkpoint(posix_env(), path), *backend, model);
    std::vector<float> values;
    for (const Parameter& p : model.parameters().all()) {
      const auto more = ParameterSet::weight_values(*backend, p);
      values.insert(values.end(), more.begin(), more.end());
    }
    return values;
  };
  const std::string path = checkpoint("bf16", 12, false);
  EXPECT_EQ(weights(Precision::Fp32, path), weights(Precision::Bf16, path));
}

// Moments may be kept in another form from a checkpoint on: each is what its form holds of the one before.
TEST_F(Resume, MomentsAreConverted) {
  const auto moments = [&](DType form, const std::string& path) {
    const auto backend = make_cpu_backend(1);
    Transformer model(read_hf_config(path), {.rows = 1, .length = 8},
                      {.precision = Precision::Bf16, .moments = form}, *backend);
    model.allocate();
    restore_checkpoint(posix_env(), open_checkpoint(posix_env(), path), *backend, model);
    CheckpointStore store(
        posix_env(), fmt::format("{}/{}_{}", folder.path(), fs::path(path).parent_path().filename().string(),
                                 name_of(form)));
    Snapshot snapshot;
    snapshot.take(*backend, model, {.step = 1}, "");
    return store.save(1, [&](CheckpointWriter& writer) { snapshot.write(writer); }, {"bf16", 1.0}).path;
  };
  // The values of a moment, whatever its form, through a model that keeps fp32.
  const auto values = [&](const std::string& path, bool squares) {
    const auto backend = make_cpu_backend(1);
    Transformer model(read_hf_config(path), {.rows = 1, .length = 8}, {.precision = Precision::Bf16},
                      *backend);
    model.allocate();
    restore_checkpoint(posix_env(), open_checkpoint(posix_env(), path), *backend, model);
    const Parameter& p = model.parameters()["layers.1.mlp.up.weight"];
    std::vector<float> result(static_cast<size_t>(p.m.numel()));
    backend->copy_to_host(result.data(), squares ? p.v : p.m);
    return result;
  };
  ASSERT_EQ(train(config("run", {{"mixed_precision", "bf16"}})), kExitDone);
  const std::string fp32 = checkpoint("run", 12, false);
  const std::string bf16 = moments(DType::BF16, fp32), fp8 = moments(DType::E4M3, fp32);
  for (const bool squares : {false, true}) {
    const std::vector<float> exact = values(fp32, squares), half = values(bf16, squares),
                             small = values(fp8, squares);
    float largest = 0;
    for (const float value : exact) largest = std::max(largest, std::fabs(value));
    ASSERT_GT(largest, 0);
    for (size_t i = 0; i < exact.size(); ++i) {
      ASSERT_NEAR(half[i], exact[i], std::fabs(exact[i]) / 256) << i;
      // e4m3 has 3 bits of mantissa: 1/16 of the value, twice that for the square of a root; below its normal range
      // 2^-10 / 448 of the largest of the block.
      ASSERT_NEAR(small[i], exact[i], std::fabs(exact[i]) * (squares ? 0.13 : 0.0625) + largest * 4e-6) << i;
      if (squares) {
        ASSERT_EQ(small[i] > 0, exact[i] > 0) << i;
      }
    }
  }
  // fp8 to bf16 too, and a form that is not changed keeps its bytes.
  const std::string again = moments(DType::E4M3, fp8);
  EXPECT_TRUE(read_text(again + "/optimizer.safetensors") == read_text(fp8 + "/optimizer.safetensors"));
  moments(DType::BF16, fp8);
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
    EXPECT_THAT(error.what(),
                HasSubstr("model_preset llama-tiny (4 layers of width 128) is not the model of"));
  }
  EXPECT_FALSE(fs::exists(folder.path() + "/runs/other"));
}

TEST_F(Resume, AllThatDoesNotFitIsListed) {
  ASSERT_EQ(train(config("run", {{"mixed_precision", "bf16"}})), kExitDone);
  const auto backend = make_cpu_backend(1);
  Transformer model(model_preset("llama-tiny"), {.rows = 1, .length = 8}, {.precision = Precision::Bf16},
                    *backend);
  model.allocate();
  try {
    restore_checkpoint(posix_env(), open_checkpoint(posix_env(), checkpoint("run", 6, false)), *backend,
                       model);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("does not fit the model"));
    EXPECT_THAT(error.what(), HasSubstr("layers.3.mlp.down.weight.m is missing"));
    EXPECT_THAT(error.what(), HasSubstr("layers.0.attention.qkv.weight.m has shape"));
  }
}

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

// FAULTS 5: the disk is full for a while. Training goes on, the checkpoint from before stays whole.
TEST_F(Resume, AFullDiskIsSaidAndSurvived) {
  fs::create_directories(folder.path() + "/runs");
  FaultEnv env(folder.path() + "/runs");
  const Settings changes = {{"save_steps", "3"}, {"save_async", "false"}};
  // The first save passes; from the second on, every call that needs space fails.
  ASSERT_EQ(train(config("probe", {{"save_steps", "0"}, {"max_steps", "3"}, {"save_async", "false"}}), env),
            kExitDone);
  const int64_t one_save = env.calls();
  env.arm(one_save + 8, IoFault::Enospc, true);
  Stderr log;
  EXPECT_EQ(train(config("full", changes), env), kExitSaveFailed);
  const std::string said = log.text();
  EXPECT_THAT(said, HasSubstr("No space left on device"));
  EXPECT_THAT(said, HasSubstr("the checkpoint of step 6 was not saved (1 in a row"));
  EXPECT_THAT(said, HasSubstr("3 checkpoints in a row could not be saved"));
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
  EXPECT_THAT(once.text(), HasSubstr("tried once more"));
  ASSERT_TRUE(env.struck());
  env.disarm();
  EXPECT_EQ(CheckpointStore(env, folder.path() + "/runs/once/checkpoints_fp8").open_latest()->step, 3);

  env.arm(calls / 2, IoFault::Enospc, true);
  Stderr always;
  EXPECT_EQ(train(config("always", changes), env), kExitSaveFailed);
  EXPECT_THAT(always.text(), HasSubstr("the state of step 3 is not saved"));
}

TEST_F(Resume, ACheckpointFolderBelongsToOneRun) {
  const Settings shared = {{"checkpoint_dir", folder.path() + "/shared"}, {"max_steps", "2"}};
  ASSERT_EQ(train(config("first", shared)), kExitDone);
  try {
    train(config("second", shared));
    FAIL() << "expected an error";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("already holds checkpoints, of another run"));
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

// FAULTS 9: what is not finite is neither published nor loaded.
TEST_F(Resume, WeightsThatAreNotFiniteAreNeitherSavedNorLoaded) {
  const auto backend = make_cpu_backend(1);
  Transformer model(read_hf_config(model_folder()), {.rows = 1, .length = 8}, {.precision = Precision::Bf16},
                    *backend);
  model.allocate();
  model.parameters().initialise(*backend, 1);
  CheckpointStore store(posix_env(), folder.path() + "/store");
  Snapshot snapshot;
  const auto save = [&](int64_t step) {
    snapshot.take(*backend, model, {.step = step}, "");
    store.save(step, [&](CheckpointWriter& writer) { snapshot.write(writer); }, {"bf16", 1.0});
  };
  save(1);
  Parameter& bad = model.parameters()["layers.1.mlp.down.weight"];
  std::vector<float> values = ParameterSet::weight_values(*backend, bad);
  values[17] = std::nanf("");
  ParameterSet::set_weight(*backend, bad, values);
  save(2);  // past the check, as a flipped bit in memory would be
  try {
    snapshot.check();
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("layers.1.mlp.down.weight"));
  }
  try {
    restore_checkpoint(posix_env(), *store.open_latest(), *backend, model);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("model.layers.1.mlp.down_proj.weight"));
  }
}

// FAULTS 17: weights whose products overflow give no finite gradient; the run ends with its own code and its advice.
TEST_F(Resume, ThreeStepsWithoutAFiniteGradientEndTheRun) {
  const auto backend = make_cpu_backend(1);
  const std::string path = model_folder();
  Transformer model(read_hf_config(path), {.rows = 1, .length = 8, .training = false},
                    {.precision = Precision::Fp32}, *backend);
  model.allocate();
  model.parameters().initialise(*backend, 3);
  Parameter& gain = model.parameters()["final_norm.gain"];
  ParameterSet::set_weight(*backend, gain, std::vector<float>(64, 3e38f));
  fs::create_directories(folder.path() + "/huge");
  fs::copy(path + "/config.json", folder.path() + "/huge/config.json");
  WritableFile file = posix_env().create(folder.path() + "/huge/model.safetensors");
  save_hf_weights(file, *backend, model.parameters(), SafeDType::F32);
  Stderr log;
  EXPECT_EQ(train(config("huge", {{"model_name_or_path", (folder.path() + "/huge")}})), kExitNotFinite);
  const std::string said = log.text();
  EXPECT_THAT(said, HasSubstr("step 1: the gradient is not finite"));
  EXPECT_THAT(said, HasSubstr("3 steps in a row up to step 3 had no finite gradient"));
  EXPECT_THAT(said, HasSubstr("raise fp8_margin (now 0)"));
  EXPECT_FALSE(fs::exists(checkpoint("huge", 3, true))) << "a state without hope is not saved";
  const auto records = read_metrics(folder.path() + "/runs/huge/metrics.jsonl");
  EXPECT_EQ(records.size(), 3u);
}

// Where host memory is short the state is written from where it is: the same bytes.
TEST_F(Resume, ASnapshotInPlaceWritesTheSameBytes) {
  const auto backend = make_cpu_backend(1);
  Transformer model(read_hf_config(model_folder()), {.rows = 1, .length = 8}, {.precision = Precision::Bf16},
                    *backend);
  model.allocate();
  model.parameters().initialise(*backend, 1);
  std::vector<std::string> paths;
  for (const bool in_place : {false, true}) {
    CheckpointStore store(posix_env(), folder.path() + (in_place ? "/in_place" : "/copied"));
    Snapshot snapshot;
    snapshot.take(*backend, model, {.step = 1}, "", in_place);
    snapshot.check();
    paths.push_back(
        store.save(1, [&](CheckpointWriter& writer) { snapshot.write(writer); }, {"bf16", 1.0}).path);
  }
  expect_equal_states(paths[0], paths[1]);
}

TEST(TrainerState, SurvivesItsFile) {
  const TrainerState state{.step = 7,
                           .tokens = int64_t{1} << 50,
                           .skipped_steps = 3,
                           .skipped_in_a_row = 1,
                           .loader = {.seed = ~uint64_t{0}, .next_sample = 12345678901},
                           .first_loss = 0.1 + 0.2,
                           .last_loss = INFINITY,
                           .first_eval = 1.0 / 3,
                           .best_eval = {},
                           .loss_window = {1.0 / 7, INFINITY, 2.5},
                           .spikes_in_a_row = 2};
  EXPECT_EQ(trainer_state_from_json(to_json(state), "state.json"), state);
  EXPECT_THROW(trainer_state_from_json("{}", "state.json"), Error);
  EXPECT_THROW(
      trainer_state_from_json(R"({"format": "octet trainer state", "version": 1, "step": "x"})", "s"), Error);
}

}  // namespace
}  // namespace octet::test
