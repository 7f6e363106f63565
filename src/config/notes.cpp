#include "config/notes.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "base/log.h"
#include "base/words.h"
#include "ops/ops.h"

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

bool assumes_gpt2(const ModelKeys& keys) {
  // A run that continues has the model of its checkpoint.
  return !keys.is_set("model_preset") && keys.model_preset == kAssumedPreset &&
         keys.adapter_name_or_path.empty() && keys.resume.empty();
}

bool sets_model_sizes(const ModelKeys& keys) {
  constexpr const char* kSizes[] = {
      "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
      "head_dim",    "intermediate_size", "vocab_size",          "max_position_embeddings"};
  return std::ranges::any_of(kSizes, [&](const char* key) { return keys.is_set(key); });
}

Assumptions assumptions_of(const TrainConfig& config) {
  Assumptions found;
  if (assumes_gpt2(config)) {
    found.notes.push_back(fmt::format(
        "no model is named: {} from random weights (model_preset gpt2); set model_preset or model_name_or_path for "
        "another",
        sets_model_sizes(config) ? "the architecture of GPT-2 in your sizes" : "GPT-2 124M"));
  }
  if (config.penalty_type == PenaltyKind::ZLoss && !config.is_set("penalty_type")) {
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

namespace {

// With 8-bit moments: here the noise of an update is 6 % (docs/fp8.md).
constexpr double kLargestBeta2 = 0.99;

struct CostlySetting {
  std::string_view name;  // the same for all values that are warned of once
  std::string text;
};

std::vector<CostlySetting> costly_settings(const TrainConfig& config) {
  std::vector<CostlySetting> found;
  const bool has_matrices_in_bf16 = config.mixed_precision != Precision::Fp32 && !config.is_lora();
  if (config.master_weights == MasterWeights::Stochastic && has_matrices_in_bf16)
    found.push_back(
        {"master_weights stochastic",
         "master_weights stochastic may cost accuracy: with it, 8-bit moments and FP8, the evaluation loss of GPT-2 124M was 0.24 % "
         "higher than in BF16 with fp32 moments (mean of three seeds: +0.34 %, -0.29 % and +0.66 %); if memory allows, set master_weights to "
         "compact (half a byte more per weight)"});
  if (config.optimizer_state == OptimizerState::Fp8 && config.adam_beta2 > kLargestBeta2) {
    found.push_back(
        {"optimizer_state fp8",
         fmt::format(
             "optimizer_state fp8 may cost accuracy with adam_beta2 {:g}: the second moment remembers its rounding errors for "
             "{:.0f} steps, which makes updates noisy (by 3 % with 0.95, 6 % with 0.99, 8 % with 0.999). The loss of GPT-2 124M was "
             "compared with 0.95 only; set adam_beta2 to 0.95, or optimizer_state to bf16",
             config.adam_beta2, 1 / (1 - config.adam_beta2))});
  }
  const bool fp8 = config.mixed_precision == Precision::Fp8;
  if (fp8 && config.fp8_format == Fp8Format::E5M2)
    found.push_back(
        {"fp8_format e5m2",
         "fp8_format e5m2 may cost accuracy: inputs of layers keep one bit less than in E4M3, and the evaluation loss of a small "
         "Llama was 0.3 % higher than in BF16 (mean of three seeds, standard error 0.09 %; with hybrid 0.2 %); set fp8_format to "
         "hybrid"});
  const bool fp8_gradients = config.fp8_head == Fp8Head::All || config.fp8_head == Fp8Head::Backward ||
                             config.fp8_head == Fp8Head::Dgrad || config.fp8_head == Fp8Head::Wgrad;
  if (fp8 && fp8_gradients && config.fp8_format == Fp8Format::E4M3)
    found.push_back(
        {"fp8_format e4m3",
         "the head's gradients in fp8_format e4m3 may cost accuracy: E4M3 has no codes for small probabilities. With all of "
         "the head in FP8, the evaluation loss of GPT-2 124M was 1.5 % higher than in BF16, and 0.6 % with hybrid (an earlier "
         "version, one run each); set fp8_head to auto"});
  return found;
}

}  // namespace

void warn_of_costly_settings(std::span<const TrainConfig> runs) {
  std::set<std::string_view> said;
  for (const TrainConfig& run : runs) {
    for (const CostlySetting& costly : costly_settings(run)) {
      if (said.insert(costly.name).second) log_warning("{}", costly.text);
    }
  }
}

void tell_of_settings(std::span<const TrainConfig> runs, bool on_gpu) {
  warn_of_idle_settings(runs, on_gpu);
  tell_assumptions(runs);
  warn_of_costly_settings(runs);
}

}  // namespace octet
