// Models of any size: sizes over a preset or a family, and lengths that a model is made for.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/family.h"
#include "support/error_of.h"

namespace octet {
namespace {

using testing::HasSubstr;

TEST(ModelSizesTest, NoSizesLeaveThePresetAsItIs) {
  for (const std::string& name : model_preset_names()) EXPECT_EQ(resolve_model(name, {}), model_preset(name));
}

TEST(ModelSizesTest, OverAFamilyTheRestFollows) {
  const ModelConfig llama =
      resolve_model("llama", {.vocab = 300, .layers = 3, .width = 192, .heads = 6, .tied_head = true});
  EXPECT_EQ(llama.family->name, "llama");
  EXPECT_EQ(llama.kv_heads, 6);
  EXPECT_EQ(llama.head_dim, 32);
  EXPECT_EQ(llama.ffn, 512);  // 8/3 of 192, in whole 128s
  EXPECT_TRUE(llama.tied_head);
  EXPECT_FALSE(llama.learned_positions);

  const ModelConfig qwen3 = resolve_model(
      "qwen3",
      {.vocab = 300, .layers = 1, .width = 64, .heads = 4, .kv_heads = 2, .head_dim = 24, .ffn = 80});
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_EQ(qwen3.kv_heads, 2);
  EXPECT_EQ(qwen3.head_dim, 24);
  EXPECT_EQ(qwen3.ffn, 80);
}

TEST(ModelSizesTest, OverAPresetOnlyWhatFollowsChanges) {
  const ModelConfig gpt2 = resolve_model("gpt2", {.width = 128, .heads = 4});
  EXPECT_EQ(gpt2.layers, 12);
  EXPECT_EQ(gpt2.kv_heads, 4);
  EXPECT_EQ(gpt2.head_dim, 32);
  EXPECT_EQ(gpt2.ffn, 512);
  EXPECT_EQ(resolve_model("gpt2-tiny", {.heads = 128}).head_dim, 1);  // odd, but valid without a rotation

  // A padding token that a smaller vocabulary does not have.
  ModelConfig padded = resolve_model("llama-tiny", {});
  padded.pad_id = static_cast<int32_t>(padded.vocab - 1);
  EXPECT_EQ(resolve_model(padded, {.layers = 7}).pad_id, padded.pad_id);
  EXPECT_FALSE(resolve_model(padded, {.vocab = padded.vocab / 2}).pad_id);
  const ModelConfig deeper = resolve_model("llama-tiny", {.layers = 7, .max_positions = 4096});
  EXPECT_EQ(deeper.ffn, model_preset("llama-tiny").ffn);
  EXPECT_EQ(deeper.kv_heads, 2);
  EXPECT_EQ(deeper.max_positions, 4096);
  // The head width of Qwen3 does not follow from the others.
  EXPECT_EQ(resolve_model("qwen3-0.6b", {.width = 512}).head_dim, 128);
  EXPECT_EQ(resolve_model("qwen3-8b", {.heads = 16}).head_dim, 128);
  EXPECT_EQ(resolve_model("qwen3-tiny", {.heads = 2}).head_dim, 48);
  const ModelConfig qwen3 = resolve_model("qwen3", {.vocab = 300, .layers = 2, .width = 256, .heads = 4});
  EXPECT_EQ(qwen3.head_dim, 128);
}

TEST(ModelSizesTest, WhatIsNoModelIsRefusedByName) {
  EXPECT_THAT(error_of([] { resolve_model("mistral", {.layers = 2, .heads = 4}); }),
              AllOf(HasSubstr("give hidden_size, vocab_size"), HasSubstr("mistral-7b-v0.3")));
  EXPECT_THAT(error_of([] { resolve_model("llama-tiny", {.width = 100, .heads = 3}); }),
              HasSubstr("hidden_size 100 is not a multiple of num_attention_heads 3"));
  EXPECT_THAT(error_of([] { resolve_model("llama-tiny", {.heads = 128}); }),
              HasSubstr("expected an even number"));
  EXPECT_THAT(error_of([] { resolve_model("llama-tiny", {.kv_heads = 3}); }),
              HasSubstr("4 heads are not a multiple of 3 key/value heads"));
  EXPECT_THAT(error_of([] { resolve_model("gpt2-tiny", {.kv_heads = 2}); }),
              HasSubstr("is not a model that config.json of type gpt2 can describe"));
  EXPECT_THAT(error_of([] { resolve_model("qwen4", {}); }),
              AllOf(HasSubstr("did you mean 'qwen"),
                    HasSubstr("which also need sizes: llama, qwen2, qwen3, mistral")));
}

TEST(SequenceLength, IsRefusedBeyondTheModelsPositions) {
  check_sequence_length(model_preset("gpt2"), "max_seq_length", 1024);
  check_sequence_length(model_preset("llama-3.1-8b"), "max_seq_length", 131072);
  EXPECT_THAT(error_of([] { check_sequence_length(model_preset("gpt2"), "max_seq_length", 1025); }),
              AllOf(HasSubstr("max_seq_length 1025 is more than the 1024 positions of model gpt2"),
                    HasSubstr("one learned vector per position")));
  EXPECT_THAT(error_of([] { check_sequence_length(model_preset("gpt2"), "max_seq_length", 1025, true); }),
              HasSubstr("of model gpt2; set max_position_embeddings 1025 to make it longer"));
  EXPECT_THAT(error_of([] { check_sequence_length(model_preset("llama-tiny"), "max_seq_length", 100000); }),
              AllOf(HasSubstr("more than the 1024 positions of model llama-tiny (it has no rope_scaling)"),
                    HasSubstr("never trained on later positions")));
  EXPECT_THAT(error_of([] { check_sequence_length(model_preset("llama-3.2-1b"), "--n", 1 << 20); }),
              HasSubstr("rope_scaling of type llama3 with factor 32"));
}

}  // namespace
}  // namespace octet
