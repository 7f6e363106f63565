#include "hf/peft_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "model/family.h"

namespace octet {
namespace {

using Json = nlohmann::ordered_json;  // in rank_pattern the first match counts

// Null, false or empty: a feature that is off.
bool is_off(const Json& value) {
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  return value.is_null() || ((value.is_array() || value.is_object()) && value.empty());
}

// Fields that change nothing in what a trained adapter computes.
constexpr std::string_view kIgnored[] = {"inference_mode", "auto_mapping",      "fan_in_fan_out",
                                         "peft_version",   "runtime_config",    "megatron_core",
                                         "loftq_config",   "qalora_group_size", "eva_config"};

class Reader {
 public:
  Reader(const Json& json, const std::string& place) : json_(json), place_(place) {}

  PeftConfig read() {
    // The kind of the file comes first: other kinds have other fields.
    type("peft_type", "LORA");
    type("task_type", "CAUSAL_LM");
    PeftConfig config;
    LoraConfig& lora = config.lora;
    config.base = text("base_model_name_or_path");
    config.revision = text("revision");
    lora.rank = integer(take("r"), "r", 8);
    lora.alpha = number(take("lora_alpha"), "lora_alpha", 8);
    lora.dropout = number(take("lora_dropout"), "lora_dropout", 0);
    require(lora.dropout >= 0 && lora.dropout < 1, "[{}] \"lora_dropout\" is {}, expected 0 <= dropout < 1",
            place_, lora.dropout);
    lora.rslora = boolean("use_rslora");
    lora.every_target_matches = false;
    read_targets(lora);
    read_layers(lora);
    read_bias_and_init();
    if (const Json* map = object("rank_pattern")) {
      for (const auto& [key, value] : map->items())
        lora.rank_pattern.emplace_back(key, integer(&value, "rank_pattern", {}));
    }
    if (const Json* map = object("alpha_pattern")) {
      for (const auto& [key, value] : map->items())
        lora.alpha_pattern.emplace_back(key, number(&value, "alpha_pattern", {}));
    }
    refuse_the_rest();
    return config;
  }

 private:
  // Null: absent, or null in the file.
  const Json* take(const char* name) {
    taken_.insert(name);
    const auto found = json_.find(name);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }

  [[noreturn]] void wrong(std::string_view name, const Json& value, std::string_view expected) const {
    fail("[{}] \"{}\" is {}, expected {}", place_, name, printable(value.dump()), expected);
  }
  [[noreturn]] void refuse(std::string_view name, const Json& value, std::string_view why) const {
    fail("[{}] \"{}\" is {}: {}", place_, name, printable(value.dump()), why);
  }

  // PEFT leaves a type out where it is null.
  void type(const char* name, const char* only) {
    const Json* value = take(name);
    if (value && *value != only)
      refuse(name, *value, fmt::format("octet reads only adapters of type {}", only));
  }
  std::string text(const char* name) {
    const Json* value = take(name);
    if (!value) return "";
    if (!value->is_string()) wrong(name, *value, "a string or null");
    return value->get<std::string>();
  }
  bool boolean(const char* name) {
    const Json* value = take(name);
    if (!value) return false;
    if (!value->is_boolean()) wrong(name, *value, "true or false");
    return value->get<bool>();
  }
  int64_t integer(const Json* value, const char* name, std::optional<int64_t> otherwise) const {
    if (!value && otherwise) return *otherwise;
    if (!value || !value->is_number_integer() || value->is_null() || too_large(*value))
      wrong(name, value ? *value : Json(), "a whole number");
    return value->get<int64_t>();
  }
  static bool too_large(const Json& value) {
    return value.is_number_unsigned() && !std::in_range<int64_t>(value.get<uint64_t>());
  }
  double number(const Json* value, const char* name, std::optional<double> otherwise) const {
    if (!value && otherwise) return *otherwise;
    if (!value || !value->is_number()) wrong(name, value ? *value : Json(), "a number");
    return value->get<double>();
  }
  const Json* object(const char* name) {
    const Json* value = take(name);
    if (value && !value->is_object()) wrong(name, *value, "an object");
    return value;
  }

  void read_targets(LoraConfig& lora) {
    lora.targets.clear();
    const Json* value = take("target_modules");
    if (!value) return;
    constexpr const char* kExpected = "a list of module names, a regular expression or \"all-linear\"";
    if (value->is_string()) {
      const std::string pattern = value->get<std::string>();
      if (pattern.empty()) wrong("target_modules", *value, kExpected);
      // The parentheses make any text a regular expression, as it is for PEFT.
      lora.targets = {pattern == "all-linear" ? "all" : fmt::format("(?:{})", pattern)};
      return;
    }
    if (!value->is_array() || value->empty()) wrong("target_modules", *value, kExpected);
    for (const Json& entry : *value) {
      if (!entry.is_string()) wrong("target_modules", *value, kExpected);
      const std::string name = entry.get<std::string>();
      // In a list PEFT takes an entry literally, and no module has such a name.
      if (!is_module_pattern(name) && !is_all_modules(name)) lora.targets.push_back(name);
    }
    if (lora.targets.empty()) wrong("target_modules", *value, kExpected);
  }

