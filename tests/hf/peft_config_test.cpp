// adapter_config.json: what is read, what is refused, and what is written.

#include "hf/peft_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/error_of.h"
#include "support/tiny_run.h"

namespace octet::test {
namespace {

using Json = nlohmann::ordered_json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

Json minimal() {
  return {{"peft_type", "LORA"},
          {"task_type", "CAUSAL_LM"},
          {"base_model_name_or_path", "org/base"},
          {"r", 8},
          {"lora_alpha", 32},
          {"target_modules", {"q_proj", "v_proj"}}};
}

PeftConfig read(const Json& json) {
  return peft_config_from_json(json.dump(), "config");
}
PeftConfig read_with(const char* field, const Json& value) {
  Json json = minimal();
  json[field] = value;
  return read(json);
}
std::string refusal(const char* field, const Json& value) {
  return error_of([&] { read_with(field, value); });
}

TEST(PeftConfig, FieldsAreRead) {
  Json json = minimal();
  json["lora_dropout"] = 0.05;
  json["use_rslora"] = true;
  json["rank_pattern"] = {{"v_proj", 4},
                          {"layers.0.self_attn.q_proj", 2}};  // not in the order of the alphabet
  json["alpha_pattern"] = {{"q_proj", 1.5}};
  json["layers_to_transform"] = {0, 3};
  const PeftConfig config = read(json);
  EXPECT_EQ(config.base, "org/base");
  EXPECT_EQ(config.lora.rank, 8);
  EXPECT_EQ(config.lora.alpha, 32);
  EXPECT_EQ(config.lora.dropout, 0.05);
  EXPECT_TRUE(config.lora.rslora);
  EXPECT_THAT(config.lora.targets, ElementsAre("q_proj", "v_proj"));
  EXPECT_THAT(config.lora.rank_pattern, ElementsAre(Pair("v_proj", 4), Pair("layers.0.self_attn.q_proj", 2)));
  EXPECT_THAT(config.lora.alpha_pattern, ElementsAre(Pair("q_proj", 1.5)));
  EXPECT_THAT(config.lora.layers, ElementsAre(0, 3));
  EXPECT_THAT(read_with("layers_to_transform", 2).lora.layers, ElementsAre(2));
}

TEST(PeftConfig, AbsentFieldsHaveTheDefaultsOfPeft) {
  const PeftConfig config = peft_config_from_json(R"({"peft_type": "LORA"})", "config");
  EXPECT_EQ(config.lora.rank, 8);
  EXPECT_EQ(config.lora.alpha, 8);
  EXPECT_EQ(config.lora.dropout, 0);
  EXPECT_FALSE(config.lora.rslora);
  EXPECT_EQ(config.base, "");
  const AdapterPlan plan = plan_of(config, two_layers("llama-tiny"), "config");
  ASSERT_EQ(plan.adapters.size(), 4u);
  EXPECT_EQ(plan.adapters[1].module, "model.layers.0.self_attn.v_proj");
  EXPECT_EQ(plan_of(config, two_layers("gpt2-tiny"), "config").adapters[0].module,
            "transformer.h.0.attn.c_attn");
}

TEST(PeftConfig, TargetsAreAListARegularExpressionOrAllLinear) {
  const ModelConfig llama = two_layers("llama-tiny");
  const auto count = [&](const Json& targets) {
    return plan_of(read_with("target_modules", targets), llama, "config").adapters.size();
  };
  EXPECT_EQ(count("all-linear"), 14u);
  EXPECT_EQ(count(".*\\.1\\..*_proj"), 7u);
  EXPECT_EQ(count({"q_proj", "gate_up_proj"}), 2u);  // PEFT skips what the model does not have
  EXPECT_EQ(count({"q_proj", ".*"}), 2u);            // in a list this is a name
  // A string is a regular expression of the whole name, even if it looks like a name.
  EXPECT_THAT(error_of([&] { count("q_proj"); }), HasSubstr("no module of llama-tiny gets an adapter"));
  EXPECT_EQ(count("model.layers.0.self_attn.q_proj"), 1u);
  EXPECT_THAT(error_of([&] {
                count({"q_proj", "lm_head"});
              }),
              HasSubstr("[config] target 'lm_head' includes lm_head: octet has adapters only for"));
  for (const Json& wrong : {Json::array(), Json(3), Json(""), Json({1, 2})})
    EXPECT_THAT(refusal("target_modules", wrong), HasSubstr("expected a list of module names"));
}

TEST(PeftConfig, ValuesThatMeanNothingToAnAdapterAreTaken) {
  for (const auto& [field, value] :
       std::vector<std::pair<const char*, Json>>{{"inference_mode", false},
                                                 {"fan_in_fan_out", nullptr},  // as Axolotl writes it
                                                 {"fan_in_fan_out", true},
                                                 {"auto_mapping", {{"parent_library", "transformers"}}},
                                                 {"init_lora_weights", false},
                                                 {"init_lora_weights", "gaussian"},
                                                 {"init_lora_weights", "eva"},
                                                 {"modules_to_save", Json::array()},
                                                 {"layers_pattern", "layers"},
                                                 {"runtime_config", {{"ephemeral_gpu_offload", false}}},
                                                 {"peft_version", "0.21.2"},
                                                 {"a_field_of_the_future", nullptr},
                                                 {"another", false},
                                                 {"use_dora", nullptr}})
    EXPECT_NO_THROW(read_with(field, value)) << field;
}

TEST(PeftConfig, WhatOctetDoesNotComputeIsRefusedByName) {
  EXPECT_EQ(refusal("use_dora", true),
            "[config] \"use_dora\" is true: octet does not have this feature of adapters");
  EXPECT_EQ(refusal("modules_to_save", {"lm_head"}),
            "[config] \"modules_to_save\" is [\"lm_head\"]: octet does not have this feature of adapters");
  EXPECT_EQ(refusal("bias", "lora_only"),
            "[config] \"bias\" is \"lora_only\": octet reads only adapters without biases (\"none\")");
  EXPECT_EQ(refusal("peft_type", "IA3"),
            "[config] \"peft_type\" is \"IA3\": octet reads only adapters of type LORA");
  EXPECT_EQ(refusal("task_type", "SEQ_CLS"),
            "[config] \"task_type\" is \"SEQ_CLS\": octet reads only adapters of type CAUSAL_LM");
  for (const char* init : {"pissa", "pissa_niter_16", "olora", "corda", "loftq", "lora_ga", "mica"})
    EXPECT_THAT(refusal("init_lora_weights", init),
                HasSubstr(fmt::format("[config] \"init_lora_weights\" is \"{}\": such an adapter may belong "
                                      "to a base with other weights",
                                      init)));
  for (const auto& [field, value] :
       std::vector<std::pair<const char*, Json>>{{"lora_bias", true},
                                                 {"exclude_modules", {"q_proj"}},
                                                 {"trainable_token_indices", {1, 2}},
                                                 {"layer_replication", {{0, 1}}},
                                                 {"alora_invocation_tokens", {1}},
                                                 {"use_qalora", true},
                                                 {"target_parameters", {"x"}},
                                                 {"megatron_config", {{"a", 1}}},
                                                 {"something_new", 3}})
    EXPECT_THAT(refusal(field, value), HasSubstr(fmt::format("[config] \"{}\" is ", field))) << field;
}

TEST(PeftConfig, WrongValuesAreNamed) {
  EXPECT_EQ(refusal("r", "8"), "[config] \"r\" is \"8\", expected a whole number");
  EXPECT_EQ(refusal("r", 1.5), "[config] \"r\" is 1.5, expected a whole number");
  EXPECT_THAT(refusal("r", 18446744073709551615u), HasSubstr("expected a whole number"));
  EXPECT_EQ(refusal("lora_alpha", "x"), "[config] \"lora_alpha\" is \"x\", expected a number");
  EXPECT_EQ(refusal("lora_dropout", 1), "[config] \"lora_dropout\" is 1, expected 0 <= dropout < 1");
  EXPECT_EQ(refusal("use_rslora", 1), "[config] \"use_rslora\" is 1, expected true or false");
  EXPECT_EQ(refusal("base_model_name_or_path", 1),
            "[config] \"base_model_name_or_path\" is 1, expected a string or null");
  EXPECT_EQ(refusal("rank_pattern", 1), "[config] \"rank_pattern\" is 1, expected an object");
  EXPECT_EQ(refusal("rank_pattern", {{"q_proj", "x"}}),
            "[config] \"rank_pattern\" is \"x\", expected a whole number");
  EXPECT_EQ(refusal("alpha_pattern", {{"q_proj", nullptr}}),
            "[config] \"alpha_pattern\" is null, expected a number");
  EXPECT_THAT(error_of([] { peft_config_from_json("[1]", "config"); }), HasSubstr("expected an object"));
  EXPECT_THAT(error_of([] { peft_config_from_json("{\"r\": 1", "config"); }), HasSubstr("[config] line 1"));
  EXPECT_THAT(error_of([] { peft_config_from_json(R"({"r": 1, "r": 2})", "config"); }), HasSubstr("\"r\""));
  const auto plan = [](const char* field, const Json& value) {
    return error_of([&] { plan_of(read_with(field, value), two_layers("llama-tiny"), "config"); });
  };
  EXPECT_THAT(plan("r", 0), HasSubstr("[config] rank 0 for model.layers.0.self_attn.q_proj, expected 1 to"));
  EXPECT_THAT(plan("layers_to_transform", 9), HasSubstr("the model has layers 0 to 1"));
  EXPECT_THAT(plan("rank_pattern", {{"(", 3}}), HasSubstr("'(' is not a regular expression"));
}

TEST(PeftConfig, LayersNeedAListOfTargets) {
  Json json = minimal();
  json["target_modules"] = ".*q_proj";
  json["layers_to_transform"] = {0};
  EXPECT_THAT(error_of([&] { read(json); }), HasSubstr("PEFT allows this only if target_modules is a list"));
  json = minimal();
  json["layers_to_transform"] = {0};
  json["layers_pattern"] = "blocks";
  EXPECT_THAT(error_of([&] { read(json); }), HasSubstr("\"layers_pattern\" is \"blocks\""));
}

// A plan that is written and read back is the same plan, whatever its settings were.
TEST(PeftConfig, APlanIsWrittenSoThatItIsReadBack) {
  const std::vector<std::pair<const char*, LoraConfig>> cases = {
      {"llama-tiny", {}},
      {"llama-tiny", {.rank = 3, .alpha = 0.1, .dropout = 0.25, .rslora = true, .targets = {"q_proj"}}},
      {"llama-tiny", {.targets = {".*\\.(0\\.self_attn\\.q|1\\.mlp\\.up)_proj"}}},  // kinds in other layers
      {"llama-tiny", {.targets = {"o_proj", "up_proj"}, .layers = {1}}},
      {"llama-tiny", {.rank_pattern = {{"layers.1.mlp.up_proj", 2}, {"q_proj", 5}}}},
      {"llama-tiny", {.alpha_pattern = {{"k_proj", 1}, {"layers.0.*", 7.5}}}},
      {"gpt2-tiny", {}},
      {"gpt2-tiny", {.targets = {"attn.c_proj"}}},
      {"gpt2-tiny", {.targets = {"c_proj"}, .rank_pattern = {{"mlp.c_proj", 4}}}},
  };
  for (const auto& [preset, lora] : cases) {
    const ModelConfig model = two_layers(preset);
    const AdapterPlan plan = plan_adapters(model, lora);
    const std::string text = to_peft_config(model, plan, "/models/base");
    const PeftConfig config = peft_config_from_json(text, "written");
    EXPECT_EQ(config.base, "/models/base");
    const AdapterPlan again = plan_of(config, model, "written");
    EXPECT_EQ(again.dropout, plan.dropout);
    ASSERT_EQ(again.adapters.size(), plan.adapters.size()) << text;
    for (size_t i = 0; i < plan.adapters.size(); ++i) {
      EXPECT_EQ(again.adapters[i].module, plan.adapters[i].module) << text;
      EXPECT_EQ(again.adapters[i].rank, plan.adapters[i].rank) << text;
      EXPECT_EQ(again.adapters[i].alpha, plan.adapters[i].alpha) << text;
      EXPECT_EQ(again.adapters[i].rslora, plan.adapters[i].rslora) << text;
    }
  }
}

// Older versions of PEFT stop at fields they do not know, and other programs compare names of modules.
TEST(PeftConfig, WrittenTextHasShortNamesAndOldFields) {
  const ModelConfig gpt2 = two_layers("gpt2-tiny");
  const Json json = Json::parse(to_peft_config(gpt2, plan_adapters(gpt2, {.rank = 4, .alpha = 8}), ""));
  const Json expected = Json::parse(R"({
      "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": null, "revision": null,
      "inference_mode": true, "r": 4, "lora_alpha": 8,
      "target_modules": ["c_attn", "attn.c_proj", "c_fc", "mlp.c_proj"], "layers_to_transform": null,
      "layers_pattern": null, "rank_pattern": {}, "alpha_pattern": {}, "lora_dropout": 0.0, "use_rslora": false,
      "use_dora": false, "bias": "none", "fan_in_fan_out": true, "modules_to_save": null,
      "init_lora_weights": true})");
  EXPECT_EQ(json, expected) << json.dump(2);
  const ModelConfig llama = two_layers("llama-tiny");
  const Json written = Json::parse(to_peft_config(
      llama, plan_adapters(llama, {.targets = {"q_proj", "v_proj"}, .rank_pattern = {{"v_proj", 2}}}), "x"));
  EXPECT_EQ(written["target_modules"], Json({"q_proj", "v_proj"}));
  EXPECT_EQ(written["rank_pattern"], Json({{"v_proj", 2}})) << written.dump(2);
  EXPECT_EQ(written["fan_in_fan_out"], false);
}

// A folder may have any bytes in its name.
TEST(PeftConfig, ABaseWhoseNameIsNotUtf8IsWrittenWithReplacements) {
  const ModelConfig model = two_layers("llama-tiny");
  const std::string text = to_peft_config(model, plan_adapters(model, {}), "/models/b\xffse");
  EXPECT_EQ(peft_config_from_json(text, "written").base, "/models/b\uFFFDse");
}

// The settings are those that the text gives.
TEST(PeftConfig, SettingsOfAPlanAreThoseOfItsText) {
  const ModelConfig model = two_layers("llama-tiny");
  const AdapterPlan plan = plan_adapters(model, {.rank = 4,
                                                 .alpha = -8,
                                                 .dropout = 0.25,
                                                 .rslora = true,
                                                 .targets = {"q_proj", "up_proj"},
                                                 .rank_pattern = {{"up_proj", 6}},
                                                 .alpha_pattern = {{"q_proj", 2.5}},
                                                 .layers = {1}});
  const LoraConfig lora = lora_of(model, plan);
  const LoraConfig read = peft_config_from_json(to_peft_config(model, plan, ""), "written").lora;
  EXPECT_EQ(lora.rank, 4);
  EXPECT_EQ(lora.rank, read.rank);
  EXPECT_EQ(lora.alpha, read.alpha);
  EXPECT_EQ(lora.dropout, 0.25);
  EXPECT_EQ(lora.dropout, read.dropout);
  EXPECT_TRUE(lora.rslora && read.rslora);
  EXPECT_EQ(lora.targets, (std::vector<std::string>{"q_proj", "up_proj"}));
  EXPECT_EQ(lora.targets, read.targets);
  EXPECT_EQ(lora.rank_pattern, read.rank_pattern);
  EXPECT_EQ(lora.alpha_pattern, read.alpha_pattern);
  EXPECT_EQ(lora.layers, (std::vector<int64_t>{1}));
  EXPECT_EQ(lora.layers, read.layers);
}

}  // namespace
}  // namespace octet::test
