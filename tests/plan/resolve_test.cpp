// What plan, bench, doctor, lr, prepare and sweep say of a run is what train does: all of them resolve it alike.

#include "plan/resolve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "data/tiny_tokenizer.h"
#include "support/captured_log.h"
#include "support/error_of.h"
#include "support/model_fixture.h"
#include "support/peft_fixture.h"
#include "support/process.h"

namespace octet::test {
namespace {

namespace fs = std::filesystem;
using Flags = std::vector<std::pair<std::string, std::string>>;

// How a command reads its configuration, and what it asks for.
struct Command {
  const char* name;
  TrainConfig (*load)(const std::string& file, std::span<const KeySetting> flags);
  Wanted (*wanted)(const TrainConfig& given);
};

const Command kCommands[] = {
    {"plan", load_plan_config, [](const TrainConfig&) { return Wanted::by_plan(); }},
    {"bench", load_plan_config, [](const TrainConfig&) { return Wanted::by_bench(); }},
    {"bench --comm", load_plan_config,
     [](const TrainConfig& given) { return Wanted::by_bench_of_ranks(place_alone(given)); }},
    {"doctor", load_plan_config, [](const TrainConfig&) { return Wanted::by_doctor(make_cpu_device(1)); }},
    {"lr", load_plan_config, [](const TrainConfig& given) { return Wanted::by_lr(given); }},
    {"prepare", load_train_config, [](const TrainConfig&) { return Wanted::by_prepare(); }},
    {"sweep", load_train_config, [](const TrainConfig&) { return Wanted::by_sweep(); }},
};

struct Resolve : testing::Test {
  Resolve() {
    std::string text, chats;
    for (int i = 0; i < 400; ++i) text += fmt::format("line {:02}\n", i % 100);
    for (int i = 0; i < 40; ++i) chats += "{\"prompt\": \"how many?\", \"completion\": \"two or three\"}\n";
    text_file = folder.write("text.txt", text);
    chat_file = folder.write("chats.jsonl", chats);
    model_folder = folder.path() + "/model";
    fs::create_directories(model_folder);
    RandomModel(two_layers("llama-tiny"), DType::F32).write_folder(model_folder);
  }

  // The configuration of a tiny run; `flags` come last.
  static std::vector<KeySetting> settings_of(Flags flags) {
    const auto set = [&](const char* key, const char* value) {
      if (std::ranges::find(flags, key, &Flags::value_type::first) == flags.end())
        flags.emplace_back(key, value);
    };
    set("device", "cpu");
    set("num_threads", "1");
    set("max_seq_length", "16");
    std::vector<KeySetting> settings;
    for (const auto& [key, value] : flags)
      settings.push_back({.name = key, .values = {value}, .place = "--" + key});
    return settings;
  }

  static ResolvedRun by_train(const std::vector<KeySetting>& settings, const std::string& file = "",
                              std::optional<Checkpoint> resumed = std::nullopt) {
    const TrainConfig keys = load_train_config(file, settings);
    return resolve(keys, Wanted::by_train(place_alone(keys), std::move(resumed)));
  }

  static void expect_same_plan(const RunPlan& plan, const RunPlan& trained) {
    EXPECT_EQ(plan.shape.rows, trained.shape.rows);
    EXPECT_EQ(plan.shape.length, trained.shape.length);
    EXPECT_EQ(plan.shape.checkpointing, trained.shape.checkpointing);
    EXPECT_EQ(plan.accumulation, trained.accumulation);
    EXPECT_EQ(plan.precision_label, trained.precision_label);
    EXPECT_EQ(plan.numerics.fp8.recipe, trained.numerics.fp8.recipe);
    EXPECT_EQ(plan.numerics.gradients, trained.numerics.gradients);
    EXPECT_EQ(plan.numerics.remainder, trained.numerics.remainder);
    EXPECT_EQ(plan.finetuning.adapters.adapters.size(), trained.finetuning.adapters.adapters.size());
    EXPECT_EQ(plan.finetuning.sharding.mode, trained.finetuning.sharding.mode);
    EXPECT_EQ(plan.ranks(), trained.ranks());
    EXPECT_EQ(plan.memory.peak_bytes(), trained.memory.peak_bytes());
    EXPECT_EQ(plan.checkpoint_bytes, trained.checkpoint_bytes);
  }

