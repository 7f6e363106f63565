#include <algorithm>
#include <optional>

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

std::optional<ModelConfig> find_preset(std::string_view name) {
  for (const auto& [alias, preset] : kPresetAliases) {
    if (name == alias) name = preset;
  }
  for (ModelConfig& preset : all_presets()) {
    if (preset.name == name) return preset;
  }
  return std::nullopt;
}

[[noreturn]] void fail_no_preset(std::string_view name) {
  const std::vector<std::string> presets = model_preset_names();
  std::vector<std::string> families;
  for (const FamilySpec* family : model_families()) {
    if (std::ranges::find(presets, family->name) == presets.end()) families.push_back(family->name);
  }
  std::vector<std::string> known = presets;
  known.insert(known.end(), families.begin(), families.end());
  const std::string near = nearest_name(name, known);
  fail_config("[model] no preset is called '{}'{} Presets: {}. Families, which also need sizes: {}", name,
              near.empty() ? "." : fmt::format("; did you mean '{}'?", near), fmt::join(presets, ", "),
              fmt::join(families, ", "));
}

// A family alone does not define these.
void require_main_sizes(const FamilySpec& family, const ModelSizes& sizes) {
  std::vector<std::string> missing;
  if (sizes.width == 0) missing.push_back("hidden_size");
  if (sizes.layers == 0) missing.push_back("num_hidden_layers");
  if (sizes.heads == 0) missing.push_back("num_attention_heads");
  if (sizes.vocab == 0) missing.push_back("vocab_size");
  if (missing.empty()) return;
  std::vector<std::string> presets;
  for (const ModelConfig& preset : family.presets()) presets.push_back(preset.name);
  fail_config("model_preset {} is a family without sizes: give {}, or choose one of its presets: {}",
              family.name, fmt::join(missing, ", "), fmt::join(presets, ", "));
}

}  // namespace

ModelConfig model_preset(std::string_view name) {
  std::optional<ModelConfig> preset = find_preset(name);
  if (!preset) fail_no_preset(name);
  return *std::move(preset);
}

ModelConfig resolve_model(const ModelConfig& base, const ModelSizes& sizes) {
  if (sizes == ModelSizes{}) return base;
  ModelConfig c = base;
  const auto set = [](int64_t& field, int64_t given) {
    if (given > 0) field = given;
  };
  set(c.vocab, sizes.vocab);
  set(c.layers, sizes.layers);
  set(c.width, sizes.width);
  set(c.heads, sizes.heads);
  set(c.max_positions, sizes.max_positions);
  if (sizes.tied_head) c.tied_head = *sizes.tied_head;
  if (c.pad_id && *c.pad_id >= c.vocab) c.pad_id.reset();

  if (base.kv_heads == base.heads) c.kv_heads = c.heads;
  set(c.kv_heads, sizes.kv_heads);
  const bool divides = base.heads == 0 || base.heads * base.head_dim == base.width;
  if (sizes.head_dim > 0) {
    c.head_dim = sizes.head_dim;
  } else if (c.family->head_dim > 0) {
    if (base.head_dim == 0) c.head_dim = c.family->head_dim;
  } else if (divides) {
    if (c.width % c.heads != 0) {
      fail_config("hidden_size {} is not a multiple of num_attention_heads {}; change one, or give head_dim",
                  c.width, c.heads);
    }
    c.head_dim = c.width / c.heads;
  }
  if (sizes.ffn > 0) {
    c.ffn = sizes.ffn;
  } else if (sizes.width > 0) {
    c.ffn = c.family->default_ffn(c.width);
  }
  try {
    c.validate();
    to_hf_config(c, DType::F32);  // what cannot be written cannot be saved
  } catch (const Error& error) {
    fail_config("{}", error.what());
  }
  return c;
}

ModelConfig resolve_model(std::string_view name, const ModelSizes& sizes) {
  if (const std::optional<ModelConfig> preset = find_preset(name)) return resolve_model(*preset, sizes);
  const FamilySpec* family = find_family(name);
  if (!family) fail_no_preset(name);
  require_main_sizes(*family, sizes);
  return resolve_model(family->start(), sizes);
}

std::vector<std::string> model_preset_names() {
  std::vector<std::string> names;
  for (const ModelConfig& preset : all_presets()) names.push_back(preset.name);
  return names;
}

}  // namespace octet
