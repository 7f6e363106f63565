#include "sweep/sweep_parameters.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/text.h"
#include "config/config.h"

namespace octet {
namespace {

using Kind = DistributionKind;
using Bounds = DistributionName::Bounds;

// Keys that the sweep itself sets for every run.
const std::set<std::string> kReserved = {"run_name",       "output_dir", "resume",
                                         "checkpoint_dir", "dry_run",    "list_checkpoints"};

const std::vector<std::string> kFields = {
    "value", "values", "probabilities", "min", "max", "mu", "sigma", "q", "a", "b", "distribution"};

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> parts;
  while (true) {
    const size_t dot = text.find('.');
    parts.emplace_back(text.substr(0, dot));
    if (dot == std::string_view::npos) return parts;
    text.remove_prefix(dot + 1);
  }
}

bool is_whole(const std::string& text) {
  return text.find_first_not_of("+-0123456789") == std::string::npos && parse_int(text).has_value();
}

// The fields of one parameter, before they are understood.
struct RawParameter {
  std::string name, place;
  std::map<std::string, const TreeLeaf*> fields;
  std::vector<std::string> listed;  // `values` whose items are lists themselves
};

class ParametersReader {
 public:
  ParametersReader(const SettingsTree& tree, SweepSpec& spec, std::vector<std::string>& errors)
      : tree_(tree), spec_(spec), errors_(errors) {}

  void read() {
    std::vector<RawParameter> raw;
    for (const TreeLeaf& leaf : tree_.leaves) {
      if (!leaf.name.starts_with("parameters.")) continue;
      std::vector<std::string> path = split(std::string_view(leaf.name).substr(11));
      std::string outer;  // of nested parameters: they are flat keys here
      while (path.size() >= 3 && path[1] == "parameters") {
        outer += path[0] + ".";
        path.erase(path.begin(), path.begin() + 2);
      }
      if (path.size() < 2) {
        error("{} {}; expected value, values, or min and max", leaf.describe(),
              leaf.kind == TreeLeaf::Kind::EmptyMap ? "is empty" : "is " + leaf.shown());
        continue;
      }
      if (raw.empty() || raw.back().name != path[0]) {
        raw.push_back({.name = path[0],
                       .place = fmt::format("{} in {}", path[0], leaf.place),
                       .fields = {},
                       .listed = {}});
        if (!outer.empty())
          spec_.notes.push_back(fmt::format("{}{} is read as the key {}", outer, path[0], path[0]));
      }
      add_field(raw.back(), leaf, path);
    }
    if (raw.empty() && errors_.empty())
      error("{}; expected keys of 'octet train', such as learning_rate: {{values: [1e-4, 3e-4]}}",
            tree_.has("parameters") ? in_file("parameters") + " is empty"
                                    : in_file("parameters") + " is missing");
    for (const RawParameter& each : raw) read_parameter(each);
    check_names();
    check_grid();
  }