  void expect_alike(const std::vector<KeySetting>& settings, const std::string& file = "",
                    std::optional<Checkpoint> resumed = std::nullopt) {
    const CapturedLog quiet;
    const ResolvedRun trained = by_train(settings, file, std::move(resumed));
    for (const Command& command : kCommands) {
      SCOPED_TRACE(command.name);
      const TrainConfig given = command.load(file, settings);
      const Wanted wanted = command.wanted(given);
      const bool shares_alone = wanted.mode_if_alone.has_value() && trained.plan.ranks() == 1;
      const Wanted::Plan plan = wanted.plan;
      const bool has_schedule = wanted.schedule;
      const ResolvedRun run = resolve(given, wanted);
      EXPECT_EQ(to_yaml(run.keys), to_yaml(trained.keys));
      EXPECT_EQ(run.model.config, trained.model.config);
      EXPECT_EQ(run.model.tokenizer, trained.model.tokenizer);
      if (plan >= Wanted::Plan::MayNotFit && !shares_alone) expect_same_plan(run.plan, trained.plan);
      if (!has_schedule) continue;
      EXPECT_EQ(run.schedule().max_steps, trained.schedule().max_steps);
      EXPECT_EQ(run.schedule().warmup_steps, trained.schedule().warmup_steps);
      EXPECT_EQ(run.schedule().decay_steps, trained.schedule().decay_steps);
      EXPECT_EQ(run.schedule().peak_lr, trained.schedule().peak_lr);
      EXPECT_EQ(run.schedule().min_lr_ratio, trained.schedule().min_lr_ratio);
    }
  }
  void expect_alike(Flags flags) {
    flags.emplace_back("dataset", text_file);
    expect_alike(settings_of(std::move(flags)));
  }

