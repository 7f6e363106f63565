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
#include "sweep/sweep_parameters.h"

namespace octet {
namespace {

const std::vector<std::string> kTopKeys = {
    "method",  "metric",     "parameters", "name",    "description",     "program",
    "command", "project",    "entity",     "run_cap", "early_terminate", "config",
    "kind",    "apiVersion", "controller", "job",     "image_uri"};
class SweepReader {
 public:
  explicit SweepReader(SettingsTree tree) : tree_(std::move(tree)) { spec_.file = tree_.file; }

  SweepSpec read() {
    check_top_keys();
    read_method();
    read_metric();
    read_sweep_parameters(tree_, spec_, errors_);
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
    } else if (!tree_.has("method")) {
      spec_.method = SweepMethod::Grid;
      spec_.notes.push_back(
          fmt::format("{} is not set: grid, every combination is a run", in_file("method")));
    } else if (text == "random") {
      spec_.method = SweepMethod::Random;
    } else if (text == "bayes") {
      spec_.method = SweepMethod::Bayes;
    } else {
      error("{} is {}; expected grid, random or bayes", leaf ? leaf->describe() : in_file("method"),
            leaf ? leaf->shown() : "a map");
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
    // With less than that, the rungs are too many to be of use. And rungs are counted, not measured.
    constexpr double kLeastEta = 1.01, kMostIterations = 1e12;
    const auto add_rung = [&](double rung) {
      const auto whole = static_cast<int64_t>(rung);
      if (hyperband.rungs.empty() || hyperband.rungs.back() != whole) hyperband.rungs.push_back(whole);
    };
    if (!(hyperband.eta >= kLeastEta)) {
      error("{} is {}; expected a number of at least {}", in_file("early_terminate.eta"), hyperband.eta,
            kLeastEta);
    } else if (max_iter && *max_iter > kMostIterations) {
      error("{} is {:g}; expected at most {:g}", in_file("early_terminate.max_iter"), *max_iter,
            kMostIterations);
    } else if (max_iter) {
      if (!s) error("{} is missing: max_iter needs s, the number of rungs", in_file("early_terminate.s"));
      double rung = *max_iter;
      for (int i = 0; i + 1 <= s.value_or(0) && rung / hyperband.eta >= 1; ++i) {
        rung /= hyperband.eta;
        add_rung(rung);
      }
      std::ranges::reverse(hyperband.rungs);
      if (s && hyperband.rungs.empty())
        error("{} gives no rung: max_iter {:g} divided by eta {:g} is below 1", in_file("early_terminate"),
              *max_iter, hyperband.eta);
    } else if (min_iter) {
      if (*min_iter < 1)
        error("{} is {:g}; expected at least 1", in_file("early_terminate.min_iter"), *min_iter);
      for (double rung = *min_iter; rung >= 1 && rung < kMostIterations; rung *= hyperband.eta)
        add_rung(rung);
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
    text += fmt::format("{}: {}", parameter.name, d.name);
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
