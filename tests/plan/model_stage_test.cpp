// Which model the keys of a run name.

#include "plan/model_stage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "config/config.h"
#include "support/captured_log.h"
#include "support/error_of.h"
#include "support/model_fixture.h"
#include "support/process.h"

namespace octet::test {
namespace {

using testing::HasSubstr;

struct ModelStage : testing::Test {
  std::string path(const std::string& name) const { return join_path(folder.path(), name); }
  TrainConfig config(std::vector<std::pair<std::string, std::string>> keys) {
    std::vector<KeySetting> flags;
    for (auto& [name, value] : keys) flags.push_back({name, {value}});
    return load_train_config("", flags);
  }
  static TrainConfig keys_with_model(TrainConfig keys, const ModelConfig& model) {
    take_model(keys, model);
    return keys;
  }
  TemporaryFolder folder;
};

// A model that was taught a template is trained further with it.
TEST_F(ModelStage, AutoTakesTheChatTemplateOfTheModel) {
  const auto keys = [&](const std::string& jinja, TrainConfig given) {
    folder.write("tokenizer_config.json", nlohmann::json({{"chat_template", jinja}}).dump());
    take_chat(given, ModelFolder{.folder = folder.path()});
    return given;
  };
  const std::string qwen3 = "<|im_start|>{{ m.reasoning_content }}</think><|im_end|>";
  EXPECT_EQ(keys(qwen3, config({})).chat_template, ChatTemplate::Qwen3);
  EXPECT_EQ(keys(qwen3, config({{"chat_template", "alpaca"}})).chat_template, ChatTemplate::Alpaca);
  EXPECT_EQ(keys(qwen3, config({{"tokenizer", "bytes"}})).chat_template, ChatTemplate::Auto);
  // A template belongs to its tokenizer, so the folder of a given tokenizer counts, with a model or without one.
  TrainConfig own = config({{"tokenizer", folder.path()}});
  take_chat(own, std::nullopt);
  EXPECT_EQ(own.chat_template, ChatTemplate::Qwen3);
  const TemporaryFolder plain;
  EXPECT_EQ(keys(qwen3, config({{"tokenizer", plain.path()}})).chat_template, ChatTemplate::Auto);
  const TrainConfig chatml = keys("<|im_start|>{{ m.content }}<|im_end|>", config({}));
  EXPECT_EQ(chatml.chat_template, ChatTemplate::Chatml);
  EXPECT_EQ(chatml.default_system, "");  // not Qwen's
  const CapturedLog log;
  EXPECT_EQ(keys("{{ 'Human: ' }}", config({})).chat_template, ChatTemplate::Auto);
  EXPECT_THAT(log.messages, testing::ElementsAre(HasSubstr("does not know the chat template in ")));
}

TEST_F(ModelStage, SizesStandInTheResolvedConfig) {
  TrainConfig given = config({{"model_preset", "llama"},
                              {"hidden_size", "64"},
                              {"num_hidden_layers", "2"},
                              {"num_attention_heads", "4"},
                              {"vocab_size", "300"},
                              {"max_position_embeddings", "96"}});
  const ModelConfig model = choose_model(given).config;
  const TrainConfig keys = keys_with_model(given, model);
  EXPECT_EQ(model.head_dim, 16);
  EXPECT_EQ(keys.head_dim, 16);
  EXPECT_EQ(keys.num_key_value_heads, 4);
  EXPECT_EQ(keys.intermediate_size, model.ffn);
  EXPECT_EQ(keys.max_seq_length, 96);  // the default is no more than the model has
  EXPECT_EQ(config_text(keys, "tie_word_embeddings"), "false");

  // And they give the same model again.
  folder.write("config.yaml", to_yaml(keys));
  TrainConfig again = load_train_config(path("config.yaml"), {});
  EXPECT_EQ(choose_model(again).config, model);
  EXPECT_EQ(to_yaml(keys_with_model(again, model)), to_yaml(keys));
}

TEST_F(ModelStage, APresetWithoutSizesNamesNone) {
  const TrainConfig given = config({{"model_preset", "gpt2-tiny"}});
  const TrainConfig keys = keys_with_model(given, choose_model(given).config);
  EXPECT_EQ(keys.hidden_size, 0);
  EXPECT_EQ(config_text(keys, "tie_word_embeddings"), "auto");
}

TEST_F(ModelStage, AConfigWithoutWeightsIsARandomStart) {
  RandomModel model(two_layers("mistral-tiny"), DType::F32);
  model.write_folder(path("whole"));
  std::filesystem::create_directory(path("bare"));
  std::filesystem::copy(path("whole/config.json"), path("bare/config.json"));
  for (const char* name : {"bare", "bare/config.json", "whole/config.json"}) {
    TrainConfig keys = config({{"model_name_or_path", path(name)}, {"vocab_size", "400"}});
    const ModelChoice choice = choose_model(keys);
    EXPECT_FALSE(choice.start->has_weights) << name;
    EXPECT_EQ(choice.config.vocab, 400) << name;
    EXPECT_EQ(choice.config.window, 16) << name;
  }
  TrainConfig keys = config({{"model_name_or_path", path("whole")}});
  EXPECT_TRUE(choose_model(keys).start->has_weights);
  // Weights in a format that octet does not read are not ignored.
  folder.write("bare/pytorch_model.bin", "x");
  keys = config({{"model_name_or_path", path("bare")}});
  EXPECT_TRUE(choose_model(keys).start->has_weights);
}

TEST_F(ModelStage, SizesOverWeightsAreRefusedByName) {
  RandomModel(two_layers("llama-tiny"), DType::F32).write_folder(path("model"));
  TrainConfig keys = config({{"model_name_or_path", path("model")},
                             {"hidden_size", "64"},
                             {"vocab_size", "300"},
                             {"tie_word_embeddings", "true"}});
  EXPECT_THAT(
      error_of([&] { choose_model(keys); }),
      HasSubstr("hidden_size, vocab_size, tie_word_embeddings cannot be set with model_name_or_path"));
}

TEST_F(ModelStage, AResumedRunKeepsItsSizes) {
  const ModelConfig model = resolve_model("llama-tiny", {.layers = 2, .width = 64, .heads = 2});
  RandomModel saved(model, DType::F32);
  CheckpointStore store(posix_env(), path("checkpoints"));
  const Checkpoint checkpoint = saved.save(store, 3, 1.5);
  TrainConfig keys = config({{"model_preset", "llama-tiny"},
                             {"num_hidden_layers", "2"},
                             {"hidden_size", "64"},
                             {"num_attention_heads", "2"}});
  EXPECT_EQ(choose_model(keys, checkpoint).config.width, 64);
  EXPECT_EQ(keys_with_model(keys, model).intermediate_size, model.ffn);
  keys.num_hidden_layers = 3;
  EXPECT_THAT(error_of([&] { choose_model(keys, checkpoint); }),
              testing::MatchesRegex("num_hidden_layers is 3, but the model of .* has 2"));
  keys = config({{"model_preset", "llama-tiny"}});
  EXPECT_THAT(
      error_of([&] { choose_model(keys, checkpoint); }),
      testing::MatchesRegex(
          "model_preset llama-tiny is not the model of .*: hidden_size is 128 in the preset and 64 there"));
}

TEST_F(ModelStage, TheLengthMustFitTheModel) {
  for (const char* preset : {"gpt2-tiny", "llama-tiny"}) {
    TrainConfig keys = config({{"model_preset", preset}, {"max_seq_length", "100000"}});
    EXPECT_THROW(check_length(choose_model(keys), keys.max_seq_length), ConfigError);
    keys =
        config({{"model_preset", preset}, {"max_seq_length", "2048"}, {"max_position_embeddings", "2048"}});
    check_length(choose_model(keys), keys.max_seq_length);
    EXPECT_EQ(choose_model(keys).config.max_positions, 2048);
  }
}

}  // namespace
}  // namespace octet::test
