// The comparison as tables for the terminal, and as JSON.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "compare/figure_text.h"
#include "compare/report.h"
#include "report/table.h"
#include "report/text.h"

namespace octet {
namespace {

using Json = nlohmann::ordered_json;

std::string against_text(const Difference& difference) {
  std::string text = fmt::format("{:+.4f} ({:+.2f} %)", difference.mean, difference.percent);
  if (difference.interval)
    text += fmt::format(", 95 % interval {:+.4f} to {:+.4f}", difference.interval->low,
                        difference.interval->high);
  return text;
}

Json optional_number(const auto& value) {
  if (!value || !std::isfinite(static_cast<double>(*value))) return nullptr;
  return *value;
}

Json figures_json(const RunFigures& figures) {
  return {{"precision", figures.precision},
          {"tokens_per_second", optional_number(std::optional(figures.tokens_per_second))},
          {"step_ms", optional_number(std::optional(figures.step_ms))},
          {"loss", optional_number(std::optional(figures.loss))},
          {"eval_loss", optional_number(figures.eval_loss)},
          {"memory_bytes", optional_number(figures.memory_bytes)},
          {"memory_is_planned", figures.memory_is_planned},
          {"tokens", figures.tokens},
          {"seconds", optional_number(std::optional(figures.seconds))},
          {"energy_kwh",
           optional_number(figures.energy_joules ? std::optional(*figures.energy_joules / kJoulesPerKwh)
                                                 : std::nullopt)},
          {"joules_per_1000_tokens", optional_number(figures.joules_per_1000_tokens)},
          {"cost", optional_number(figures.cost)},
          {"cost_per_million_tokens", optional_number(figures.cost_per_million_tokens)},
          {"fp8_share", optional_number(figures.fp8_share)},
          {"bad_steps", figures.bad_steps},
          {"diverged_step", optional_number(figures.diverged_step)},
          {"first_bad_step", optional_number(figures.first_bad_step)},
          {"skipped_steps", figures.skipped_steps}};
}

Json difference_json(const std::optional<Difference>& difference) {
  if (!difference) return nullptr;
  Json json = {{"mean", difference->mean},
               {"percent", difference->percent},
               {"largest", difference->largest},
               {"largest_step", difference->largest_step},
               {"interval", nullptr},
               {"within_noise", difference->within_noise()},
               {"basis", difference->basis}};
  if (difference->interval) json["interval"] = {difference->interval->low, difference->interval->high};
  return json;
}

std::string differences_text(const Comparison& comparison, bool utf8) {
  std::string text;
  for (const VariantComparison& compared : comparison.comparisons) {
    text += fmt::format("\n{} against {}\n", terminal_safe(comparison.variants[compared.variant].name),
                        terminal_safe(comparison.variants.front().name));
    Table table({{""}, {"difference"}, {"largest"}, {"noise"}});
    const auto add = [&](const char* name, const std::optional<Difference>& difference) {
      if (!difference) return;
      table.add_row({name, against_text(*difference), largest_text(*difference), noise_text(*difference)});
    };
    add("training loss", compared.loss);
    add("evaluation loss", compared.evaluation);
    if (compared.loss || compared.evaluation) text += table.str(utf8);
    for (const auto& [name, difference] :
         {std::pair("training loss", &compared.loss), {"evaluation loss", &compared.evaluation}}) {
      if (*difference) text += fmt::format("noise of the {}: {}\n", name, (*difference)->basis);
    }
  }
  return text;
}

}  // namespace

std::string comparison_text(const Comparison& comparison, bool utf8) {
  std::vector<Table::Column> columns = {{""}};
  for (const Variant& variant : comparison.variants)
    columns.push_back({terminal_safe(variant.name), Align::Right});
  Table figures(columns);
  for (const FigureRow& row : figure_rows(comparison)) {
    std::vector<std::string> cells = {row.name};
    for (const FigureRow::Cell& cell : row.cells) cells.push_back(terminal_safe(cell.text));
    figures.add_row(std::move(cells));
  }
  std::string text = figures.str(utf8) + differences_text(comparison, utf8);
  if (!comparison.settings.empty()) {
    columns.front().title = "setting";
    for (Table::Column& column : columns) column.align = Align::Left;
    Table settings(columns);
    for (const SettingRow& row : comparison.settings) {
      std::vector<std::string> cells = {terminal_safe(row.key)};
      for (const std::string& value : row.values) cells.push_back(value.empty() ? "-" : terminal_safe(value));
      settings.add_row(std::move(cells));
    }
    text += fmt::format("\nsettings that differ\n{}", settings.str(utf8));
  }
  text += "\n";
  for (const std::string& note : comparison.notes) text += fmt::format("{}\n", terminal_safe(note));
  for (const std::string& warning : comparison.warnings)
    text += fmt::format("warning: {}\n", terminal_safe(warning));
  if (comparison.comparisons.size() > 1) {
    for (const VariantComparison& compared : comparison.comparisons)
      text += fmt::format("{}\n", terminal_safe(compared.verdict));
  }
  return text + fmt::format("verdict: {}\n", terminal_safe(comparison.verdict));
}

Json comparison_json(const Comparison& comparison) {
  Json variants = Json::array(), differences = Json::array(), settings = Json::object();
  for (const Variant& variant : comparison.variants) {
    Json runs = Json::array();
    for (const size_t run : variant.runs) {
      Json json = figures_json(comparison.figures[run]);
      json["name"] = comparison.runs[run].run.name;
      json["folder"] = comparison.runs[run].run.folder;
      json["steps"] = comparison.runs[run].run.records.back().step;
      runs.push_back(std::move(json));
    }
    Json json = figures_json(variant.mean);
    json["name"] = variant.name;
    json["runs"] = std::move(runs);
    variants.push_back(std::move(json));
  }
  for (const VariantComparison& compared : comparison.comparisons) {
    differences.push_back({{"variant", comparison.variants[compared.variant].name},
                           {"speed", optional_number(std::optional(compared.speed))},
                           {"speed_noise", optional_number(compared.speed_noise)},
                           {"memory", optional_number(compared.memory)},
                           {"energy", optional_number(compared.energy)},
                           {"cost_per_token", optional_number(compared.cost_per_token)},
                           {"loss", difference_json(compared.loss)},
                           {"evaluation", difference_json(compared.evaluation)},
                           {"is_good", compared.is_good},
                           {"verdict", compared.verdict}});
  }
  for (const SettingRow& row : comparison.settings) settings[row.key] = row.values;
  return {{"verdict", comparison.verdict},
          {"reference", comparison.variants.front().name},
          {"first_step", comparison.steps.front()},
          {"last_step", comparison.steps.back()},
          {"common_steps", comparison.steps.size()},
          {"variants", std::move(variants)},
          {"comparisons", std::move(differences)},
          {"settings", std::move(settings)},
          {"notes", comparison.notes},
          {"warnings", comparison.warnings}};
}

}  // namespace octet
