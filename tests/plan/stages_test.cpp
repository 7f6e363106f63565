// The way of a configuration: each stage as a function of those before it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "data/tiny_tokenizer.h"
#include "plan/resolve.h"
#include "support/captured_log.h"
#include "support/error_of.h"
#include "support/model_fixture.h"
#include "support/process.h"

namespace octet::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
namespace fs = std::filesystem;
using Flags = std::vector<std::pair<std::string, std::string>>;

// A limit of so many bytes, and a little more.
std::string gib_of(int64_t bytes) {
  return fmt::format("{:.6f}", static_cast<double>(bytes) / static_cast<double>(int64_t{1} << 30) + 1e-6);
}

TrainConfig keys_of(const Flags& flags) {
  std::vector<KeySetting> settings = {{.name = "device", .values = {"cpu"}, .place = ""},
                                      {.name = "num_threads", .values = {"1"}, .place = ""}};
  bool has_model = false;
  for (const auto& [key, value] : flags) {
    settings.push_back({.name = key, .values = {value}, .place = ""});
    has_model = has_model || key.starts_with("model_");
  }
  if (!has_model) settings.push_back({.name = "model_preset", .values = {"llama-tiny"}, .place = ""});
  return load_train_config("", settings);
}

struct Stages : testing::Test {
  // 400 lines of 8 bytes.
  Stages() {
    std::string text;
    for (int i = 0; i < 400; ++i) text += fmt::format("line {:02}\n", i % 100);
    text_file = folder.write("text.txt", text);
  }
  std::string model_folder(const char* name = "model") {
    const std::string path = folder.path() + "/" + name;
    fs::create_directories(path);
    RandomModel(two_layers("llama-tiny"), DType::F32).write_folder(path);
    return path;
  }
  RunPlan plan(const Flags& flags, std::optional<int64_t> sequences = std::nullopt) {
    const TrainConfig keys = keys_of(flags);
    PlanOptions options = plan_options(keys);
    options.sequences = sequences;
    return plan_run(keys, choose_model(keys).config, *device, options);
  }
  static ResolvedRun resolve_to_train(const Flags& flags) {
    return resolve(keys_of(flags), Wanted::by_train());
  }
  TemporaryFolder folder;
  std::string text_file;
  std::unique_ptr<Device> device = make_cpu_device(1);
};

TEST_F(Stages, TheModelIsAPresetAFolderOrThatOfTheCheckpoint) {
  const ModelChoice preset = choose_model(keys_of({{"model_preset", "gpt2-tiny"}}));
  EXPECT_EQ(preset.config.name, "gpt2-tiny");
  EXPECT_FALSE(preset.start || preset.resumed);
  EXPECT_EQ(preset.tokenizer, "");

  const std::string path = model_folder();
  const ModelChoice start = choose_model(keys_of({{"model_name_or_path", path}}));
  EXPECT_EQ(start.config.layers, 2);
  ASSERT_TRUE(start.start);
  EXPECT_EQ(start.start->folder, path);

  // What the run began from is not needed any more.
  const Checkpoint checkpoint{.path = path, .step = 7};
  const ModelChoice resumed = choose_model(keys_of({{"model_name_or_path", "gone"}}), checkpoint);
  EXPECT_EQ(resumed.config.layers, 2);
  EXPECT_FALSE(resumed.start);
  ASSERT_TRUE(resumed.resumed);
  EXPECT_EQ(resumed.resumed->step, 7);
  EXPECT_THAT(
      error_of([&] {
        choose_model(keys_of({{"model_preset", "gpt2-tiny"}}), checkpoint);
      }),
      testing::ContainsRegex("model_preset gpt2-tiny is not the model of .*: num_hidden_layers is 4 in the "
                             "preset and 2 there"));
}

