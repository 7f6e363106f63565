// LoRA runs that start from an adapter: its weights and settings, a new optimizer state, and adapters that do not fit.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/exit_codes.h"
#include "hf/peft_folder.h"
#include "report/metrics.h"
#include "resume_support.h"
#include "support/error_of.h"
#include "train/trainer.h"

namespace octet::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// Steps so small that no weight changes.
const Setting kStandStill = {"learning_rate", "1e-30"};

struct LoraStart : Resume {
  // Short runs.
  TrainConfig short_run(const std::string& name, Settings changes) {
    changes.insert(changes.begin(), {{"max_steps", "3"}, {"save_steps", "0"}});
    return config(name, changes);
  }
  void make_adapter(const std::string& name, Settings changes = {}) {
    changes.insert(changes.begin(),
                   {{"finetuning_type", "lora"}, {"lora_rank", "4"}, {"learning_rate", "0.01"}});
    ASSERT_EQ(train(short_run(name, changes)), kExitDone);
  }
  std::string run_path(const std::string& name) { return folder.path() + "/runs/" + name; }
  std::string adapter_file(const std::string& run, int step, bool fp8) {
    return read_text(checkpoint(run, step, fp8) + "/adapter_model.safetensors");
  }
  TrainConfig written_config(const std::string& run) {
    return load_train_config(run_path(run) + "/config.yaml", {});
  }
  // The values of all moments of a run.
  std::vector<float> moments(const std::string& checkpoint_folder) {
    const SafetensorsFile file =
        SafetensorsFile::open(posix_env(), checkpoint_folder + "/optimizer.safetensors");
    std::vector<float> values;
    for (const SafeTensor& tensor : file.tensors()) {
      const auto* from = reinterpret_cast<const float*>(tensor.bytes.data());
      values.insert(values.end(), from, from + tensor.count());
    }
    return values;
  }
  // A PEFT folder of its own, with changed fields of the config.
  std::string peft_folder(const std::string& checkpoint_folder, const nlohmann::json& fields = {}) {
    const std::string path = folder.path() + "/peft";
    fs::remove_all(path);
    fs::create_directories(path);
    fs::copy(checkpoint_folder + "/adapter_model.safetensors", path + "/adapter_model.safetensors");
    nlohmann::json json = nlohmann::json::parse(read_text(checkpoint_folder + "/adapter_config.json"));
    if (!fields.is_null()) json.update(fields);
    std::ofstream(path + "/adapter_config.json") << json.dump();
    return path;
  }
};

TEST_F(LoraStart, TheWeightsAreThoseOfTheAdapter) {
  make_adapter("first");
  const std::string source = adapter_file("first", 3, true);
  for (const std::string& path :
       {checkpoint("first", 3, true), run_path("first"), peft_folder(checkpoint("first", 3, true))}) {
    for (const char* precision : {"fp32", "bf16", "fp8"}) {
      const std::string name = std::string("second_") + precision;
      fs::remove_all(run_path(name));
      ASSERT_EQ(train(short_run(
                    name, {{"adapter_name_or_path", path}, {"mixed_precision", precision}, kStandStill})),
                kExitDone);
      EXPECT_TRUE(adapter_file(name, 3, precision == std::string("fp8")) == source)
          << path << " " << precision;
    }
  }
}

