#include "model/adapters.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <regex>

#include "base/error.h"
#include "base/text.h"
#include "model/family.h"
#include "model/parameters.h"

namespace octet {
namespace {

constexpr size_t kMaxPattern = 4096;  // characters, those in {n} counted n times

// The length of a pattern if every {n} were written out, at most: counts inside one another multiply.
size_t expanded_size(std::string_view text) {
  size_t size = text.size();
  for (size_t i = 0; i < text.size() && size <= kMaxPattern; ++i) {
    if (text[i] != '{') continue;
    size_t largest = 1, number = 0;
    for (++i; i < text.size() && text[i] != '}' && number <= kMaxPattern; ++i) {
      number = text[i] >= '0' && text[i] <= '9' ? 10 * number + static_cast<size_t>(text[i] - '0') : 0;
      largest = std::max(largest, number);
    }
    size *= largest;
  }
  return size;
}

// A pattern comes from a file that somebody else may have written. Without back references the time is linear in the
// name, so no pattern hangs the program. The library recurses over the pattern, so a limit of its size saves the stack.
std::regex compile(const std::string& text, std::string_view place, const std::string& shown) {
  auto flags = std::regex::ECMAScript;
#ifdef __GLIBCXX__
  flags |= std::regex_constants::__polynomial;
#endif
  if (expanded_size(text) > kMaxPattern)
    fail_config("[{}] the pattern '{}' is too long, expected at most {} characters with counts written out",
                place, printable(shown), kMaxPattern);
  try {
    return std::regex(text, flags);
  } catch (const std::regex_error& error) {
    fail_config(
        "[{}] '{}' is not a regular expression that octet can read (ECMAScript without back references): {}",
        place, printable(shown), error.what());
  }
}

bool is_or_ends_with(std::string_view name, std::string_view entry) {
  if (name == entry) return true;
  return name.size() > entry.size() && name.ends_with(entry) && name[name.size() - entry.size() - 1] == '.';
}

// One entry of the targets.
class Target {
 public:
  Target(std::string entry, std::string_view place) : entry_(std::move(entry)) {
    if (is_module_pattern(entry_)) pattern_ = compile(entry_, place, entry_);
  }
  const std::string& entry() const { return entry_; }
  bool is_all() const { return is_all_modules(entry_); }
  bool matches(const std::string& name) const {
    return pattern_ ? std::regex_match(name, *pattern_) : is_or_ends_with(name, entry_);
  }

 private:
  std::string entry_;
  std::optional<std::regex> pattern_;
};

// The values of rank_pattern or alpha_pattern by module.
template <class T>
class PatternMap {
 public:
  PatternMap(const std::vector<std::pair<std::string, T>>& entries, std::string_view place) {
    for (const auto& [key, value] : entries)
      entries_.emplace_back(compile(fmt::format("(.*\\.)?({})", key), place, key), value);
  }
  T value_of(const std::string& module, T otherwise) const {
    for (const auto& [pattern, value] : entries_) {
      if (std::regex_match(module, pattern)) return value;
    }
    return otherwise;
  }