  void read_layers(LoraConfig& lora) {
    if (const Json* value = take("layers_to_transform")) {
      for (const Json& layer : value->is_array() ? *value : Json::array({*value}))
        lora.layers.push_back(integer(&layer, "layers_to_transform", {}));
      const Json* targets = take("target_modules");
      if (!lora.layers.empty() && targets && targets->is_string())
        refuse("layers_to_transform", *value, "PEFT allows this only if target_modules is a list");
    }
    // The name of the list of layers. It says nothing new where the model has only one.
    const Json* pattern = take("layers_pattern");
    if (pattern && !is_off(*pattern) && !lora.layers.empty()) {
      for (const Json& name : pattern->is_array() ? *pattern : Json::array({*pattern})) {
        if (name == "layers" || name == "h") return;
      }
      refuse("layers_pattern", *pattern, "octet reads only null, \"layers\" and \"h\"");
    }
  }

  void read_bias_and_init() {
    if (const Json* bias = take("bias"); bias && *bias != "none")
      refuse("bias", *bias, "octet reads only adapters without biases (\"none\")");
    if (const Json* init = take("init_lora_weights"); init && !init->is_boolean()) {
      const std::string name = init->is_string() ? init->get<std::string>() : "";
      if (name != "gaussian" && name != "eva" && name != "orthogonal")
        refuse("init_lora_weights", *init,
               "such an adapter may belong to a base with other weights; octet reads only true, false, "
               "\"gaussian\", \"eva\" and \"orthogonal\". PEFT can convert PiSSA, OLoRA and CorDA: "
               "save_pretrained(..., path_initial_model_for_weight_conversion=...)");
    }
  }

  void refuse_the_rest() const {
    for (const auto& [name, value] : json_.items()) {
      if (taken_.contains(name) || is_off(value)) continue;
      if (std::ranges::find(kIgnored, name) != std::end(kIgnored)) continue;
      refuse(name, value, "octet does not have this feature of adapters");
    }
  }