TEST_F(LoraStart, TheOptimizerStateIsNew) {
  const Settings fp32 = {{"mixed_precision", "fp32"}, {"max_steps", "4"}};
  make_adapter("first", fp32);
  const auto run = [&](const char* name, const Settings& more) {
    Settings settings = {{"mixed_precision", "fp32"}, kStandStill};
    settings.insert(settings.end(), more.begin(), more.end());
    ASSERT_EQ(train(short_run(name, settings)), kExitDone);
  };
  // One step each: from the adapter, and resumed from the same weights.
  run("fresh", {{"adapter_name_or_path", checkpoint("first", 4, false)}, {"max_steps", "1"}});
  run("resumed",
      {{"finetuning_type", "lora"}, {"resume", checkpoint("first", 4, false)}, {"max_steps", "5"}});
  const nlohmann::json state =
      nlohmann::json::parse(read_text(checkpoint("fresh", 1, false) + "/state.json"));
  EXPECT_EQ(state.at("step"), 1);
  EXPECT_EQ(state.at("tokens"), 48);
  // Moments of one step from zero: m = 0.1 g and v = 0.05 g^2, so m^2 = 0.2 v.
  const SafetensorsFile file =
      SafetensorsFile::open(posix_env(), checkpoint("fresh", 1, false) + "/optimizer.safetensors");
  const SafeTensor& m = file.at("layers.0.mlp.up.lora_a.m");
  const SafeTensor& v = file.at("layers.0.mlp.up.lora_a.v");
  const auto* m_values = reinterpret_cast<const float*>(m.bytes.data());
  const auto* v_values = reinterpret_cast<const float*>(v.bytes.data());
  ASSERT_GT(m.count(), 0);
  for (int64_t i = 0; i < m.count(); ++i)
    ASSERT_NEAR(m_values[i] * m_values[i], 0.2f * v_values[i], 1e-5f * v_values[i] + 1e-30f) << i;
  EXPECT_NE(moments(checkpoint("fresh", 1, false)), moments(checkpoint("resumed", 5, false)));
}

TEST_F(LoraStart, SettingsComeFromTheAdapter) {
  make_adapter("first", {{"lora_rank", "6"},
                         {"lora_alpha", "9"},
                         {"lora_target", "q_proj,down_proj"},
                         {"use_rslora", "true"},
                         {"lora_dropout", "0.25"}});
  ASSERT_EQ(train(short_run("second", {{"adapter_name_or_path", run_path("first")}})), kExitDone);
  const TrainConfig written = written_config("second");
  EXPECT_TRUE(written.is_lora());
  EXPECT_EQ(written.lora_rank, 6);
  EXPECT_EQ(written.lora_alpha, 9);
  EXPECT_TRUE(written.use_rslora);
  EXPECT_EQ(written.lora_dropout, 0.25);
  EXPECT_THAT(written.lora_target, testing::ElementsAre("q_proj", "down_proj"));
  // Dropout is a setting of the training, not of the adapter.
  ASSERT_EQ(train(short_run("third", {{"adapter_name_or_path", run_path("first")}, {"lora_dropout", "0"}})),
            kExitDone);
  EXPECT_EQ(written_config("third").lora_dropout, 0);
  EXPECT_EQ(read_peft_config(posix_env(), checkpoint("third", 3, true)).lora.dropout, 0);
}

TEST_F(LoraStart, OtherSettingsAreRefused) {
  make_adapter("first", {{"lora_target", "q_proj,v_proj"}});
  const std::string from = checkpoint("first", 3, true);
  const auto refusal = [&](const char* key, const char* value) {
    return error_of([&] { train(short_run("second", {{key, value}, {"adapter_name_or_path", from}})); });
  };
  EXPECT_EQ(refusal("lora_rank", "8"),
            fmt::format("lora_rank is 8, but the adapter {} has 4; remove the key", from));
  EXPECT_EQ(refusal("lora_alpha", "1.5"),
            fmt::format("lora_alpha is 1.5, but the adapter {} has 8; remove the key", from));
  EXPECT_EQ(refusal("use_rslora", "true"),
            fmt::format("use_rslora is true, but the adapter {} has false; remove the key", from));
  EXPECT_EQ(refusal("lora_target", "q_proj"),
            fmt::format("lora_target is q_proj, but the adapter {} has q_proj,v_proj; remove the key", from));
  EXPECT_FALSE(fs::exists(run_path("second")));
  // The same values are no contradiction.
  EXPECT_EQ(train(short_run("second", {{"lora_rank", "4"},
                                       {"lora_alpha", "8"},
                                       {"lora_target", "v_proj,q_proj"},
                                       {"adapter_name_or_path", from}})),
            kExitDone);
}