  TemporaryFolder folder;
  std::string text_file, chat_file, model_folder;
};

TEST_F(Resolve, OfAPresetIsAlike) {
  expect_alike({{"model_preset", "llama-tiny"}, {"max_steps", "20"}});
}

TEST_F(Resolve, OfAPresetWithOtherSizesIsAlike) {
  expect_alike({{"model_preset", "llama-tiny"}, {"hidden_size", "64"}, {"num_attention_heads", "4"}});
}

TEST_F(Resolve, OfAModelFolderIsAlike) {
  expect_alike({{"model_name_or_path", model_folder}, {"max_steps", "20"}});
}

// Whoever names a folder without weights trains from random ones, so another learning rate is the default.
TEST_F(Resolve, OfAFolderWithoutWeightsIsAlike) {
  fs::remove(model_folder + "/model.safetensors");
  expect_alike({{"model_name_or_path", model_folder}, {"max_steps", "20"}});
  expect_alike({{"model_name_or_path", model_folder}});
}

TEST_F(Resolve, OfAnAdapterIsAlike) {
  const std::string adapter = folder.path() + "/adapter";
  PeftFixture peft(two_layers("llama-tiny"), {.rank = 4, .alpha = 12, .targets = {"q_proj", "v_proj"}});
  peft.config["base_model_name_or_path"] = model_folder;
  peft.write(adapter);
  expect_alike({{"adapter_name_or_path", adapter}, {"max_steps", "20"}});
  expect_alike({{"adapter_name_or_path", adapter}, {"lora_dropout", "0.25"}});
}

TEST_F(Resolve, OfNewAdaptersIsAlike) {
  expect_alike({{"model_name_or_path", model_folder}, {"finetuning_type", "lora"}, {"lora_rank", "4"}});
}

TEST_F(Resolve, OfAnAutomaticBatchIsAlike) {
  expect_alike({{"model_preset", "llama-tiny"},
                {"auto_batch_size", "true"},
                {"target_effective_batch_size", "64"},
                {"device_memory_limit_gb", "0.04"}});
  expect_alike({{"model_preset", "llama-tiny"},
                {"max_batch_size", "6"},
                {"target_effective_batch_size", "16"}});
}

TEST_F(Resolve, OfConversationsIsAlike) {
  const std::string template_of_qwen = "<|im_start|>{{ m.reasoning_content }}</think><|im_end|>";
  folder.write("model/tokenizer_config.json",
               nlohmann::json({{"chat_template", template_of_qwen}}).dump());
  ModelConfig larger = two_layers("llama-tiny");
  larger.vocab = 258;
  RandomModel(larger, DType::F32).write_folder(model_folder);
  nlohmann::json tokenizer = tiny_tokenizer({});
  tokenizer["added_tokens"] = {added_token(256, "<|im_start|>"), added_token(257, "<|im_end|>")};
  folder.write("model/tokenizer.json", tokenizer.dump());
  const std::vector<KeySetting> settings =
      settings_of({{"model_name_or_path", model_folder},
                   {"dataset", chat_file},
                   {"cache_dir", folder.path() + "/cache"},
                   {"max_seq_length", "64"}});
  const CapturedLog quiet;
  EXPECT_EQ(by_train(settings).keys.chat_template, ChatTemplate::Qwen3);
  expect_alike(settings);
}

// The configuration that a run has stored says everything.
TEST_F(Resolve, OfAResumedRunIsAlike) {
  const CapturedLog quiet;
  const ResolvedRun first = by_train(
      settings_of({{"model_name_or_path", model_folder}, {"dataset", text_file}, {"max_steps", "20"}}));
  const std::string stored = folder.write("config.yaml", to_yaml(first.config));
  expect_alike({}, stored, Checkpoint{.path = model_folder, .step = 7});
}

TEST_F(Resolve, OfSeveralRanksIsAlike) {
  for (const char* mode : {"auto", "zero2", "fsdp_full"}) {
    SCOPED_TRACE(mode);
    expect_alike({{"model_preset", "llama-tiny"},
                  {"pretend_ranks", "4"},
                  {"sharding_mode", mode},
                  {"gradient_reduce_dtype", "fp32"}});
  }
}

TEST_F(Resolve, OfADatasetWithoutAModelIsAlike) {
  expect_alike({{"tokenizer", "bytes"},
                {"per_device_train_batch_size", "1"},
                {"num_hidden_layers", "1"},
                {"max_steps", "5"}});
}

TEST_F(Resolve, OfAPenaltyIsAlike) {
  expect_alike({{"model_preset", "llama-tiny"}, {"penalty_weight", "0.001"}});
}

TEST_F(Resolve, OfEveryRecipeIsAlike) {
  for (const char* recipe : {"delayed", "current", "block", "mxfp8"}) {
    SCOPED_TRACE(recipe);
    expect_alike({{"model_preset", "llama-tiny"}, {"fp8_recipe", recipe}, {"fp8_head", "all"}});
  }
}

TEST_F(Resolve, OfEpochsIsAlike) {
  expect_alike({{"model_preset", "llama-tiny"},
                {"num_train_epochs", "2.5"},
                {"warmup_ratio", "0.1"},
                {"lr_scheduler_type", "wsd"}});
}

// Who only wants to see a schedule waits for no download, and is not asked for memory.
TEST_F(Resolve, LooksOnlyAtWhatIsWanted) {
  const CapturedLog quiet;
  Flags flags = {{"model_name_or_path", "nobody/no-such-model"}, {"max_steps", "20"}, {"dataset", "x"}};
  const TrainConfig keys = load_plan_config("", settings_of(flags));
  const ResolvedRun run = resolve(keys, Wanted::by_lr(keys));
  EXPECT_FALSE(run.device);
  EXPECT_EQ(run.model.config.layers, ModelConfig{}.layers);
  EXPECT_EQ(run.schedule().max_steps, 20);
  EXPECT_EQ(run.schedule().peak_lr, 1e-5) << "a model that is named is taken to have weights";

  const TrainConfig large = load_plan_config(
      "", settings_of({{"model_preset", "llama-tiny"}, {"device_memory_limit_gb", "0.001"}, {"dataset", "x"}}));
  EXPECT_TRUE(resolve(large, Wanted::by_plan()).plan.shortage);
  EXPECT_THAT(error_of([&] { resolve(large, Wanted::by_bench()); }), testing::HasSubstr("the run needs"));
  EXPECT_FALSE(resolve(large, Wanted::by_prepare()).device);
}

}  // namespace
}  // namespace octet::test
