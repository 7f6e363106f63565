#include "sweep/sweep_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "base/text.h"
#include "report/table.h"
#include "report/text.h"
#include "submit/shell.h"

namespace octet {
namespace {

// A search may have hundreds of runs. More lines than this cannot be told apart.
constexpr size_t kMostCurves = 60;

std::string metric_text(const Trial& trial) {
  return trial.result && trial.result->metric ? fmt::format("{:.6g}", *trial.result->metric) : "-";
}

Tone tone_of(const Trial& trial, bool is_best) {
  if (is_best) return Tone::Good;
  if (!trial.result) return Tone::Muted;
  return trial.result->state == TrialState::Failed         ? Tone::Bad
         : trial.result->state == TrialState::StoppedEarly ? Tone::Warning
                                                           : Tone::Plain;
}

// The parameters that differ between runs.
std::vector<size_t> searched(const SweepSpec& spec) {
  std::vector<size_t> indices;
  for (size_t i = 0; i < spec.parameters.size(); ++i)
    if (spec.parameters[i].distribution.is_searched()) indices.push_back(i);
  return indices;
}

std::string value_of(const Trial& trial, size_t parameter) {
  return parameter < trial.values.size() ? trial.values[parameter] : "-";
}

std::string summary(const SweepResults& results) {
  std::string text = fmt::format("{} of {} finished", results.finished, counted(results.plan.runs, "run"));
  const auto add = [&](int64_t count, std::string_view what) {
    if (count > 0) text += fmt::format(", {} {}", count, what);
  };
  add(results.stopped, "stopped early");
  add(results.failed, "failed");
  add(results.running, "running");
  add(results.open, "open");
  return text;
}

HtmlParallel parallel(const SweepResults& results) {
  HtmlParallel chart{.title = "Parameters and result of every run", .axes = {}, .lines = {}};
  const SweepMetric& metric = *results.spec.metric;
  for (const size_t i : searched(results.spec)) {
    const SweepParameter& parameter = results.spec.parameters[i];
    chart.axes.push_back({.name = parameter.name, .log_scale = parameter.distribution.is_logarithmic()});
  }
  chart.axes.push_back({.name = metric.label()});
  chart.lower_is_better = !metric.maximize;
  chart.note = "The line of a run passes its values. The best runs are drawn strongest.";
  for (const Trial& trial : results.trials) {
    if (!trial.result || !trial.result->metric) continue;
    HtmlParallelLine line{.name = SweepStore::run_name(trial.index), .values = {}};
    for (const size_t i : searched(results.spec)) {
      const std::string value = value_of(trial, i);
      if (const std::optional<double> number = parse_double(value)) {
        line.values.emplace_back(*number);
      } else {
        line.values.emplace_back(value);
      }
    }
    line.values.emplace_back(*trial.result->metric);
    chart.lines.push_back(std::move(line));
  }
  return chart;
}

HtmlTable html_table(const SweepResults& results) {
  HtmlTable table{.title = "Runs", .columns = {{"run"}, {"state"}}, .rows = {}, .note = {}};
  table.columns.push_back({results.spec.metric->label(), Align::Right});
  for (const size_t i : searched(results.spec))
    table.columns.push_back({results.spec.parameters[i].name, Align::Right});
  table.columns.push_back({"steps", Align::Right});
  table.columns.push_back({"seconds", Align::Right});
  table.columns.push_back({"reason"});
  for (const Trial& trial : results.trials) {
    const Tone tone = tone_of(trial, &trial == results.best());
    std::vector<HtmlCell> row = {{SweepStore::run_name(trial.index), tone}, {results.state_of(trial), tone}};
    row.push_back({metric_text(trial), tone, trial.result ? trial.result->metric : std::nullopt});
    for (const size_t i : searched(results.spec))
      row.push_back({value_of(trial, i), Tone::Plain, parse_double(value_of(trial, i))});
    row.push_back({trial.result ? fmt::format("{}", trial.result->steps) : "-"});
    row.push_back({trial.result ? fmt::format("{:.1f}", trial.result->seconds) : "-"});
    row.push_back({trial.result ? trial.result->reason : ""});
    table.rows.push_back(std::move(row));
  }
  return table;
}

// One line per run, of what `value` finds in its records.
template <class Function>
HtmlChart curves(const SweepResults& results, const std::string& title, bool dots, const Function& value) {
  HtmlChart chart{.title = title, .x_label = "step", .y_label = title, .series = {}, .note = {}};
  int colour = 0;
  for (const Trial& trial : results.trials) {
    if (chart.series.size() == kMostCurves) {
      chart.note = fmt::format("Only the best {} runs are shown.", kMostCurves);
      break;
    }
    HtmlSeries series{
        .name = SweepStore::run_name(trial.index), .colour = colour++, .points = {}, .dots = dots};
    for (const StepRecord& record : records_of_run(results.store, trial.index)) {
      if (const std::optional<double> y = value(record))
        series.points.push_back({.x = static_cast<double>(record.step), .y = *y});
    }
    if (!series.points.empty()) chart.series.push_back(std::move(series));
  }
  return chart;
}

}  // namespace

SweepResults::SweepResults(const SweepSpec& sweep, const SweepPlan& sweep_plan, SweepStore& sweep_store)
    : spec(sweep), plan(sweep_plan), store(sweep_store), trials(sweep_store.scan()) {
  for (const Trial& trial : trials) {
    if (!trial.exists && trial.result)
      log_warning("the values of {} cannot be read, so its result is not shown; its file in {}/trials is damaged",
                  SweepStore::run_name(trial.index), sweep_store.folder());
  }
  std::erase_if(trials, [](const Trial& trial) { return !trial.exists; });
  for (const Trial& trial : trials) {
    if (!trial.result) {
      ++(trial.claims > 0 && !trial.is_free ? running : open);
    } else {
      ++(trial.result->state == TrialState::Finished       ? finished
         : trial.result->state == TrialState::StoppedEarly ? stopped
                                                           : failed);
    }
  }
  open += std::max<int64_t>(0, plan.runs - std::ssize(trials));
  const auto has_metric = [](const Trial& trial) {
    return trial.result && trial.result->state != TrialState::Failed && trial.result->metric;
  };
  std::ranges::stable_sort(trials, [&](const Trial& a, const Trial& b) {
    if (has_metric(a) != has_metric(b)) return has_metric(a);
    return has_metric(a) && spec.metric->is_better(*a.result->metric, *b.result->metric);
  });
}

const Trial* SweepResults::best() const {
  if (trials.empty()) return nullptr;
  const Trial& first = trials.front();
  return first.result && first.result->state != TrialState::Failed && first.result->metric ? &first : nullptr;
}

std::string SweepResults::state_of(const Trial& trial) const {
  if (trial.result) return std::string(to_string(trial.result->state));
  return trial.claims > 0 && !trial.is_free ? "running" : "open";
}

std::string SweepResults::command_of(const Trial& trial) const {
  std::vector<std::string> words = {"octet", "train"};
  words.insert(words.end(), plan.base_words.begin(), plan.base_words.end());
  for (size_t i = 0; i < trial.values.size(); ++i)
    words.push_back(fmt::format("--{}={}", spec.parameters[i].name, trial.values[i]));
  return shell_command(words);
}

std::string sweep_text(const SweepResults& results) {
  std::vector<Table::Column> columns = {{"run"}, {"state"}, {results.spec.metric->label(), Align::Right}};
  for (const size_t i : searched(results.spec))
    columns.push_back({results.spec.parameters[i].name, Align::Right});
  columns.push_back({"steps", Align::Right});
  columns.push_back({"time", Align::Right});
  Table table(columns);
  for (const Trial& trial : results.trials) {
    std::vector<std::string> row = {SweepStore::run_name(trial.index), results.state_of(trial),
                                    metric_text(trial)};
    for (const size_t i : searched(results.spec)) row.push_back(terminal_safe(value_of(trial, i)));
    row.push_back(trial.result ? fmt::format("{}", trial.result->steps) : "-");
    row.push_back(trial.result ? human_duration(trial.result->seconds) : "-");
    table.add_row(std::move(row));
  }
  std::string text = results.trials.empty() ? "" : table.str() + "\n";
  text += summary(results) + "\n";
  for (const Trial& trial : results.trials) {
    if (trial.result && trial.result->state == TrialState::Failed)
      text += fmt::format("{} failed: {}\n", SweepStore::run_name(trial.index),
                          terminal_safe(trial.result->reason));
  }
  if (const Trial* best = results.best()) {
    text += fmt::format("best: {} with {} {}, in {}\n  {}\n", SweepStore::run_name(best->index),
                        results.spec.metric->label(), metric_text(*best),
                        results.store.run_folder(best->index), terminal_safe(results.command_of(*best)));
  }
  return text;
}

nlohmann::ordered_json sweep_json(const SweepResults& results) {
  using Json = nlohmann::ordered_json;
  Json runs = Json::array();
  Json best = nullptr;
  for (const Trial& trial : results.trials) {
    Json values = Json::object();
    for (size_t i = 0; i < trial.values.size(); ++i)
      values[results.spec.parameters[i].name] = trial.values[i];
    Json run = {{"run", SweepStore::run_name(trial.index)},
                {"index", trial.index},
                {"state", results.state_of(trial)},
                {"metric", nullptr},
                {"parameters", values},
                {"folder", results.store.run_folder(trial.index)},
                {"command", results.command_of(trial)}};
    if (trial.result) {
      if (trial.result->metric) run["metric"] = *trial.result->metric;
      run["steps"] = trial.result->steps;
      run["seconds"] = trial.result->seconds;
      run["exit_code"] = trial.result->exit_code;
      if (!trial.result->reason.empty()) run["reason"] = trial.result->reason;
    }
    if (&trial == results.best()) best = run;
    runs.push_back(std::move(run));
  }
  return {{"sweep", results.store.folder()},
          {"method", to_string(results.spec.method)},
          {"metric", results.spec.metric->label()},
          {"goal", results.spec.metric->maximize ? "maximize" : "minimize"},
          {"total", results.plan.runs},
          {"finished", results.finished},
          {"stopped_early", results.stopped},
          {"failed", results.failed},
          {"running", results.running},
          {"open", results.open},
          {"best", best},
          {"runs", runs}};
}

HtmlPage sweep_page(const SweepResults& results) {
  const std::string name = results.spec.name.empty()
                               ? std::filesystem::path(results.store.folder()).filename().string()
                               : results.spec.name;
  HtmlPage page{
      .title = fmt::format("Sweep {}", name), .subtitle = summary(results), .sections = {}, .footer = {}};
  HtmlSection first{.heading = "", .parts = {}};
  const SweepMetric& metric = *results.spec.metric;
  if (const Trial* best = results.best()) {
    first.parts.emplace_back(
        HtmlVerdict{fmt::format("The best run is {}: {} {}.", SweepStore::run_name(best->index),
                                metric.label(), metric_text(*best)),
                    Tone::Good});
    first.parts.emplace_back(HtmlQuotes{{{.label = "Train it again", .text = results.command_of(*best)}}});
  } else {
    first.parts.emplace_back(HtmlVerdict{"No run has a result yet.", Tone::Muted});
  }
  first.parts.emplace_back(parallel(results));
  page.sections.push_back(std::move(first));
  page.sections.push_back({.heading = "", .parts = {html_table(results)}});
  HtmlSection losses{.heading = "Losses", .parts = {}};
  for (HtmlChart& chart :
       std::vector<HtmlChart>{curves(results, "evaluation loss", true,
                                     [](const StepRecord& record) { return record.eval_loss; }),
                              curves(results, "training loss", false,
                                     [](const StepRecord& record) { return std::optional(record.loss); })}) {
    if (!chart.series.empty()) losses.parts.emplace_back(std::move(chart));
  }
  if (!losses.parts.empty()) page.sections.push_back(std::move(losses));
  page.footer = fmt::format("octet sweep: method {}, metric {} ({}), {}", to_string(results.spec.method),
                            metric.label(), metric.maximize ? "maximize" : "minimize", results.spec.file);
  return page;
}

}  // namespace octet
