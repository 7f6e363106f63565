#include "sweep/sweep_spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "base/config_text.h"
#include "base/error.h"
#include "base/text.h"
#include "config/config.h"
#include "import/tree.h"

namespace octet {
namespace {

using Kind = DistributionKind;

// Keys that the sweep itself sets for every run.
const std::set<std::string> kReserved = {"run_name",       "output_dir", "resume",
                                         "checkpoint_dir", "dry_run",    "list_checkpoints"};

const std::vector<std::string> kTopKeys = {
    "method",  "metric",     "parameters", "name",    "description",     "program",
    "command", "project",    "entity",     "run_cap", "early_terminate", "config",
    "kind",    "apiVersion", "controller", "job",     "image_uri"};
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

class SweepReader {
 public:
  explicit SweepReader(SettingsTree tree) : tree_(std::move(tree)) { spec_.file = tree_.file; }

  SweepSpec read() {
    check_top_keys();
    read_method();
    read_metric();
    read_parameters();
    read_hyperband();
    read_cap();
    read_start();
    throw_config_errors(errors_);
    return std::move(spec_);
  }

 private:
  template <class... Args>
  void error(fmt::format_string<Args...> format, Args&&... args) {
    errors_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  std::string in_file(std::string_view name) const { return fmt::format("{} in {}", name, tree_.file); }

  void check_top_keys() {
    std::set<std::string> seen;
    for (const TreeLeaf& leaf : tree_.leaves) {
      const std::string top = leaf.name.substr(0, leaf.name.find('.'));
      if (!seen.insert(top).second || std::ranges::find(kTopKeys, top) != kTopKeys.end()) continue;
      const std::string near = nearest_name(top, kTopKeys);
      error("unknown key '{}' in {}{}", printable(top), leaf.place,
            near.empty() ? fmt::format("; a sweep file has {}", fmt::join(kTopKeys, ", "))
                         : fmt::format("; did you mean '{}'?", near));
    }
  }

  void read_method() {
    const TreeLeaf* leaf = tree_.find("method");
    const std::string text = tree_.text("method");
    if (text == "grid") {
      spec_.method = SweepMethod::Grid;
    } else if (text == "random") {
      spec_.method = SweepMethod::Random;
    } else if (text == "bayes") {
      spec_.method = SweepMethod::Bayes;
    } else {
      error("{} is {}; expected grid, random or bayes", leaf ? leaf->describe() : in_file("method"),
            leaf ? leaf->shown() : "missing");
    }
  }

  void read_metric() {
    if (!tree_.has("metric")) {
      if (spec_.method == SweepMethod::Bayes)
        error("{} is missing: method bayes needs metric: {{name: eval_loss, goal: minimize}}",
              in_file("metric"));
      if (tree_.has("early_terminate"))
        error("{} is missing: early_terminate compares runs by it", in_file("metric"));
      if (spec_.method != SweepMethod::Bayes)
        spec_.notes.push_back(fmt::format("{} is not set: runs are ranked by eval_loss", in_file("metric")));
      spec_.metric = metric_called("eval_loss");
      return;
    }
    const TreeLeaf* name = tree_.find("metric.name");
    if (!name || name->text.empty()) {
      error("{} is missing; expected the name of a metric: {}", in_file("metric.name"), metric_names());
      return;
    }
    spec_.metric = metric_called(name->text);
    if (!spec_.metric) {
      error("{} is {}, which octet does not log; expected {}", name->describe(), name->shown(),
            metric_names());
      return;
    }
    SweepMetric& metric = *spec_.metric;
    if (const TreeLeaf* goal = tree_.find("metric.goal")) {
      if (goal->text != "minimize" && goal->text != "maximize") {
        error("{} is {}; expected minimize or maximize", goal->describe(), goal->shown());
      } else {
        const bool maximize = goal->text == "maximize";
        if (maximize != metric.maximize)
          spec_.warnings.push_back(fmt::format("{} is {}: the sweep looks for the {} {}", goal->describe(),
                                               goal->text, maximize ? "largest" : "smallest",
                                               metric.label()));
        metric.maximize = maximize;
      }
    }
    if (const TreeLeaf* target = tree_.find("metric.target")) {
      metric.target = target->number();
      if (!metric.target) error("{} is {}; expected a number", target->describe(), target->shown());
    }
    for (const TreeLeaf& leaf : tree_.leaves) {
      if (!leaf.name.starts_with("metric.")) continue;
      const std::string field = leaf.name.substr(7);
      if (field == "impute" || field == "impute_while_running") {
        if (leaf.text != "worst" && leaf.text != "false")
          spec_.notes.push_back(
              fmt::format("{} is ignored: failed runs count as the worst one", leaf.describe()));
      } else if (field != "name" && field != "goal" && field != "target") {
        error("unknown key '{}' in {}; metric has name, goal and target", printable(leaf.name), leaf.place);
      }
    }
  }

  // --- parameters

  void read_parameters() {
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

  std::optional<Kind> kind_of(const RawParameter& raw) {
    if (const auto given = raw.fields.find("distribution"); given != raw.fields.end()) {
      const std::optional<Kind> kind = distribution_called(given->second->text);
      if (!kind)
        error("{} is {}; expected one of {}", given->second->describe(), given->second->shown(),
              distribution_names());
      return kind;
    }
    if (raw.fields.contains("value")) return Kind::Constant;
    if (raw.fields.contains("values") || !raw.listed.empty()) return Kind::Categorical;
    if (raw.fields.contains("min") && raw.fields.contains("max")) {
      return is_whole(raw.fields.at("min")->text) && is_whole(raw.fields.at("max")->text) ? Kind::IntUniform
                                                                                          : Kind::Uniform;
    }
    error("{} has neither value, values, min and max, nor a distribution", raw.place);
    return std::nullopt;
  }

  void read_parameter(const RawParameter& raw) {
    const std::optional<Kind> kind = kind_of(raw);
    if (!kind) return;
    SweepParameter parameter{.name = raw.name, .key = raw.name, .place = raw.place, .distribution = {}};
    Distribution& distribution = parameter.distribution;
    distribution.kind = *kind;
    const size_t faults = errors_.size();
    if (*kind == Kind::Constant || *kind == Kind::Categorical) {
      read_values(raw, distribution);
    } else {
      read_numbers(raw, distribution);
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

  void read_numbers(const RawParameter& raw, Distribution& distribution) {
    const Kind kind = distribution.kind;
    const auto text_of = [&](const char* field) {
      const auto found = raw.fields.find(field);
      return found == raw.fields.end() ? std::string() : found->second->text;
    };
    distribution.writes_integers = kind == Kind::IntUniform;
    if (to_string(kind).starts_with("q_")) {
      distribution.q = number(raw, "q", 1.0).value_or(1.0);
      distribution.writes_integers = text_of("q").empty() || is_whole(text_of("q"));
      if (distribution.q <= 0) error("q of {} is {}; expected a number above 0", raw.place, distribution.q);
    }
    if (kind == Kind::Normal || kind == Kind::QNormal || kind == Kind::LogNormal ||
        kind == Kind::QLogNormal) {
      distribution.mu = number(raw, "mu", 0.0).value_or(0);
      distribution.sigma = number(raw, "sigma", 1.0).value_or(1);
      if (distribution.sigma < 0)
        error("sigma of {} is {}; expected at least 0", raw.place, distribution.sigma);
      return;
    }
    if (kind == Kind::Beta || kind == Kind::QBeta) {
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
    read_logarithms(raw, distribution);
  }

  void read_logarithms(const RawParameter& raw, Distribution& distribution) {
    switch (distribution.kind) {
      case Kind::LogUniform:
      case Kind::QLogUniform:
        distribution.min = std::exp(distribution.min);
        distribution.max = std::exp(distribution.max);
        break;
      case Kind::InvLogUniform:  // of log(1 / x)
        distribution.min = std::exp(-std::exchange(distribution.max, std::exp(-distribution.min)));
        break;
      case Kind::LogUniformValues:
      case Kind::QLogUniformValues:
      case Kind::InvLogUniformValues:
        if (distribution.min <= 0)
          error("{} has min {:g}; {} needs numbers above 0", raw.place, distribution.min,
                to_string(distribution.kind));
        return;
      default:
        return;
    }
    if (!std::isfinite(distribution.max) || distribution.min <= 0) {
      error("{} has min and max out of range: {} takes natural logarithms", raw.place,
            to_string(distribution.kind));
    } else if (distribution.min >= 1 && distribution.kind != Kind::InvLogUniform) {
      spec_.warnings.push_back(fmt::format(
          "{}: {} takes natural logarithms, so the values are {:g} to {:g}; did you mean log_uniform_values?",
          raw.place, to_string(distribution.kind), distribution.min, distribution.max));
    }
  }

  // Whether 'octet train' takes the values.
  void check_values(const RawParameter& raw, SweepParameter& parameter) {
    const std::span<const Key> keys = train_keys().keys();
    const Distribution& distribution = parameter.distribution;
    const size_t name_end = raw.place.find(" in ");
    std::vector<std::string> tried = distribution.values;
    if (distribution.values.empty()) tried = {distribution.value_of(0.5)};
    const bool has_bounds = distribution.values.empty() && !to_string(distribution.kind).ends_with("normal");
    if (has_bounds) tried.insert(tried.end(), {distribution.value_of(0), distribution.value_of(1)});
    const Key* key = key_called(keys, raw.name);
    const bool continuous = distribution.values.empty() && !distribution.writes_integers;
    if (key && key->type == KeyType::Int && continuous) {
      error("{} is an integer, but {} gives fractions; use int_uniform, or a q_ distribution with a whole q",
            raw.place, to_string(distribution.kind));
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
            parameter.place, to_string(parameter.distribution.kind));
      } else {
        size *= static_cast<double>(*count);
      }
    }
    if (size > 1e9) error("{} has {:.3g} combinations; expected at most 1e9", in_file("the grid"), size);
  }

  // --- the rest

  void read_hyperband() {
    if (!tree_.has("early_terminate") || tree_.find("early_terminate")) return;  // null
    const TreeLeaf* type = tree_.find("early_terminate.type");
    if (!type || type->text != "hyperband") {
      error("{} is {}; expected hyperband", type ? type->describe() : in_file("early_terminate.type"),
            type ? type->shown() : "missing");
      return;
    }
    Hyperband hyperband;
    const auto value = [&](const char* field) -> std::optional<double> {
      const TreeLeaf* leaf = tree_.find(fmt::format("early_terminate.{}", field));
      if (!leaf) return std::nullopt;
      const std::optional<double> given = leaf->number();
      if (!given) error("{} is {}; expected a number", leaf->describe(), leaf->shown());
      return given;
    };
    for (const TreeLeaf& leaf : tree_.leaves) {
      static const std::set<std::string> kKnown = {"type", "min_iter", "max_iter", "s", "eta", "strict"};
      if (leaf.name.starts_with("early_terminate.") && !kKnown.contains(leaf.name.substr(16)))
        error("unknown key '{}' in {}; hyperband has min_iter, or max_iter and s, and eta and strict",
              printable(leaf.name), leaf.place);
    }
    hyperband.eta = value("eta").value_or(3);
    hyperband.strict = tree_.flag("early_terminate.strict").value_or(false);
    const auto min_iter = value("min_iter"), max_iter = value("max_iter"), s = value("s");
    if (hyperband.eta <= 1) {
      error("{} is {:g}; expected a number above 1", in_file("early_terminate.eta"), hyperband.eta);
    } else if (max_iter) {
      if (!s) error("{} is missing: max_iter needs s, the number of rungs", in_file("early_terminate.s"));
      double rung = *max_iter;
      for (int i = 0; i < static_cast<int>(s.value_or(0)) && rung / hyperband.eta >= 1; ++i) {
        rung /= hyperband.eta;
        hyperband.rungs.push_back(static_cast<int64_t>(rung));
      }
      std::ranges::reverse(hyperband.rungs);
      if (s && hyperband.rungs.empty())
        error("{} gives no rung: max_iter {:g} divided by eta {:g} is below 1", in_file("early_terminate"),
              *max_iter, hyperband.eta);
    } else if (min_iter) {
      if (*min_iter < 1)
        error("{} is {:g}; expected at least 1", in_file("early_terminate.min_iter"), *min_iter);
      for (double rung = *min_iter; rung >= 1 && rung < 1e12; rung *= hyperband.eta)
        hyperband.rungs.push_back(static_cast<int64_t>(rung));
    } else {
      error("{} has neither min_iter nor max_iter", in_file("early_terminate"));
    }
    spec_.hyperband = std::move(hyperband);
  }

  void read_cap() {
    const TreeLeaf* leaf = tree_.find("run_cap");
    if (!leaf || leaf->is_null()) return;
    const std::optional<int64_t> cap = parse_int(leaf->text);
    if (!cap || *cap < 1 || *cap > 1'000'000) {
      error("{} is {}; expected an integer from 1 to 1000000", leaf->describe(), leaf->shown());
    } else {
      spec_.run_cap = cap;
    }
  }

  // Which configuration the runs start from.
  void read_start() {
    spec_.name = tree_.text("name");
    spec_.base_config = tree_.text("config");
    for (const char* ignored : {"project", "entity", "controller", "job", "image_uri"}) {
      if (tree_.has(ignored))
        spec_.notes.push_back(
            fmt::format("{} is ignored: the sweep runs here, without a server", in_file(ignored)));
    }
    const TreeLeaf* command = tree_.find("command");
    const bool calls_octet = command && read_command(*command);
    const TreeLeaf* program = tree_.find("program");
    if (program && !calls_octet && std::filesystem::path(program->text).filename() != "octet")
      spec_.notes.push_back(fmt::format("{} is ignored: the runs are 'octet train'", program->describe()));
  }

  bool read_command(const TreeLeaf& leaf) {
    std::vector<std::string> words = leaf.list();
    // ${env}, ${interpreter}, ${program} and ${args}: the sweep puts the parameters at the end.
    std::erase_if(words, [](const std::string& word) { return word.starts_with("${"); });
    if (words.empty()) return false;
    if (std::filesystem::path(words.front()).filename() != "octet") {
      spec_.warnings.push_back(fmt::format("{} starts '{}': it is ignored, the runs are 'octet train'",
                                           leaf.describe(), printable(words[0])));
      return false;
    }
    if (words.size() < 2 || words[1] != "train") {
      error("{} calls 'octet {}'; expected 'octet train' (for several GPUs per run: octet sweep --ranks N)",
            leaf.describe(), words.size() > 1 ? printable(words[1]) : "");
      return true;
    }
    words.erase(words.begin(), words.begin() + 2);
    if (!words.empty() && !words.front().starts_with('-')) {
      if (spec_.base_config.empty()) spec_.base_config = words.front();
      words.erase(words.begin());
    }
    spec_.base_flags = std::move(words);
    return true;
  }

  SettingsTree tree_;
  SweepSpec spec_;
  std::vector<std::string> errors_;
};

}  // namespace

std::string_view to_string(SweepMethod method) {
  return method == SweepMethod::Grid ? "grid" : method == SweepMethod::Random ? "random" : "bayes";
}

std::optional<int64_t> SweepSpec::grid_size() const {
  if (method != SweepMethod::Grid) return std::nullopt;
  int64_t size = 1;
  for (const SweepParameter& parameter : parameters) size *= parameter.distribution.count().value_or(1);
  return size;
}

std::string SweepSpec::identity() const {
  std::string text = fmt::format("method: {}\n", to_string(method));
  if (metric)
    text += fmt::format("metric: {} {}\n", metric->label(), metric->maximize ? "maximize" : "minimize");
  for (const SweepParameter& parameter : parameters) {
    const Distribution& d = parameter.distribution;
    text += fmt::format("{}: {}", parameter.name, to_string(d.kind));
    if (!d.values.empty()) {
      text += fmt::format(" [{}]", fmt::join(d.values, ", "));
      if (!d.probabilities.empty())
        text += fmt::format(" with probabilities [{}]", fmt::join(d.probabilities, ", "));
    } else {
      text += fmt::format(" min {:g} max {:g} mu {:g} sigma {:g} a {:g} b {:g} q {:g}", d.min, d.max, d.mu,
                          d.sigma, d.a, d.b, d.q);
    }
    text += '\n';
  }
  return text;
}

SweepSpec parse_sweep(const std::string& text, const std::string& file_name) {
  return SweepReader(parse_tree(text, file_name)).read();
}

SweepSpec read_sweep_file(const std::string& path) {
  return parse_sweep(read_config_text(path, "YAML"), path);
}

bool is_sweep_file(const std::string& path) {
  try {
    const SettingsTree tree = parse_tree(read_config_text(path, "YAML"), path);
    return tree.has("parameters") && (tree.has("method") || tree.has("metric") || !tree.has("max_steps"));
  } catch (const Error&) {
    return false;
  }
}

}  // namespace octet
