#include <algorithm>

#include "base/keys.h"
#include "model/family.h"

namespace octet {
namespace {

std::vector<ModelConfig> all_presets() {
  std::vector<ModelConfig> presets;
  for (const FamilySpec* family : model_families()) {
    for (ModelConfig& preset : family->presets()) presets.push_back(std::move(preset));
  }
  return presets;
}

// Other names people use for the same model.
constexpr std::pair<std::string_view, std::string_view> kPresetAliases[] = {
    {"gpt2-124m", "gpt2"},
    {"gpt2-355m", "gpt2-medium"},
    {"gpt2-774m", "gpt2-large"},
    {"gpt2-1558m", "gpt2-xl"},
};

}  // namespace

ModelConfig model_preset(std::string_view name) {
  for (const auto& [alias, preset] : kPresetAliases) {
    if (name == alias) name = preset;
  }
  for (ModelConfig& preset : all_presets()) {
    if (preset.name == name) return preset;
  }
  const std::string near = nearest_name(name, model_preset_names());
  fail_config("[model] no preset is called '{}'{}; there are: {}", name,
              near.empty() ? "" : fmt::format("; did you mean '{}'?", near),
              fmt::join(model_preset_names(), ", "));
}

std::vector<std::string> model_preset_names() {
  std::vector<std::string> names;
  for (const ModelConfig& preset : all_presets()) names.push_back(preset.name);
  return names;
}

}  // namespace octet
