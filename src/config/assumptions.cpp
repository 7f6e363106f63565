#include "config/assumptions.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/log.h"
#include "base/words.h"

namespace octet {
namespace {

bool says(const std::string& name, std::initializer_list<std::string_view> precisions) {
  const std::vector<std::string> words = lower_words(name);
  return std::ranges::any_of(precisions, [&](std::string_view precision) {
    return std::ranges::find(words, precision) != words.end();
  });
}

// "" if the name fits the precision, or says nothing of it. "bf16-to-fp8" fits all.
std::string other_precision(const std::string& name, Precision precision) {
  const bool fp8 = says(name, {"fp8", "mxfp8", "float8"}), bf16 = says(name, {"bf16", "bfloat16"});
  if (bf16 && !fp8 && precision == Precision::Fp8) return "bf16";
  return fp8 && !bf16 && precision != Precision::Fp8 ? "fp8" : "";
}

}  // namespace

bool assumes_gpt2(const TrainConfig& config) {
  // A run that continues has the model of its checkpoint.
  return !config.is_set("model_preset") && config.model_preset == kAssumedPreset &&
         config.adapter_name_or_path.empty() && config.resume.empty();
}

bool sets_model_sizes(const TrainConfig& config) {
  constexpr const char* kSizes[] = {
      "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
      "head_dim",    "intermediate_size", "vocab_size",          "max_position_embeddings"};
  return std::ranges::any_of(kSizes, [&](const char* key) { return config.is_set(key); });
}

Assumptions assumptions_of(const TrainConfig& config) {
  Assumptions found;
  if (assumes_gpt2(config)) {
    found.notes.push_back(fmt::format(
        "no model is named: {} from random weights (model_preset gpt2); set model_preset or model_name_or_path for "
        "another",
        sets_model_sizes(config) ? "the architecture of GPT-2 in your sizes" : "GPT-2 124M"));
  }
  if (config.penalty_type == TrainConfig::Penalty::ZLoss && !config.is_set("penalty_type")) {
    found.notes.push_back(fmt::format(
        "penalty_weight is {} and no penalty_type is set: it is z_loss; entropy and logit_l2 are the others",
        config_text(config, "penalty_weight")));
  }
  for (const char* key : {"run_name", "wandb_run_name"}) {
    const std::string name = config_text(config, key);
    const std::string said = other_precision(name, config.mixed_precision);
    if (said.empty()) continue;
    found.warnings.push_back(
        fmt::format("{} is {}, but mixed_precision is {}{}; for a run in {}, set mixed_precision to {}", key,
                    name, config_text(config, "mixed_precision"),
                    config.is_set("mixed_precision") ? "" : ", the default", said, said));
  }
  return found;
}

void tell_assumptions(std::span<const TrainConfig> runs) {
  std::set<std::string> said;
  for (const TrainConfig& run : runs) {
    const Assumptions found = assumptions_of(run);
    for (const std::string& text : found.notes) {
      if (said.insert(text).second) log_info("{}", text);
    }
    if (runs.size() > 1) continue;  // their names are not the user's
    for (const std::string& text : found.warnings) log_warning("{}", text);
  }
}

}  // namespace octet