// Most modules have another rank and alpha than "r" and "lora_alpha" say. The run's checkpoints say it the other way
// round, and the run can be resumed.
TEST_F(LoraStart, AnAdapterWithPatternsIsContinuedAndResumed) {
  make_adapter("first");
  const nlohmann::json fields = {
      {"r", 16},
      {"lora_alpha", 32},
      {"target_modules",
       nlohmann::json::array({"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"})},
      {"rank_pattern", {{".*_proj", 4}}},
      {"alpha_pattern", {{"(q|k|v|o|gate|up)_proj", 8}}}};
  const std::string peft = peft_folder(checkpoint("first", 3, true), fields);
  ASSERT_EQ(train(short_run("second", {{"adapter_name_or_path", peft}, {"save_steps", "2"}})), kExitDone);
  EXPECT_EQ(written_config("second").lora_rank, 4);
  EXPECT_EQ(written_config("second").lora_alpha, 8);
  const PeftConfig saved = read_peft_config(posix_env(), checkpoint("second", 3, true));
  EXPECT_THAT(saved.lora.alpha_pattern, testing::ElementsAre(testing::Pair("down_proj", 32)));
  const auto whole = read_text(checkpoint("second", 3, true) + "/adapter_model.safetensors");
  fs::remove_all(checkpoint("second", 3, true));
  fs::remove_all(peft);  // not needed any more
  const std::vector<KeySetting> settings = {{.name = "output_dir", .values = {folder.path() + "/runs"}},
                                            {.name = "run_name", .values = {"second"}},
                                            {.name = "resume", .values = {"latest"}}};
  ASSERT_EQ(train(load_resumable_config({}, settings)), kExitDone);
  EXPECT_TRUE(adapter_file("second", 3, true) == whole);
}

// PEFT allows any alpha, so the settings that the run writes down must be ones that it can read again.
TEST_F(LoraStart, AnAdapterWithANegativeAlphaIsContinuedAndResumed) {
  make_adapter("first");
  const std::string peft = peft_folder(checkpoint("first", 3, true), {{"lora_alpha", -8}});
  ASSERT_EQ(train(short_run("second", {{"adapter_name_or_path", peft}, {"save_steps", "2"}})), kExitDone);
  EXPECT_EQ(written_config("second").lora_alpha, -8);
  const auto whole = adapter_file("second", 3, true);
  fs::remove_all(checkpoint("second", 3, true));
  const std::vector<KeySetting> settings = {{.name = "output_dir", .values = {folder.path() + "/runs"}},
                                            {.name = "run_name", .values = {"second"}},
                                            {.name = "resume", .values = {"latest"}}};
  ASSERT_EQ(train(load_resumable_config({}, settings)), kExitDone);
  EXPECT_TRUE(adapter_file("second", 3, true) == whole);
}

TEST_F(LoraStart, OnlySomeLayersAreContinuedAndResumed) {
  make_adapter("first", {{"lora_target", R"(model\.layers\.1\.(.*)_proj)"}});
  ASSERT_EQ(train(short_run("second", {{"adapter_name_or_path", run_path("first")}, {"save_steps", "2"}})),
            kExitDone);
  EXPECT_THAT(written_config("second").lora_target, testing::Contains("model.layers.1.mlp.up_proj"));
  EXPECT_EQ(written_config("second").lora_target.size(), 7u);
  EXPECT_EQ(
      train(short_run("third", {{"finetuning_type", "lora"}, {"resume", checkpoint("second", 2, true)}})),
      kExitDone);
  expect_equal_states(checkpoint("second", 3, true), checkpoint("third", 3, true));
}

