#include "plan/model_setup.h"

#include <algorithm>

#include "base/log.h"
#include "hf/hf_folder.h"
#include "model/parameters.h"

namespace octet {
namespace {

struct SizeKey {
  const char* name;
  int64_t TrainConfig::*key;
  int64_t ModelSizes::*given;
  int64_t ModelConfig::*size;
};
constexpr SizeKey kSizeKeys[] = {
    {"hidden_size", &TrainConfig::hidden_size, &ModelSizes::width, &ModelConfig::width},
    {"num_hidden_layers", &TrainConfig::num_hidden_layers, &ModelSizes::layers, &ModelConfig::layers},
    {"num_attention_heads", &TrainConfig::num_attention_heads, &ModelSizes::heads, &ModelConfig::heads},
    {"num_key_value_heads", &TrainConfig::num_key_value_heads, &ModelSizes::kv_heads, &ModelConfig::kv_heads},
    {"head_dim", &TrainConfig::head_dim, &ModelSizes::head_dim, &ModelConfig::head_dim},
    {"intermediate_size", &TrainConfig::intermediate_size, &ModelSizes::ffn, &ModelConfig::ffn},
    {"vocab_size", &TrainConfig::vocab_size, &ModelSizes::vocab, &ModelConfig::vocab},
    {"max_position_embeddings", &TrainConfig::max_position_embeddings, &ModelSizes::max_positions,
     &ModelConfig::max_positions},
};
constexpr const char* kTied = "tie_word_embeddings";
using Tie = TrainConfig::TieWordEmbeddings;

ModelSizes sizes_of(const TrainConfig& config) {
  ModelSizes sizes;
  for (const SizeKey& size : kSizeKeys) sizes.*size.given = config.*size.key;
  if (config.tie_word_embeddings != Tie::Auto) sizes.tied_head = config.tie_word_embeddings == Tie::Yes;
  return sizes;
}

// config.yaml then says the whole architecture, whatever the defaults of a later version are.
void fill_in_sizes(TrainConfig& config, const ModelConfig& model) {
  if (sizes_of(config) == ModelSizes{}) return;
  for (const SizeKey& size : kSizeKeys) config.*size.key = model.*size.size;
  config.tie_word_embeddings = model.tied_head ? Tie::Yes : Tie::No;
}

std::vector<std::string> given_sizes(const TrainConfig& config) {
  std::vector<std::string> names;
  for (const SizeKey& size : kSizeKeys) {
    if (config.*size.key > 0) names.push_back(size.name);
  }
  if (config.tie_word_embeddings != Tie::Auto) names.push_back(kTied);
  return names;
}

// What names another model beside a checkpoint is refused: whoever changed it does not expect the old one.
void refuse_other_model(const TrainConfig& config, const ModelConfig& model, const std::string& path) {
  for (const SizeKey& size : kSizeKeys) {
    if (config.*size.key > 0 && config.*size.key != model.*size.size) {
      fail_config("{} {} is not the {} of the model of {}", size.name, config.*size.key, model.*size.size,
                  path);
    }
  }
  if (config.tie_word_embeddings != Tie::Auto && (config.tie_word_embeddings == Tie::Yes) != model.tied_head)
    fail_config("{} {} is not what the model of {} has", kTied, !model.tied_head, path);
  if (config.model_preset.empty()) return;
  const auto shapes = [](const ModelConfig& of) {
    std::vector<std::pair<std::string, Shape>> result;
    for (const ParameterSpec& spec : parameter_table(of)) result.emplace_back(spec.name, spec.shape);
    return result;
  };
  const ModelConfig preset = resolve_model(config.model_preset, sizes_of(config));
  if (shapes(preset) == shapes(model)) return;
  fail_config("model_preset {} ({} layers of width {}) is not the model of {} ({} layers of width {})",
              config.model_preset, preset.layers, preset.width, path, model.layers, model.width);
}

ModelChoice choose(const TrainConfig& config, const Checkpoint* resumed) {
  ModelChoice choice;
  if (resumed) {
    choice.model = read_hf_config(resumed->path);
    refuse_other_model(config, choice.model, resumed->path);
    if (!config.model_preset.empty()) choice.model.name = config.model_preset;
    return choice;
  }
  if (config.model_name_or_path.empty()) {
    choice.model = resolve_model(config.model_preset, sizes_of(config));
    return choice;
  }
  choice.start = find_start(config.model_name_or_path);
  if (!choice.start->has_weights) {
    choice.model = resolve_model(choice.start->config, sizes_of(config));
    log_info("model: {} has no weights, so training starts from random ones", choice.start->source);
    return choice;
  }
  if (const std::vector<std::string> given = given_sizes(config); !given.empty()) {
    fail_config("{} cannot be given with model_name_or_path {}: it has weights, and they have its own sizes",
                fmt::join(given, ", "), config.model_name_or_path);
  }
  choice.model = choice.start->config;
  return choice;
}

}  // namespace

ModelChoice choose_model(TrainConfig& config, const Checkpoint* resumed) {
  ModelChoice choice = choose(config, resumed);
  fill_in_sizes(config, choice.model);
  if (!config.is_set("max_seq_length"))
    config.max_seq_length = std::min(config.max_seq_length, choice.model.max_positions);
  check_sequence_length(choice.model, "max_seq_length", config.max_seq_length);
  return choice;
}

}  // namespace octet