TEST_F(Stages, WeightsAreLookedForByTheHeadersOfTheirFiles) {
  check_weights(choose_model(keys_of({{"model_preset", "llama-tiny"}})));  // none to look for
  const std::string path = model_folder();
  const ModelChoice model = choose_model(keys_of({{"model_name_or_path", path}}));
  check_weights(model);
  ModelChoice deeper = choose_model(keys_of({{"model_name_or_path", path}}));
  deeper.config.layers = 3;
  EXPECT_THAT(error_of([&] { check_weights(deeper); }), HasSubstr("model.layers.2."));
  fs::resize_file(path + "/model.safetensors", fs::file_size(path + "/model.safetensors") / 2);
  EXPECT_THAT(error_of([&] { check_weights(model); }), HasSubstr("model.safetensors"));
  fs::remove(path + "/model.safetensors");
  EXPECT_THAT(error_of([&] { check_weights(model); }), HasSubstr(path));
}

TEST_F(Stages, TheTokenizerIsTheGivenOneOrTheModels) {
  const CapturedLog quiet;
  const std::string path = model_folder();
  const auto choice = [&](Flags flags) {
    flags.insert(flags.end(), {{"dataset", text_file}, {"max_seq_length", "16"}});
    const TrainConfig keys = keys_of(flags);
    return open_data(keys, choose_model(keys));
  };
  EXPECT_EQ(choice({}).tokenizer_name, "bytes");
  EXPECT_EQ(choice({{"model_name_or_path", path}}).tokenizer_name, "bytes");
  folder.write("model/tokenizer.json", tiny_tokenizer({{"l", "i"}}).dump());
  const DataChoice of_model = choice({{"model_name_or_path", path}});
  EXPECT_EQ(of_model.tokenizer_name, path);
  EXPECT_EQ(of_model.tokenizer_source, path);
  EXPECT_EQ(choice({{"model_name_or_path", path}, {"tokenizer", "bytes"}}).tokenizer_name, "bytes");
  // A path is kept whole, for whoever looks at the run from another folder.
  const std::string relative = fs::relative(path).string();
  EXPECT_EQ(choice({{"tokenizer", relative}}).tokenizer_name, path);
}

TEST_F(Stages, SequencesOfAStreamFollowFromItsTokens) {
  const auto sequences = [&](const char* length, const char* split) {
    const TrainConfig keys = keys_of({{"dataset", text_file},
                                      {"max_seq_length", length},
                                      {"max_position_embeddings", "4096"},
                                      {"eval_split", split}});
    return open_data(keys, choose_model(keys)).sequences;
  };
  // 3200 bytes and the token that ends the text; the last token is only a target.
  EXPECT_EQ(sequences("16", "0"), 3200 / 16);
  EXPECT_EQ(sequences("150", "0"), 3200 / 150);
  EXPECT_EQ(sequences("16", "0.5"), 1600 / 16);
  EXPECT_EQ(sequences("3200", "0"), 1);
  EXPECT_THAT(error_of([&] { sequences("3201", "0"); }),
              HasSubstr("has 3201 tokens to train on, fewer than max_seq_length 3201 + 1"));
}

TEST_F(Stages, StepsFollowFromTheCountsOfTheData) {
  const auto steps = [](const Flags& flags, int64_t sequences, int64_t per_step) {
    return plan_schedule(keys_of(flags), sequences, per_step).max_steps;
  };
  const Flags one_epoch = {{"dataset", "x"}};
  EXPECT_EQ(steps(one_epoch, 100, 8), 13);
  EXPECT_EQ(steps(one_epoch, 96, 8), 12);
  EXPECT_EQ(steps(one_epoch, 3, 8), 1);
  EXPECT_EQ(steps({{"dataset", "x"}, {"num_train_epochs", "2.5"}}, 96, 8), 30);
  EXPECT_EQ(steps({{"dataset", "x"}, {"max_steps", "7"}}, 96, 8), 7) << "whatever the data has";

  const ScheduleConfig wsd = plan_schedule(
      keys_of({{"dataset", "x"}, {"warmup_ratio", "0.1"}, {"lr_scheduler_type", "wsd"}}), 800, 8);
  EXPECT_EQ(wsd.warmup_steps, 10);
  EXPECT_EQ(wsd.decay_steps, 20);
}

