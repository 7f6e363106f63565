#pragma once

#include <string>
#include <string_view>

#include "model/adapters.h"

namespace octet {

// The files of a PEFT folder.
constexpr const char* kAdapterConfigName = "adapter_config.json";
constexpr const char* kAdapterWeightsName = "adapter_model.safetensors";

// An adapter_config.json.
struct PeftConfig {
  LoraConfig lora;       // without targets: what PEFT takes for the model's family
  std::string base;      // base_model_name_or_path; empty: null
  std::string revision;  // of the base on the hub; empty: null
};

// Every field must be known. Error, naming the field and its value, for features that change what an adapter computes
// and that octet does not have: DoRA, biases, modules_to_save and others. `place` names the file in errors.
PeftConfig peft_config_from_json(std::string_view text, const std::string& place);

// The modules of `base` that the adapter is for. Targets without a module are skipped, as PEFT does.
AdapterPlan plan_of(const PeftConfig& config, const ModelConfig& base, const std::string& place);

// The inverse: settings that give this plan again, with the most frequent rank and alpha.
LoraConfig lora_of(const ModelConfig& config, const AdapterPlan& plan);

// The text of an adapter_config.json with these settings, with fields that PEFT has had since 0.10.
// `base` is the name of the base model; empty: null.
std::string to_peft_config(const ModelConfig& config, const AdapterPlan& plan, const std::string& base);

}  // namespace octet
