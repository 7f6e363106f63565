// Which model the keys of a run name.

#include "plan/model_setup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "support/error_of.h"
#include "support/model_fixture.h"
#include "support/process.h"

namespace octet::test {
namespace {

using testing::HasSubstr;

struct ModelSetup : testing::Test {
  std::string path(const std::string& name) const { return join_path(folder.path(), name); }
  TrainConfig config(std::vector<std::pair<std::string, std::string>> keys) {
    std::vector<KeySetting> flags;
    for (auto& [name, value] : keys) flags.push_back({name, {value}});
    return load_train_config("", flags);
  }
  TemporaryFolder folder;
};

TEST_F(ModelSetup, SizesStandInTheResolvedConfig) {
  TrainConfig keys = config({{"model_preset", "llama"},
                             {"hidden_size", "64"},
                             {"num_hidden_layers", "2"},
                             {"num_attention_heads", "4"},
                             {"vocab_size", "300"},
                             {"max_position_embeddings", "96"}});
  const ModelConfig model = choose_model(keys, nullptr).model;
  EXPECT_EQ(model.head_dim, 16);
  EXPECT_EQ(keys.head_dim, 16);
  EXPECT_EQ(keys.num_key_value_heads, 4);
  EXPECT_EQ(keys.intermediate_size, model.ffn);
  EXPECT_EQ(keys.max_seq_length, 96);  // the default is no more than the model has
  EXPECT_EQ(config_text(keys, "tie_word_embeddings"), "false");

  // And they give the same model again.
  folder.write("config.yaml", to_yaml(keys));
  TrainConfig again = load_train_config(path("config.yaml"), {});
  EXPECT_EQ(choose_model(again, nullptr).model, model);
  EXPECT_EQ(to_yaml(again), to_yaml(keys));
}

TEST_F(ModelSetup, APresetWithoutSizesNamesNone) {
  TrainConfig keys = config({{"model_preset", "gpt2-tiny"}});
  choose_model(keys, nullptr);
  EXPECT_EQ(keys.hidden_size, 0);
  EXPECT_EQ(config_text(keys, "tie_word_embeddings"), "auto");
}

TEST_F(ModelSetup, AConfigWithoutWeightsIsARandomStart) {
  RandomModel model(two_layers("mistral-tiny"), DType::F32);
  model.write_folder(path("whole"));
  std::filesystem::create_directory(path("bare"));
  std::filesystem::copy(path("whole/config.json"), path("bare/config.json"));
  for (const char* name : {"bare", "bare/config.json", "whole/config.json"}) {
    TrainConfig keys = config({{"model_name_or_path", path(name)}, {"vocab_size", "400"}});
    const ModelChoice choice = choose_model(keys, nullptr);
    EXPECT_FALSE(choice.start->has_weights) << name;
    EXPECT_EQ(choice.model.vocab, 400) << name;
    EXPECT_EQ(choice.model.window, 16) << name;
  }
  TrainConfig keys = config({{"model_name_or_path", path("whole")}});
  EXPECT_TRUE(choose_model(keys, nullptr).start->has_weights);
  // Weights in a format that octet does not read are not ignored.
  folder.write("bare/pytorch_model.bin", "x");
  keys = config({{"model_name_or_path", path("bare")}});
  EXPECT_TRUE(choose_model(keys, nullptr).start->has_weights);
}

TEST_F(ModelSetup, SizesOverWeightsAreRefusedByName) {
  RandomModel(two_layers("llama-tiny"), DType::F32).write_folder(path("model"));
  TrainConfig keys = config({{"model_name_or_path", path("model")},
                             {"hidden_size", "64"},
                             {"vocab_size", "300"},
                             {"tie_word_embeddings", "true"}});
  EXPECT_THAT(
      error_of([&] { choose_model(keys, nullptr); }),
      HasSubstr("hidden_size, vocab_size, tie_word_embeddings cannot be given with model_name_or_path"));
}

TEST_F(ModelSetup, AResumedRunKeepsItsSizes) {
  const ModelConfig model = resolve_model("llama-tiny", {.layers = 2, .width = 64, .heads = 2});
  RandomModel saved(model, DType::F32);
  CheckpointStore store(posix_env(), path("checkpoints"));
  const Checkpoint checkpoint = saved.save(store, 3, 1.5);
  TrainConfig keys = config({{"model_preset", "llama-tiny"},
                             {"num_hidden_layers", "2"},
                             {"hidden_size", "64"},
                             {"num_attention_heads", "2"}});
  EXPECT_EQ(choose_model(keys, &checkpoint).model.width, 64);
  EXPECT_EQ(keys.intermediate_size, model.ffn);
  keys.num_hidden_layers = 3;
  EXPECT_THAT(error_of([&] { choose_model(keys, &checkpoint); }),
              HasSubstr("num_hidden_layers 3 is not the 2 of the model of"));
  keys = config({{"model_preset", "llama-tiny"}});
  EXPECT_THAT(error_of([&] { choose_model(keys, &checkpoint); }),
              HasSubstr("model_preset llama-tiny (4 layers of width 128) is not the model of"));
}

TEST_F(ModelSetup, TheLengthMustFitTheModel) {
  for (const char* preset : {"gpt2-tiny", "llama-tiny"}) {
    TrainConfig keys = config({{"model_preset", preset}, {"max_seq_length", "100000"}});
    EXPECT_THROW(choose_model(keys, nullptr), ConfigError);
    keys =
        config({{"model_preset", preset}, {"max_seq_length", "2048"}, {"max_position_embeddings", "2048"}});
    EXPECT_EQ(choose_model(keys, nullptr).model.max_positions, 2048);
  }
}

}  // namespace
}  // namespace octet::test
