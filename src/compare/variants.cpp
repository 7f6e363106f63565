#include "compare/variants.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/names.h"
#include "base/text.h"
#include "config/notes.h"
#include "io/env.h"

namespace octet {
namespace {

using Settings = std::vector<KeySetting>;

KeySetting flag(std::string name, std::string value) {
  return {.name = std::move(name), .values = {std::move(value)}};
}

Settings named_variant(const std::string& name) {
  if (name == "bf16" || name == "fp32") return {flag("mixed_precision", name)};
  const std::string recipe = name == "fp8" ? "delayed" : name;
  // Whoever names it wants this one, also on a GPU that must emulate it.
  if (recipe == "mxfp8")
    return {flag("mixed_precision", "fp8"), flag("fp8_recipe", recipe), flag("fp8_emulation", "true")};
  if (recipe == "delayed" || recipe == "current" || recipe == "block")
    return {flag("mixed_precision", "fp8"), flag("fp8_recipe", recipe)};
  fail_config("--variants: '{}' is unknown, expected {}, or key=value", printable(name), kVariantNames);
}

std::string did_you_mean(const std::string& name) {
  std::vector<std::string> names;
  for (const Key& key : train_keys().keys()) names.push_back(key.name);
  const std::string near = nearest_name(name, names);
  return near.empty() ? "" : fmt::format("; did you mean '{}'?", near);
}

// "fp8:fp8_head=true" as settings.
Settings settings_of_variant(const std::string& variant) {
  Settings settings;
  size_t begin = 0;
  while (begin <= variant.size()) {
    const size_t end = std::min(variant.find(':', begin), variant.size());
    const std::string part = variant.substr(begin, end - begin);
    const size_t equals = part.find('=');
    if (equals != std::string::npos) {
      const std::string name = part.substr(0, equals);
      if (!key_called(train_keys().keys(), name))
        fail_config("--variants: '{}' of '{}' is no key of 'octet train'{}", printable(name),
                    printable(variant), did_you_mean(name));
      settings.push_back(flag(name, part.substr(equals + 1)));
    } else if (begin == 0) {
      settings = named_variant(part);
    } else {
      fail_config("--variants: '{}' of '{}' is no setting, expected key=value", printable(part),
                  printable(variant));
    }
    begin = end + 1;
  }
  return settings;
}

// If both lists set a key, the later list wins.
void override_settings(Settings& settings, const Settings& later) {
  const std::span<const Key> keys = train_keys().keys();
  for (const KeySetting& setting : later) {
    const Key* key = key_called(keys, setting.name);
    std::erase_if(settings,
                  [&](const KeySetting& other) { return key && key_called(keys, other.name) == key; });
    settings.push_back(setting);
  }
}

// Only what is set: what octet would decide by itself stays its decision.
std::string set_keys_yaml(const TrainConfig& config) {
  const KeyTable<TrainConfig>& table = train_keys();
  std::string text;
  for (size_t i = 0; i < table.keys().size(); ++i) {
    const Key& key = table.keys()[i];
    if (key.transient || !config.is_set(key.name)) continue;
    const std::string value = value_yaml(table.get(config, i));
    text += fmt::format("{}:{}{}\n", key.name, value.starts_with('\n') ? "" : " ", value);
  }
  return text;
}

// Adds settings that a comparison needs, unless the user has set them.
void add_defaults(Settings& settings, const TrainConfig& given, const VariantPlan& plan) {
  const auto set_unless_given = [&](const char* key, int64_t value) {
    if (!given.is_set(key)) override_settings(settings, {flag(key, fmt::format("{}", value))});
  };
  if (!given.is_set("eval_strategy") && !given.is_set("evals_per_epoch"))
    set_unless_given("eval_steps", std::max<int64_t>(1, plan.steps / 10));
  set_unless_given("logging_steps", 1);
  set_unless_given("sample_steps", std::max<int64_t>(1, plan.steps / 2));
  if (plan.for_checklist) {
    override_settings(settings, {flag("save_strategy", "steps"),
                                 flag("save_steps", fmt::format("{}", std::max<int64_t>(1, plan.steps / 2))),
                                 flag("save_total_limit", "0")});
  }
}

}  // namespace

std::vector<PlannedRun> plan_variants(const VariantPlan& plan, const FileSettings& file,
                                      std::span<const KeySetting> flags) {
  Settings base(flags.begin(), flags.end());
  override_settings(base, {flag("max_steps", fmt::format("{}", plan.steps))});
  const TrainConfig given = load_train_config(file, base);
  add_defaults(base, given, plan);
  // A checklist saves at other steps, so its runs are others.
  std::string stem = given.run_name.empty() ? "compare" : given.run_name;
  if (plan.for_checklist) stem = given.run_name.empty() ? "checklist" : given.run_name + "-checklist";
  std::vector<PlannedRun> runs;
  std::set<std::string> names;
  for (const std::string& variant : plan.variants) {
    for (int64_t i = 0; i < plan.seeds; ++i) {
      Settings settings = base;
      override_settings(settings, settings_of_variant(variant));
      const int64_t seed = load_train_config(file, settings).seed + i;
      std::string name = fmt::format("{}-{}", stem, file_name_of(variant, '-'));
      if (i > 0) name += fmt::format("-seed{}", seed);
      if (!names.insert(name).second)
        fail_config("--variants: '{}' is given twice, or its run has the name of another one: {}",
                    printable(variant), name);
      override_settings(settings, {flag("run_name", name), flag("seed", fmt::format("{}", seed))});
      PlannedRun run{.variant = variant, .name = name, .config = load_train_config(file, settings)};
      run.folder = join_path(run.config.output_dir, name);
      run.yaml = set_keys_yaml(run.config);
      runs.push_back(std::move(run));
    }
  }
  return runs;
}

void tell_of_settings(const std::vector<PlannedRun>& runs, bool on_gpu) {
  std::vector<TrainConfig> configs;
  for (const PlannedRun& run : runs) configs.push_back(run.config);
  tell_of_settings(configs, on_gpu);
}

std::vector<std::string> default_variants(const FileSettings& file, std::span<const KeySetting> flags) {
  const TrainConfig config = load_train_config(file, flags);
  if (config.mixed_precision == Precision::Fp32) return {"bf16", "fp32"};
  if (config.mixed_precision == Precision::Bf16) return {"bf16", "fp8"};
  const std::string recipe = config_text(config, "fp8_recipe");
  // As a setting: the name mxfp8 would also set fp8_emulation, and the run would not be the configured one.
  if (recipe == "mxfp8") return {"bf16", "fp8_recipe=mxfp8"};
  return {"bf16", recipe == "delayed" ? "fp8" : recipe};
}

}  // namespace octet