  const Json& json_;
  const std::string& place_;
  std::set<std::string, std::less<>> taken_;
};

// "layers.3.mlp.up_proj" without the number is the kind "mlp.up_proj"; a plan has few kinds and many layers.
struct Kind {
  std::string name;
  std::vector<int64_t> layers;
  std::vector<const Adapter*> adapters;
};

std::vector<Kind> kinds_of(const ModelConfig& config, std::span<const Adapter> adapters) {
  std::vector<Kind> kinds;
  for (const Adapter& adapter : adapters) {
    const size_t number = config.family->tensors.block.size() + 1;
    const size_t dot = adapter.module.find('.', number);
    const std::string name = adapter.module.substr(dot + 1);
    auto kind = std::ranges::find(kinds, name, &Kind::name);
    if (kind == kinds.end()) kind = kinds.insert(kinds.end(), {.name = name});
    kind->layers.push_back(std::stoll(adapter.module.substr(number, dot - number)));
    kind->adapters.push_back(&adapter);
  }
  return kinds;
}

// The shortest end of a kind's name that no other kind of the model has: "q_proj", "attn.c_proj".
std::string short_name(const std::string& name, const std::set<std::string>& kinds) {
  for (size_t begin = name.size(); begin != std::string::npos && begin > 0;) {
    begin = name.rfind('.', begin - 1);
    const std::string end = begin == std::string::npos ? name : name.substr(begin + 1);
    const auto has_end = [&](const std::string& other) { return other == end || other.ends_with("." + end); };
    if (std::ranges::count_if(kinds, has_end) == 1) return end;
  }
  return name;
}

Json plain_number(double value) {
  if (value == std::floor(value) && std::abs(value) < 0x1p53) return static_cast<int64_t>(value);
  return value;
}

// The most frequent value, and the others by module, or by kind where all modules of a kind have the same.
template <class T>
struct CommonValue {
  T value;
  std::vector<std::pair<std::string, T>> others;
};

template <class T>
CommonValue<T> common_value(const std::vector<Kind>& kinds, const std::set<std::string>& names,
                            T Adapter::*field) {
  // In the order of the modules: of equal counts the first is taken.
  std::vector<std::pair<T, int64_t>> counts;
  for (const Kind& kind : kinds) {
    for (const Adapter* adapter : kind.adapters) {
      const T value = adapter->*field;
      auto found = std::ranges::find(counts, value, &std::pair<T, int64_t>::first);
      if (found == counts.end()) found = counts.insert(found, {value, 0});
      ++found->second;
    }
  }
  CommonValue<T> common{std::ranges::max_element(counts, {}, &std::pair<T, int64_t>::second)->first, {}};
  for (const Kind& kind : kinds) {
    const T first = kind.adapters.front()->*field;
    if (std::ranges::all_of(kind.adapters, [&](const Adapter* a) { return a->*field == first; })) {
      if (first != common.value) common.others.emplace_back(short_name(kind.name, names), first);
      continue;
    }
    for (const Adapter* adapter : kind.adapters) {
      if (adapter->*field != common.value) common.others.emplace_back(adapter->module, adapter->*field);
    }
  }
  return common;
}

template <class T>
Json pattern_json(const std::vector<std::pair<std::string, T>>& pattern) {
  Json json = Json::object();
  for (const auto& [name, value] : pattern) json[name] = plain_number(static_cast<double>(value));
  return json;
}

}  // namespace

PeftConfig peft_config_from_json(std::string_view text, const std::string& place) {
  // The first parse checks depth, size and keys and gives the place of an error. The second keeps the order of keys.
  parse_json(text, place, {.max_values = 1'000'000, .refuse_duplicate_keys = true});
  const Json json = Json::parse(text);
  require(json.is_object(), "[{}] is {}, expected an object", place, json.type_name());
  return Reader(json, place).read();
}

AdapterPlan plan_of(const PeftConfig& config, const ModelConfig& base, const std::string& place) {
  LoraConfig lora = config.lora;
  if (lora.targets.empty()) lora.targets = peft_default_targets(base);
  return plan_adapters(base, lora, place);
}

LoraConfig lora_of(const ModelConfig& config, const AdapterPlan& plan) {
  require(!plan.empty(), "[{}] the model has no adapters to describe", kAdapterConfigName);
  std::set<std::string> names;
  AdapterPlan all;
  for (const std::string& module : adaptable_modules(config)) all.adapters.push_back({.module = module});
  for (const Kind& kind : kinds_of(config, all.adapters)) names.insert(kind.name);
  const std::vector<Kind> kinds = kinds_of(config, plan.adapters);
  const auto rank = common_value(kinds, names, &Adapter::rank);
  const auto alpha = common_value(kinds, names, &Adapter::alpha);
  LoraConfig lora{.rank = rank.value,
                  .alpha = alpha.value,
                  .dropout = plan.dropout,
                  .rslora = plan.adapters.front().rslora,
                  .targets = {},
                  .rank_pattern = rank.others,
                  .alpha_pattern = alpha.others,
                  .layers = {}};
  // Names of kinds, and the layers if those are not all; full names if the kinds differ in their layers.
  const bool same = std::ranges::all_of(kinds, [&](const Kind& k) { return k.layers == kinds[0].layers; });
  for (const Kind& kind : kinds) {
    if (same) {
      lora.targets.push_back(short_name(kind.name, names));
    } else {
      for (const Adapter* adapter : kind.adapters) lora.targets.push_back(adapter->module);
    }
  }
  if (same && std::ssize(kinds[0].layers) < config.layers) lora.layers = kinds[0].layers;
  return lora;
}

std::string to_peft_config(const ModelConfig& config, const AdapterPlan& plan, const std::string& base) {
  const LoraConfig lora = lora_of(config, plan);
  Json json = {{"peft_type", "LORA"},
               {"task_type", "CAUSAL_LM"},
               {"base_model_name_or_path", base.empty() ? Json() : Json(base)},
               {"revision", nullptr},
               {"inference_mode", true},
               {"r", lora.rank},
               {"lora_alpha", plain_number(lora.alpha)}};
  json["target_modules"] = lora.targets;
  json["layers_to_transform"] = lora.layers.empty() ? Json() : Json(lora.layers);
  json["layers_pattern"] = nullptr;
  json["rank_pattern"] = pattern_json(lora.rank_pattern);
  json["alpha_pattern"] = pattern_json(lora.alpha_pattern);
  json["lora_dropout"] = lora.dropout;
  json["use_rslora"] = lora.rslora;
  json["use_dora"] = false;
  json["bias"] = "none";
  json["fan_in_fan_out"] = config.family->tensors.transposed;
  json["modules_to_save"] = nullptr;
  json["init_lora_weights"] = true;
  // A folder may have any bytes in its name; JSON may not.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace octet
