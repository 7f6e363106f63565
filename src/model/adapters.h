#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/config.h"

namespace octet {

// A low-rank adapter of one module: y += scale * B (A x), with A (rank, in) and B (out, rank).
struct Adapter {
  std::string module;  // as Transformers names it: "model.layers.0.self_attn.q_proj"
  int64_t rank = 0;
  double alpha = 0;
  bool rslora = false;
  float scale() const;  // alpha / rank, or alpha / sqrt(rank) with rslora
};

// All adapters of a model, in the order of its modules.
struct AdapterPlan {
  std::vector<Adapter> adapters;
  double dropout = 0;  // of the adapters' input
  bool empty() const { return adapters.empty(); }
  const Adapter* find(std::string_view module) const;  // null: not adapted
};

// The same limits hold for the settings of a run and for adapters in files. So a run that starts from an adapter can
// write its settings down and read them again.
constexpr int64_t kMaxLoraRank = 4096;
constexpr double kMaxLoraAlpha = 1e6;  // negative values too: PEFT allows them

// Which modules get an adapter, and of what rank, as users and PEFT's adapter_config.json say it.
struct LoraConfig {
  int64_t rank = 8;
  double alpha = 16;
  double dropout = 0;
  bool rslora = false;
  // "all" (PEFT says "all-linear"), or names: a module whose name is an entry or ends with "." + entry ("q_proj",
  // "attn.c_proj"). An entry with one of the characters *+?^$()[]{}|\ is a regular expression that must match the
  // whole name of a module.
  std::vector<std::string> targets = {"all"};
  // A target without a module is refused. false: it is skipped, as PEFT does.
  bool every_target_matches = true;
  // Name or regular expression -> rank or alpha, for modules that match `(.*\.)?(entry)`. The first match counts.
  std::vector<std::pair<std::string, int64_t>> rank_pattern;
  std::vector<std::pair<std::string, double>> alpha_pattern;
  std::vector<int64_t> layers;  // only these layers; empty: all
};

// The modules of a model that can have an adapter: all matrices of its layers.
std::vector<std::string> adaptable_modules(const ModelConfig& config);

// The targets that PEFT takes for the model's family if none are given.
std::vector<std::string> peft_default_targets(const ModelConfig& config);

// ConfigError if an entry of targets matches no module (the message lists the last parts of their names), if it names
// the embedding or the head, or if a rank or alpha is outside the limits. `place` names the source of the settings in
// errors.
AdapterPlan plan_adapters(const ModelConfig& config, const LoraConfig& lora, std::string_view place = "lora");

// Whether an entry of targets is a pattern and not a name.
bool is_module_pattern(std::string_view entry);
bool is_all_modules(std::string_view entry);

// The tensors of an adapter in a PEFT folder: "base_model.model.<module>.lora_A.weight".
std::string peft_tensor_name(std::string_view module, char matrix);

}  // namespace octet
