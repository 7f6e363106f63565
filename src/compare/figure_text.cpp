#include "compare/figure_text.h"

#include <fmt/format.h>

#include <cmath>
#include <functional>

#include "report/text.h"

namespace octet {
namespace {

using Show = std::function<std::string(double)>;
using Get = std::function<std::optional<double>(const RunFigures&)>;

FigureRow row_of(const Comparison& comparison, std::string name, const Get& get, const Show& show,
                 bool with_ratio = false) {
  FigureRow row{std::move(name), {}};
  const std::optional<double> first = get(comparison.variants.front().mean);
  for (const Variant& variant : comparison.variants) {
    const std::optional<double> value = get(variant.mean);
    FigureRow::Cell cell{"-", value};
    if (value && std::isfinite(*value)) {
      cell.text = show(*value);
      const bool is_first = &variant == &comparison.variants.front();
      if (with_ratio && !is_first && first && *first > 0)
        cell.text += fmt::format(" ({:.2f}x)", *value / *first);
    } else if (value) {
      cell.text = "not finite";
    }
    row.cells.push_back(std::move(cell));
  }
  return row;
}

bool has_any(const FigureRow& row) {
  for (const FigureRow::Cell& cell : row.cells) {
    if (cell.value) return true;
  }
  return false;
}

template <class T>
Get get_optional(std::optional<T> RunFigures::*member) {
  return [member](const RunFigures& f) {
    return f.*member ? std::optional(static_cast<double>(*(f.*member))) : std::nullopt;
  };
}

Get get_number(double RunFigures::*member) {
  return [member](const RunFigures& f) { return std::optional(f.*member); };
}

std::string four_digits(double value) {
  return fmt::format("{:.4f}", value);
}

FigureRow words_row(const Comparison& comparison, std::string name,
                    const std::function<std::string(const Variant&)>& text) {
  FigureRow row{std::move(name), {}};
  for (const Variant& variant : comparison.variants) row.cells.push_back({text(variant), std::nullopt});
  return row;
}

}  // namespace

std::string largest_text(const Difference& difference) {
  if (difference.largest == 0) return "-";
  return fmt::format("{:+.4f} at step {}", difference.largest, difference.largest_step);
}

std::string noise_text(const Difference& difference) {
  if (difference.largest == 0 && difference.mean == 0) return "identical";
  if (!difference.interval) return fmt::format("not known: too few {}s", difference.unit);
  return difference.within_noise() ? "within noise" : "more than noise";
}

std::vector<FigureRow> figure_rows(const Comparison& comparison) {
  const auto bytes = [](double value) { return human_bytes(value); };
  std::vector<FigureRow> rows;
  rows.push_back(words_row(comparison, "precision", [](const Variant& variant) {
    return variant.mean.precision.empty() ? "-" : variant.mean.precision;
  }));
  bool several = false;
  for (const Variant& variant : comparison.variants) several = several || variant.runs.size() > 1;
  if (several)
    rows.push_back(
        words_row(comparison, "runs", [](const Variant& v) { return fmt::format("{}", v.runs.size()); }));
  rows.push_back(
      row_of(comparison, "tokens/s", get_number(&RunFigures::tokens_per_second), with_thousands, true));
  rows.push_back(row_of(comparison, "step", get_number(&RunFigures::step_ms),
                        [](double ms) { return fmt::format("{:.2f} ms", ms); }));
  rows.push_back(row_of(comparison, "memory", get_optional(&RunFigures::memory_bytes), bytes, true));
  rows.push_back(row_of(comparison, "training loss", get_number(&RunFigures::loss), four_digits));
  rows.push_back(row_of(comparison, "evaluation loss", get_optional(&RunFigures::eval_loss), four_digits));
  rows.push_back(row_of(comparison, "training time", get_number(&RunFigures::seconds),
                        [](double seconds) { return human_duration(seconds); }));
  rows.push_back(row_of(
      comparison, "energy",
      [](const RunFigures& f) {
        return f.energy_joules ? std::optional(*f.energy_joules / kJoulesPerKwh) : std::nullopt;
      },
      [](double kwh) { return fmt::format("{:.3g} kWh", kwh); }));
  rows.push_back(row_of(
      comparison, "joules per 1,000 tokens", get_optional(&RunFigures::joules_per_1000_tokens),
      [](double joules) { return fmt::format("{:.3g}", joules); }, true));
  const auto money = [](double value) { return fmt::format("{:.3g}", value); };
  rows.push_back(row_of(comparison, "cost", get_optional(&RunFigures::cost), money));
  rows.push_back(row_of(comparison, "cost per million tokens",
                        get_optional(&RunFigures::cost_per_million_tokens), money, true));
  rows.push_back(words_row(comparison, "FP8 coverage", [](const Variant& variant) {
    return variant.mean.fp8_share ? fmt::format("{:.1f} % of FLOPs", 100 * *variant.mean.fp8_share)
                                  : "not recorded";
  }));
  std::erase_if(rows, [](const FigureRow& row) {
    const bool is_words = row.name == "precision" || row.name == "runs" || row.name == "FP8 coverage";
    return !is_words && !has_any(row);
  });
  return rows;
}

}  // namespace octet