 private:
  std::vector<std::pair<std::regex, T>> entries_;
};

struct Module {
  std::string name;
  int64_t layer = 0;
};

std::vector<Module> modules_of(const ModelConfig& config) {
  std::vector<Module> modules;
  for (const ParameterSpec& spec : parameter_table(config)) {
    if (spec.layer < 0 || spec.layer >= config.layers || spec.shape.rank() != 2) continue;
    for (const HfPart& part : spec.hf) modules.push_back({part.module(), spec.layer});
  }
  return modules;
}

std::string last_part(const std::string& name) {
  return name.substr(name.rfind('.') + 1);
}

std::vector<std::string> last_parts(const std::vector<Module>& modules) {
  std::vector<std::string> parts;
  for (const Module& module : modules) {
    if (std::string part = last_part(module.name); std::ranges::find(parts, part) == parts.end())
      parts.push_back(std::move(part));
  }
  return parts;
}

void check_layers(const ModelConfig& config, const LoraConfig& lora, std::string_view place) {
  for (const int64_t layer : lora.layers) {
    if (layer < 0 || layer >= config.layers)
      fail_config("[{}] layer {} is to get adapters, but the model has layers 0 to {}", place, layer,
                  config.layers - 1);
  }
}

// Adapters of other modules exist in PEFT, so the reason is worth a message of its own.
void refuse_outer_modules(const ModelConfig& config, const Target& target, std::string_view place) {
  const TensorNames& names = config.family->tensors;
  for (const std::string& outer : {names.embedding, names.positions, names.head}) {
    if (outer.empty() || !target.matches(outer)) continue;
    fail_config(
        "[{}] target '{}' includes {}: octet has adapters only for the matrices of the layers, not for embeddings "
        "and the head",
        place, printable(target.entry()), outer);
  }
}

}  // namespace

bool is_module_pattern(std::string_view entry) {
  return entry.find_first_of("*+?^$()[]{}|\\") != std::string_view::npos;
}

bool is_all_modules(std::string_view entry) {
  return entry == "all" || entry == "all-linear";
}

float Adapter::scale() const {
  const double r = static_cast<double>(rank);
  return static_cast<float>(rslora ? alpha / std::sqrt(r) : alpha / r);
}

const Adapter* AdapterPlan::find(std::string_view module) const {
  const auto found = std::ranges::find(adapters, module, &Adapter::module);
  return found == adapters.end() ? nullptr : &*found;
}

std::vector<std::string> adaptable_modules(const ModelConfig& config) {
  std::vector<std::string> names;
  for (Module& module : modules_of(config)) names.push_back(std::move(module.name));
  return names;
}

std::vector<std::string> peft_default_targets(const ModelConfig& config) {
  const std::vector<std::string>& qkv = config.family->tensors.qkv;
  if (qkv.size() == 1) return {last_part(qkv[0])};
  return {last_part(qkv.front()), last_part(qkv.back())};
}

AdapterPlan plan_adapters(const ModelConfig& config, const LoraConfig& lora, std::string_view place) {
  const std::vector<Module> modules = modules_of(config);
  check_layers(config, lora, place);
  std::vector<bool> chosen(modules.size(), false);
  for (const std::string& entry : lora.targets) {
    const Target target(entry, place);
    if (!target.is_all()) refuse_outer_modules(config, target, place);
    bool matches_any = false;
    for (size_t i = 0; i < modules.size(); ++i) {
      if (!target.is_all() && !target.matches(modules[i].name)) continue;
      matches_any = true;
      // As in PEFT, a module that is named in full needs no layer.
      if (lora.layers.empty() || modules[i].name == entry ||
          std::ranges::find(lora.layers, modules[i].layer) != lora.layers.end())
        chosen[i] = true;
    }
    if (!matches_any && lora.every_target_matches)
      fail_config(
          "[{}] target '{}' matches no module of {}; {}its modules are {}, or all", place, printable(entry),
          config.name,
          is_module_pattern(entry)
              ? fmt::format("a regular expression must match a whole name such as {}; ", modules.front().name)
              : "",
          fmt::join(last_parts(modules), ", "));
  }

  const PatternMap<int64_t> ranks(lora.rank_pattern, place);
  const PatternMap<double> alphas(lora.alpha_pattern, place);
  AdapterPlan plan{.dropout = lora.dropout};
  for (size_t i = 0; i < modules.size(); ++i) {
    if (!chosen[i]) continue;
    const std::string& name = modules[i].name;
    Adapter adapter{.module = name,
                    .rank = ranks.value_of(name, lora.rank),
                    .alpha = alphas.value_of(name, lora.alpha),
                    .rslora = lora.rslora};
    if (adapter.rank < 1 || adapter.rank > kMaxLoraRank)
      fail_config("[{}] rank {} for {}, expected 1 to {}", place, adapter.rank, name, kMaxLoraRank);
    if (!(std::abs(adapter.alpha) <= kMaxLoraAlpha))
      fail_config("[{}] alpha {} for {}, expected a number from -{} to {}", place, adapter.alpha, name,
                  kMaxLoraAlpha, kMaxLoraAlpha);
    plan.adapters.push_back(std::move(adapter));
  }
  if (plan.empty()) {
    fail_config("[{}] no module of {} gets an adapter; its modules are {}, or all; targets: {}", place,
                config.name, fmt::join(last_parts(modules), ", "),
                printable(fmt::format("{}", fmt::join(lora.targets, ", "))));
  }
  return plan;
}

std::string peft_tensor_name(std::string_view module, char matrix) {
  return fmt::format("base_model.model.{}.lora_{}.weight", module, matrix);
}

}  // namespace octet
