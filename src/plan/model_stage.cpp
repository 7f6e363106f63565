#include "plan/model_stage.h"

#include "base/error.h"
#include "hf/hf_folder.h"
#include "model/parameters.h"

namespace octet {
namespace {

// A preset next to a checkpoint must be the checkpoint's model: whoever changed it does not expect the old one.
void refuse_other_preset(const std::string& name, const ModelConfig& model, const std::string& path) {
  const auto shapes = [](const ModelConfig& config) {
    std::vector<std::pair<std::string, Shape>> result;
    for (const ParameterSpec& spec : parameter_table(config)) result.emplace_back(spec.name, spec.shape);
    return result;
  };
  const ModelConfig preset = model_preset(name);
  if (shapes(preset) == shapes(model)) return;
  fail_config("model_preset {} ({} layers of width {}) is not the model of {} ({} layers of width {})", name,
              preset.layers, preset.width, path, model.layers, model.width);
}

ModelChoice model_of_checkpoint(const TrainConfig& keys, Checkpoint resumed) {
  ModelChoice choice;
  choice.config = read_hf_config(resumed.path);
  if (!keys.model_preset.empty()) {
    refuse_other_preset(keys.model_preset, choice.config, resumed.path);
    choice.config.name = keys.model_preset;
  }
  choice.tokenizer = tokenizer_of(resumed);
  choice.resumed = std::move(resumed);
  return choice;
}

}  // namespace

ModelChoice choose_model(const TrainConfig& keys, std::optional<Checkpoint> resumed) {
  if (resumed) return model_of_checkpoint(keys, std::move(*resumed));
  ModelChoice choice;
  if (keys.model_name_or_path.empty()) {
    choice.config = model_preset(keys.model_preset);
    return choice;
  }
  choice.start = find_model(keys.model_name_or_path);
  choice.config = choice.start->config;
  choice.tokenizer = choice.start->tokenizer;
  return choice;
}

void check_weights(const ModelChoice& model) {
  if (model.start) check_hf_folder(parameter_table(model.config), model.start->folder);
}

}  // namespace octet