// The base is named by the adapter.
TEST_F(LoraStart, TheBaseNeedsNotBeNamed) {
  make_adapter("first");
  TrainConfig keys = short_run("second", {{"adapter_name_or_path", run_path("first")}, kStandStill});
  keys.model_name_or_path.clear();
  ASSERT_EQ(train(keys), kExitDone);
  EXPECT_EQ(written_config("second").model_name_or_path, fs::absolute(model_folder()).string());
  EXPECT_TRUE(adapter_file("second", 3, true) == adapter_file("first", 3, true));
}

TEST_F(LoraStart, AnAdapterOfAnotherBaseIsRefusedWithItsShapes) {
  make_adapter("first");
  const std::string text = error_of([&] {
    train(short_run("second", {{"model_name_or_path", ""},
                               {"model_preset", "llama-tiny"},
                               {"num_hidden_layers", "2"},
                               {"adapter_name_or_path", run_path("first")}}));
  });
  EXPECT_THAT(text,
              AllOf(HasSubstr("adapter_model.safetensors] does not fit llama-tiny"),
                    HasSubstr("layers.0.self_attn.q_proj.lora_A.weight has shape (4, 64), expected (4, 128)"),
                    HasSubstr("The adapter is for another base model")));
  EXPECT_FALSE(fs::exists(run_path("second")));
}

TEST_F(LoraStart, ADamagedAdapterIsRefused) {
  make_adapter("first");
  const std::string peft = peft_folder(checkpoint("first", 3, true));
  const auto refusal = [&] {
    return error_of([&] { train(short_run("second", {{"adapter_name_or_path", peft}})); });
  };
  const std::string file = peft + "/adapter_model.safetensors";
  fs::resize_file(file, fs::file_size(file) - 8);
  EXPECT_THAT(refusal(), HasSubstr("adapter_model.safetensors"));
  fs::remove(file);
  EXPECT_THAT(refusal(), HasSubstr("holds adapter_config.json but no adapter_model.safetensors"));
  fs::remove(peft + "/adapter_config.json");
  EXPECT_THAT(refusal(), Not(HasSubstr("nothing was thrown")));
  EXPECT_FALSE(fs::exists(run_path("second")));
}

// Adapters of octet know the weights that they were trained on. Who names another base gets a warning; a base that changed
// where it lies is refused.
TEST_F(LoraStart, OtherWeightsOfTheBaseAreNoticed) {
  make_adapter("first");
  const std::string other = folder.path() + "/other";
  fs::copy(model_folder(), other);
  const auto change = [](const std::string& path) {
    std::fstream weights(path + "/model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    weights.seekg(-3, std::ios::end);
    const char byte = static_cast<char>(weights.get());
    weights.seekp(-3, std::ios::end);
    weights.put(static_cast<char>(byte ^ 1));
  };
  change(other);
  ASSERT_FALSE(read_text(other + "/model.safetensors") == read_text(model_folder() + "/model.safetensors"));
  {
    Stderr said;
    ASSERT_EQ(train(short_run("second",
                              {{"model_name_or_path", other}, {"adapter_name_or_path", run_path("first")}})),
              kExitDone);
    EXPECT_THAT(said.text(), AllOf(HasSubstr("base.json"), HasSubstr("the base is now")));
  }
  change(model_folder());
  TrainConfig keys = short_run("third", {{"adapter_name_or_path", run_path("first")}});
  keys.model_name_or_path.clear();
  keys.origins.erase("model_name_or_path");
  EXPECT_THAT(error_of([&] { train(keys); }), HasSubstr("that folder has changed"));
}

// Before anything is loaded, so that --dry_run tells it as well.
TEST_F(LoraStart, ADryRunReadsTheAdapter) {
  make_adapter("first");
  const std::string peft = peft_folder(checkpoint("first", 3, true));
  const std::string file = peft + "/adapter_model.safetensors";
  fs::resize_file(file, fs::file_size(file) - 8);
  EXPECT_THAT(error_of([&] {
                train(short_run("second", {{"adapter_name_or_path", peft}, {"dry_run", "true"}}));
              }),
              HasSubstr("adapter_model.safetensors"));
}

}  // namespace
}  // namespace octet::test