 private:
  template <class... Args>
  void error(fmt::format_string<Args...> format, Args&&... args) {
    errors_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  std::string in_file(std::string_view name) const { return fmt::format("{} in {}", name, tree_.file); }

  void add_field(RawParameter& parameter, const TreeLeaf& leaf, const std::vector<std::string>& path) {
    if (path[1] == "values" && path.size() == 3 && leaf.kind != TreeLeaf::Kind::EmptyMap) {
      parameter.listed.push_back(
          leaf.kind == TreeLeaf::Kind::List ? fmt::format("{}", fmt::join(leaf.items, ",")) : leaf.text);
      return;
    }
    if (path.size() != 2 || std::ranges::find(kFields, path[1]) == kFields.end()) {
      const std::string near = nearest_name(path[1], kFields);
      error("unknown key '{}' of {}{}", printable(path[1]), leaf.describe(),
            near.empty() ? fmt::format("; expected {}", fmt::join(kFields, ", "))
                         : fmt::format("; did you mean '{}'?", near));
      return;
    }
    parameter.fields[path[1]] = &leaf;
  }

  std::optional<double> number(const RawParameter& raw, const std::string& field,
                               std::optional<double> otherwise) {
    const auto found = raw.fields.find(field);
    if (found == raw.fields.end()) {
      if (!otherwise) error("{} has no {}", raw.place, field);
      return otherwise;
    }
    const std::optional<double> value = found->second->number();
    if (!value) error("{} is {}; expected a number", found->second->describe(), found->second->shown());
    return value;
  }

  const DistributionName* form_of(const RawParameter& raw) {
    if (const auto given = raw.fields.find("distribution"); given != raw.fields.end()) {
      const DistributionName* form = distribution_called(given->second->text);
      if (!form)
        error("{} is {}; expected one of {}", given->second->describe(), given->second->shown(),
              distribution_names());
      return form;
    }
    if (raw.fields.contains("value")) return distribution_called("constant");
    if (raw.fields.contains("values") || !raw.listed.empty()) return distribution_called("categorical");
    if (raw.fields.contains("min") && raw.fields.contains("max")) {
      const bool whole = is_whole(raw.fields.at("min")->text) && is_whole(raw.fields.at("max")->text);
      return distribution_called(whole ? "int_uniform" : "uniform");
    }
    error("{} has neither value, values, min and max, nor a distribution", raw.place);
    return nullptr;
  }

  void read_parameter(const RawParameter& raw) {
    const DistributionName* form = form_of(raw);
    if (!form) return;
    SweepParameter parameter{.name = raw.name, .key = raw.name, .place = raw.place, .distribution = {}};
    Distribution& distribution = parameter.distribution;
    distribution.kind = form->kind;
    distribution.name = form->name;
    const size_t faults = errors_.size();
    if (form->kind == Kind::Constant || form->kind == Kind::Categorical) {
      read_values(raw, distribution);
    } else {
      read_numbers(raw, *form, distribution);
    }
    if (errors_.size() != faults) return;
    check_values(raw, parameter);
    if (errors_.size() == faults) spec_.parameters.push_back(std::move(parameter));
  }

  void read_values(const RawParameter& raw, Distribution& distribution) {
    const bool constant = distribution.kind == Kind::Constant;
    const auto found = raw.fields.find(constant ? "value" : "values");
    distribution.values = raw.listed;
    if (found != raw.fields.end()) {
      const TreeLeaf& leaf = *found->second;
      if (leaf.is_null()) {
        error("{} is null; leave the parameter out to keep the default", leaf.describe());
        return;
      }
      if (leaf.kind != TreeLeaf::Kind::List) {
        distribution.values = {leaf.text};
        if (!constant) error("{} is {}; expected a list", leaf.describe(), leaf.shown());
      } else if (constant) {
        distribution.values = {fmt::format("{}", fmt::join(leaf.items, ","))};
      } else {
        distribution.values = leaf.items;
      }
    }
    if (distribution.values.empty()) error("{} has no {}", raw.place, constant ? "value" : "values");
    const auto given = raw.fields.find("probabilities");
    if (given == raw.fields.end()) return;
    double sum = 0;
    for (const std::string& text : given->second->list()) {
      const std::optional<double> probability = parse_double(text);
      if (!probability || *probability < 0) {
        error("{} has '{}'; expected numbers that are not negative", given->second->describe(),
              printable(text));
        return;
      }
      distribution.probabilities.push_back(*probability);
      sum += *probability;
    }
    if (distribution.probabilities.size() != distribution.values.size()) {
      error("{} has {} numbers for {} values", given->second->describe(), distribution.probabilities.size(),
            distribution.values.size());
    } else if (std::abs(sum - 1) > 1e-6) {
      error("{} adds up to {:g}; expected 1", given->second->describe(), sum);
    }
    if (spec_.method == SweepMethod::Grid)
      spec_.notes.push_back(
          fmt::format("{} has no effect: a grid takes every value once", given->second->describe()));
  }

  void read_numbers(const RawParameter& raw, const DistributionName& form, Distribution& distribution) {
    const Kind kind = form.kind;
    const auto text_of = [&](const char* field) {
      const auto found = raw.fields.find(field);
      return found == raw.fields.end() ? std::string() : found->second->text;
    };
    distribution.writes_integers = kind == Kind::IntUniform;
    if (form.has_q) {
      distribution.q = number(raw, "q", 1.0).value_or(1.0);
      distribution.writes_integers = text_of("q").empty() || is_whole(text_of("q"));
      if (distribution.q <= 0) error("q of {} is {}; expected a number above 0", raw.place, distribution.q);
    }
    if (kind == Kind::Normal || kind == Kind::LogNormal) {
      distribution.mu = number(raw, "mu", 0.0).value_or(0);
      distribution.sigma = number(raw, "sigma", 1.0).value_or(1);
      if (distribution.sigma < 0)
        error("sigma of {} is {}; expected at least 0", raw.place, distribution.sigma);
      return;
    }
    if (kind == Kind::Beta) {
      distribution.a = number(raw, "a", 1.0).value_or(1);
      distribution.b = number(raw, "b", 1.0).value_or(1);
      if (distribution.a <= 0 || distribution.b <= 0)
        error("{} has a {} and b {}; expected numbers above 0", raw.place, distribution.a, distribution.b);
      return;
    }
    const std::optional<double> min = number(raw, "min", std::nullopt),
                                max = number(raw, "max", std::nullopt);
    if (!min || !max) return;
    if (*min > *max) {
      error("{} has min {} and max {}; expected min to be the smaller one", raw.place, text_of("min"),
            text_of("max"));
      return;
    }
    distribution.min = *min;
    distribution.max = *max;
    if (kind == Kind::IntUniform && (*min != std::floor(*min) || *max != std::floor(*max)))
      error("{} has min {} and max {}; int_uniform needs integers", raw.place, text_of("min"),
            text_of("max"));
    if (kind == Kind::LogUniform) read_logarithms(raw, form.bounds, distribution);
  }

  void read_logarithms(const RawParameter& raw, Bounds bounds, Distribution& distribution) {
    if (bounds == Bounds::Values) {
      if (distribution.min <= 0)
        error("{} has min {:g}; {} needs numbers above 0", raw.place, distribution.min, distribution.name);
      return;
    }
    if (bounds == Bounds::InverseLogarithms) {
      distribution.min = std::exp(-std::exchange(distribution.max, std::exp(-distribution.min)));
    } else {
      distribution.min = std::exp(distribution.min);
      distribution.max = std::exp(distribution.max);
    }
    if (!std::isfinite(distribution.max) || distribution.min <= 0) {
      error("{} has min and max out of range: {} takes natural logarithms", raw.place, distribution.name);
    } else if (distribution.min >= 1 && bounds == Bounds::Logarithms) {
      spec_.warnings.push_back(fmt::format(
          "{}: {} takes natural logarithms, so the values are {:g} to {:g}; did you mean log_uniform_values?",
          raw.place, distribution.name, distribution.min, distribution.max));
    }
  }

  // Whether 'octet train' takes the values.
  void check_values(const RawParameter& raw, SweepParameter& parameter) {
    const std::span<const Key> keys = train_keys().keys();
    const Distribution& distribution = parameter.distribution;
    const size_t name_end = raw.place.find(" in ");
    std::vector<std::string> tried = distribution.values;
    if (distribution.values.empty()) tried = {distribution.value_of(0.5)};
    const bool has_bounds = distribution.values.empty() && !distribution.name.ends_with("normal");
    if (has_bounds) tried.insert(tried.end(), {distribution.value_of(0), distribution.value_of(1)});
    const Key* key = key_called(keys, raw.name);
    const bool continuous = distribution.values.empty() && !distribution.writes_integers;
    if (key && key->type == KeyType::Int && continuous) {
      error("{} is an integer, but {} gives fractions; use int_uniform, or a q_ distribution with a whole q",
            raw.place, distribution.name);
      return;
    }
    std::set<std::string> said;
    for (const std::string& value : tried) {
      const KeySetting setting{.name = raw.name, .values = {value}, .place = raw.place.substr(name_end + 4)};
      std::vector<std::string> faults;
      resolve_settings(keys, std::span(&setting, 1), faults);
      for (std::string& fault : faults)
        if (said.insert(fault).second) errors_.push_back(std::move(fault));
      if (!key && !faults.empty()) return;  // an unknown key is said once
    }
    if (key) parameter.key = key->name;
    if (kReserved.contains(parameter.key))
      error("{}: the sweep sets {} for every run itself", raw.place, parameter.key);
  }

  void check_names() {
    std::map<std::string, std::string> first;
    for (const SweepParameter& parameter : spec_.parameters) {
      const auto [at, is_new] = first.emplace(parameter.key, parameter.place);
      if (!is_new) error("{} and {} are the same key", at->second, parameter.place);
    }
  }

  void check_grid() {
    if (spec_.method != SweepMethod::Grid) return;
    double size = 1;
    for (const SweepParameter& parameter : spec_.parameters) {
      const std::optional<int64_t> count = parameter.distribution.count();
      if (!count) {
        error(
            "{} is {}, which has no end of values; a grid needs value, values, int_uniform or q_uniform "
            "(or take method random or bayes)",
            parameter.place, parameter.distribution.name);
      } else {
        size *= static_cast<double>(*count);
      }
      std::set<std::string> seen;
      for (const std::string& value : parameter.distribution.values) {
        if (!seen.insert(value).second)
          error("{} has {} twice; a grid trains every value once", parameter.place, printable(value));
      }
    }
    if (size > 1e9) error("{} has {:.3g} combinations; expected at most 1e9", in_file("the grid"), size);
  }

  const SettingsTree& tree_;
  SweepSpec& spec_;
  std::vector<std::string>& errors_;
};

}  // namespace

void read_sweep_parameters(const SettingsTree& tree, SweepSpec& spec, std::vector<std::string>& errors) {
  ParametersReader(tree, spec, errors).read();
}

}  // namespace octet