TEST_F(Stages, TheBatchIsTheGivenOneOrWhatFits) {
  const Flags automatic = {{"dataset", "x"},
                           {"max_seq_length", "64"},
                           {"auto_batch_size", "true"},
                           {"device_memory_limit_gb", "0.05"}};
  const auto with = [&](Flags flags, const Flags& more) {
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  };
  const RunPlan largest = plan(automatic);
  ASSERT_GT(largest.shape.rows, 8);
  EXPECT_EQ(largest.accumulation, 1);
  EXPECT_LE(largest.bytes(), largest.limit.bytes);
  EXPECT_FALSE(largest.shortage);
  const std::string one_more = std::to_string(largest.shape.rows + 1);
  EXPECT_GT(plan({{"dataset", "x"},
                  {"max_seq_length", "64"},
                  {"per_device_train_batch_size", one_more},
                  {"gradient_checkpointing", "none"},
                  {"device_memory_limit_gb", "0.05"}})
                .bytes(),
            largest.limit.bytes);
  // An epoch keeps 50 steps, if there is enough data.
  EXPECT_EQ(plan(automatic, 5).shape.rows, 1);
  EXPECT_EQ(plan(automatic, 500).shape.rows, 10);
  EXPECT_EQ(plan(automatic, 100'000).shape.rows, largest.shape.rows);
  // The accumulation follows from the target. More rows than the data has sequences would only repeat them.
  const RunPlan target = plan(with(automatic, {{"target_effective_batch_size", "24"}}), 9);
  EXPECT_EQ(target.shape.rows, 8);
  EXPECT_EQ(target.accumulation, 3);
  EXPECT_EQ(target.sequences_per_step(), 24);
  const RunPlan given = plan({{"dataset", "x"}, {"per_device_train_batch_size", "3"}}, 2);
  EXPECT_EQ(given.shape.rows, 3) << "what is given is not changed";
}

TEST_F(Stages, FallsBackToBf16WhereNoLayerCanRunInFp8) {
  const CapturedLog log;
  const Flags flags = {{"dataset", "x"}, {"max_seq_length", "64"}, {"fp8_skip_layers", "*"}};
  const RunPlan fallback = plan(flags);
  EXPECT_EQ(fallback.numerics.precision, Precision::Bf16);
  EXPECT_EQ(fallback.precision_label, "BF16 (fallback)");
  EXPECT_THAT(fallback.fallback_reason, HasSubstr("no layer can run in FP8"));
  EXPECT_EQ(fallback.fp8_share, 0);
  EXPECT_THAT(log.messages, ElementsAre(HasSubstr("FP8 cannot run: no layer can run in FP8")));
  Flags required = flags;
  required.insert(required.end(), {{"require_fp8", "true"}, {"fp8_emulation", "true"}});
  EXPECT_THAT(error_of([&] { plan(required); }), HasSubstr("[fp8] require_fp8 is set, but no layer"));
  const RunPlan emulated = plan({{"dataset", "x"}, {"max_seq_length", "64"}});
  EXPECT_EQ(emulated.precision_label, "FP8 (emulated)");
  EXPECT_GT(emulated.fp8_share, 0.1);
}

TEST_F(Stages, EmulationOnTheCpuIsNoFp8UnlessItIsAskedFor) {
  Flags flags = {{"dataset", "x"}, {"max_seq_length", "64"}, {"require_fp8", "true"}};
  EXPECT_THROW(plan(flags), ConfigError);
  flags.emplace_back("fp8_emulation", "true");
  EXPECT_EQ(plan(flags).precision_label, "FP8 (emulated)");
}

TEST_F(Stages, AGpuWithoutMxfp8HasDelayedInItsPlace) {
  CapturedLog log;
  const Flags flags = {{"dataset", "x"}, {"max_seq_length", "64"}, {"fp8_recipe", "mxfp8"}};
  EXPECT_EQ(plan(flags).numerics.fp8.recipe, Fp8Recipe::Mxfp8) << "the CPU emulates everything";
  EXPECT_THAT(log.messages, testing::IsEmpty());
  device = make_planned_gpu("a GPU", int64_t{80} << 30, 132);
  EXPECT_EQ(plan(flags).numerics.fp8.recipe, Fp8Recipe::Delayed);
  EXPECT_THAT(log.messages, ElementsAre(HasSubstr("fp8_recipe delayed in its place")));
  Flags emulated = flags;
  emulated.emplace_back("fp8_emulation", "true");
  EXPECT_EQ(plan(emulated).numerics.fp8.recipe, Fp8Recipe::Mxfp8);
}

// They take what the step leaves.
TEST_F(Stages, SamplesAtEvaluationsChangeNoPlan) {
  const auto limited = [&](const char* gib, const char* sample_steps) {
    return plan({{"dataset", "x"},
                 {"max_seq_length", "64"},
                 {"auto_batch_size", "true"},
                 {"device_memory_limit_gb", gib},
                 {"sample_steps", sample_steps}});
  };
  const RunPlan with = limited("0.05", "-1"), without = limited("0.05", "0");
  EXPECT_EQ(with.shape.rows, without.shape.rows);
  EXPECT_EQ(with.memory.peak_bytes(), without.memory.peak_bytes());
  EXPECT_EQ(without.sampling_bytes, 0);
  EXPECT_LE(with.bytes(), with.limit.bytes);
  const CapturedLog quiet;
  const ResolvedRun stages = resolve_to_train({{"dataset", text_file}, {"max_seq_length", "16"}});
  EXPECT_GT(stages.plan.sampling_bytes, 0);
  EXPECT_EQ(stages.config.sample_steps, -1);
  const ResolvedRun tight =
      resolve_to_train({{"dataset", text_file},
                        {"max_seq_length", "16"},
                        {"device_memory_limit_gb", gib_of(stages.plan.memory.peak_bytes())}});
  EXPECT_EQ(tight.plan.sampling_bytes, 0);
  EXPECT_EQ(tight.config.sample_steps, 0);
}

// The plan is a value: it outlives its device, and a Transformer of it on another one allocates what it says.
TEST_F(Stages, ATransformerOfThePlanTakesItsMemory) {
  const RunPlan planned = plan({{"dataset", "x"}, {"max_seq_length", "64"}});
  device.reset();
  const std::unique_ptr<Device> other = make_cpu_device(1);
  Transformer transformer(model_preset("llama-tiny"), planned.shape, planned.numerics, *other);
  transformer.allocate();
  EXPECT_EQ(transformer.allocated_bytes(), planned.memory.peak_bytes());
}

TEST_F(Stages, TheResolvedConfigurationHasWhatTheStagesFound) {
  const CapturedLog quiet;
  const std::string path = model_folder();
  folder.write("model/tokenizer.json", tiny_tokenizer({{"l", "i"}}).dump());
  const ResolvedRun stages = resolve_to_train({{"model_name_or_path", path},
                                               {"dataset", text_file},
                                               {"max_seq_length", "16"},
                                               {"auto_batch_size", "true"},
                                               {"target_effective_batch_size", "32"},
                                               {"num_train_epochs", "3"}});
  EXPECT_EQ(stages.config.tokenizer, path);
  EXPECT_EQ(stages.config.per_device_train_batch_size, stages.plan.shape.rows);
  EXPECT_EQ(stages.config.gradient_accumulation_steps * stages.config.per_device_train_batch_size, 32);
  EXPECT_EQ(stages.config.gradient_checkpointing, CheckpointingKey::None);
  EXPECT_EQ(stages.config.max_steps, stages.schedule().max_steps);
  EXPECT_EQ(stages.config.max_steps, (3 * stages.data.sequences + 31) / 32);
  // The keys are as they were given.
  EXPECT_EQ(stages.keys.tokenizer, "bytes");
  EXPECT_EQ(stages.keys.per_device_train_batch_size, TrainConfig{}.per_device_train_batch_size);
  EXPECT_EQ(stages.keys.gradient_checkpointing, CheckpointingKey::Auto);
  EXPECT_EQ(stages.keys.max_steps, 0);
}

TEST_F(Stages, ARunThatDoesNotFitIsRefused) {
  EXPECT_THAT(error_of([&] {
                resolve_to_train(
                    {{"dataset", text_file}, {"max_seq_length", "16"}, {"device_memory_limit_gb", "0.001"}});
              }),
              HasSubstr("the run needs"));
}

}  // namespace
}  // namespace octet::test
