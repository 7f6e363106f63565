// Which modules get an adapter, and of what rank: the rules of PEFT.

#include "model/adapters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "support/error_of.h"
#include "support/tiny_run.h"

namespace octet {
namespace {

using test::two_layers;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> modules_of(const AdapterPlan& plan) {
  std::vector<std::string> names;
  for (const Adapter& adapter : plan.adapters) names.push_back(adapter.module);
  return names;
}

AdapterPlan plan_for(const char* preset, std::vector<std::string> targets) {
  return plan_adapters(two_layers(preset), {.targets = std::move(targets)});
}

std::string refusal(const char* preset, LoraConfig lora) {
  return error_of([&] { plan_adapters(two_layers(preset), lora); });
}

TEST(Adapters, AllAreTheMatricesOfTheLayersInTheirOrder) {
  EXPECT_THAT(
      modules_of(plan_for("gpt2-tiny", {"all"})),
      ElementsAre("transformer.h.0.attn.c_attn", "transformer.h.0.attn.c_proj", "transformer.h.0.mlp.c_fc",
                  "transformer.h.0.mlp.c_proj", "transformer.h.1.attn.c_attn", "transformer.h.1.attn.c_proj",
                  "transformer.h.1.mlp.c_fc", "transformer.h.1.mlp.c_proj"));
  const ModelConfig llama = two_layers("llama-tiny");
  const std::vector<std::string> all = adaptable_modules(llama);
  EXPECT_EQ(all.size(), 14u);
  EXPECT_EQ(all[0], "model.layers.0.self_attn.q_proj");
  EXPECT_EQ(all[13], "model.layers.1.mlp.down_proj");
  EXPECT_EQ(modules_of(plan_for("llama-tiny", {"all"})), all);
  EXPECT_EQ(modules_of(plan_for("llama-tiny", {"all-linear"})), all);
}

TEST(Adapters, ANameMatchesTheEndOfAModule) {
  EXPECT_THAT(modules_of(plan_for("llama-tiny", {"v_proj", "q_proj"})),
              ElementsAre("model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.v_proj",
                          "model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.v_proj"));
  // Both of GPT-2's c_proj, or one of them.
  EXPECT_EQ(plan_for("gpt2-tiny", {"c_proj"}).adapters.size(), 4u);
  EXPECT_THAT(modules_of(plan_for("gpt2-tiny", {"attn.c_proj"})),
              ElementsAre("transformer.h.0.attn.c_proj", "transformer.h.1.attn.c_proj"));
  EXPECT_THAT(modules_of(plan_for("llama-tiny", {"model.layers.1.mlp.up_proj"})),
              ElementsAre("model.layers.1.mlp.up_proj"));
  // A part of a name is no end of it.
  EXPECT_THAT(refusal("llama-tiny", {.targets = {"proj"}}), HasSubstr("target 'proj' matches no module"));
}

TEST(Adapters, AnEntryWithSpecialCharactersIsARegularExpressionOfTheWholeName) {
  EXPECT_THAT(modules_of(plan_for("llama-tiny", {R"(.*\.0\.self_attn\.(q|k)_proj)"})),
              ElementsAre("model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj"));
  EXPECT_THAT(refusal("llama-tiny", {.targets = {"(q|k)_proj"}}),
              HasSubstr("target '(q|k)_proj' matches no module"));
  // As Unsloth writes it.
  const char* unsloth =
      R"((?:.*?(?:language|text).*?(?:self_attn|mlp).*?(?:k_proj|v_proj|q_proj).*?)|(?:\bmodel\.layers\.[\d]{1,}\.(?:self_attn|mlp)\.(?:(?:k_proj|v_proj))))";
  EXPECT_EQ(plan_for("llama-tiny", {unsloth}).adapters.size(), 4u);
}

TEST(Adapters, APatternThatWouldBacktrackForeverEnds) {
  EXPECT_THAT(refusal("llama-tiny", {.targets = {"((([a-z._]*)*)*)*#"}}), HasSubstr("matches no module"));
}

TEST(Adapters, ATargetThatMatchesNothingListsWhatThereIs) {
  EXPECT_EQ(refusal("llama-tiny", {.targets = {"q_proj", "c_attn"}}),
            "[lora] target 'c_attn' matches no module of llama-tiny; its modules are q_proj, k_proj, v_proj, "
            "o_proj, gate_proj, up_proj, down_proj, or all");
  EXPECT_THAT(refusal("gpt2-tiny", {.targets = {"q_proj"}}),
              HasSubstr("its modules are c_attn, c_proj, c_fc, or all"));
  EXPECT_THAT(refusal("llama-tiny", {.targets = {}}), HasSubstr("no module of llama-tiny gets an adapter"));
  EXPECT_THAT(refusal("llama-tiny", {.targets = {"(["}}),
              HasSubstr("'([' is not a regular expression that octet can read"));
  EXPECT_THAT(refusal("llama-tiny", {.targets = {std::string(5000, '(')}}),
              HasSubstr("is too long, expected at most 4096 characters with counts written out"));
  EXPECT_THAT(refusal("llama-tiny", {.targets = {"(?:(?:a?){90}){90}"}}), HasSubstr("is too long"));
  EXPECT_THAT(refusal("llama-tiny", {.targets = {".*[a-z]{2,9999999999999999999}"}}),
              HasSubstr("is too long"));
}

TEST(Adapters, EmbeddingAndHeadAreRefused) {
  for (const char* target : {"lm_head", "embed_tokens", "model.embed_tokens", ".*"}) {
    EXPECT_THAT(refusal("llama-tiny", {.targets = {target}}),
                HasSubstr("octet has adapters only for the matrices of the layers"));
  }
  EXPECT_THAT(refusal("gpt2-tiny", {.targets = {"wte"}}), HasSubstr("target 'wte' includes transformer.wte"));
  EXPECT_THAT(refusal("gpt2-tiny", {.targets = {"wpe"}}), HasSubstr("target 'wpe' includes transformer.wpe"));
}

TEST(Adapters, PatternsSetRankAndAlphaAndTheFirstMatchCounts) {
  const AdapterPlan plan = plan_adapters(
      two_layers("llama-tiny"),
      {.rank = 8,
       .alpha = 16,
       .targets = {"q_proj", "down_proj"},
       .rank_pattern = {{"layers.1.self_attn.q_proj", 2}, {"q_proj", 4}, {"^model.layers.0.mlp.*", 3}},
       .alpha_pattern = {{"q_proj", 5.5}}});
  ASSERT_EQ(plan.adapters.size(), 4u);
  const auto check = [&](const char* module, int64_t rank, double alpha) {
    const Adapter* adapter = plan.find(module);
    ASSERT_NE(adapter, nullptr) << module;
    EXPECT_EQ(adapter->rank, rank) << module;
    EXPECT_EQ(adapter->alpha, alpha) << module;
    EXPECT_EQ(adapter->scale(), static_cast<float>(alpha / static_cast<double>(rank))) << module;
  };
  check("model.layers.0.self_attn.q_proj", 4, 5.5);
  check("model.layers.1.self_attn.q_proj", 2, 5.5);
  check("model.layers.0.mlp.down_proj", 3, 16);
  check("model.layers.1.mlp.down_proj", 8, 16);
  EXPECT_EQ(plan.find("model.layers.0.mlp.up_proj"), nullptr);
}

TEST(Adapters, RsloraDividesByTheRootOfTheRank) {
  const Adapter adapter{.rank = 32, .alpha = 16, .rslora = true};
  EXPECT_EQ(adapter.scale(), static_cast<float>(16 / std::sqrt(32.0)));
}

TEST(Adapters, OnlyTheseLayers) {
  EXPECT_THAT(
      modules_of(plan_adapters(two_layers("llama-tiny"), {.targets = {"q_proj", "o_proj"}, .layers = {1}})),
      ElementsAre("model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.o_proj"));
  EXPECT_EQ(refusal("llama-tiny", {.layers = {2}}),
            "[lora] layer 2 is to get adapters, but the model has layers 0 to 1");
}

TEST(Adapters, ImpossibleRanksAreRefused) {
  EXPECT_EQ(refusal("llama-tiny", {.rank = 0, .targets = {"q_proj"}}),
            "[lora] rank 0 for model.layers.0.self_attn.q_proj, expected 1 to 4096");
  EXPECT_THAT(refusal("llama-tiny", {.rank_pattern = {{"k_proj", -3}}}),
              HasSubstr("rank -3 for model.layers.0.self_attn.k_proj"));
  EXPECT_THAT(refusal("llama-tiny", {.alpha = NAN}), HasSubstr("alpha nan for"));
  EXPECT_EQ(refusal("llama-tiny", {.rank = 4097, .targets = {"q_proj"}}),
            "[lora] rank 4097 for model.layers.0.self_attn.q_proj, expected 1 to 4096");
  for (const double alpha : {2e6, -2e6}) {
    EXPECT_EQ(
        refusal("llama-tiny", {.alpha = alpha}),
        fmt::format("[lora] alpha {} for model.layers.0.self_attn.q_proj, expected a number from -1000000 to "
                    "1000000",
                    alpha));
  }
  EXPECT_EQ(plan_adapters(two_layers("llama-tiny"), {.alpha = -8}).adapters.front().alpha, -8);
}

TEST(Adapters, DefaultTargetsAreThoseOfPeft) {
  EXPECT_THAT(peft_default_targets(model_preset("gpt2-tiny")), ElementsAre("c_attn"));
  for (const char* preset : {"llama-tiny", "qwen2.5-tiny", "qwen3-tiny"})
    EXPECT_THAT(peft_default_targets(model_preset(preset)), ElementsAre("q_proj", "v_proj"));
}

TEST(Adapters, TensorsHaveTheNamesOfPeft) {
  EXPECT_EQ(peft_tensor_name("model.layers.0.self_attn.q_proj", 'A'),
            "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight");
}

}  // namespace
}  // namespace octet
