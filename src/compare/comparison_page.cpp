// The comparison as an HTML page.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <functional>
#include <map>

#include "compare/figure_text.h"
#include "compare/report.h"
#include "report/text.h"

namespace octet {
namespace {

using Value = std::function<std::optional<double>(const StepRecord&)>;

constexpr size_t kSmoothedSteps = 50;

int colour_of(size_t variant) {
  return static_cast<int>(variant);
}

// A run as it is. Of several runs: their mean, and the range from the least to the greatest.
HtmlSeries series_of(const Comparison& comparison, size_t index, const Value& value, bool dots) {
  const Variant& variant = comparison.variants[index];
  std::map<int64_t, std::vector<double>> values;
  for (const size_t run : variant.runs) {
    for (const StepRecord& record : comparison.runs[run].run.records) {
      if (const std::optional<double> one = value(record)) values[record.step].push_back(*one);
    }
  }
  const bool several = variant.runs.size() > 1;
  HtmlSeries series{
      .name = several ? fmt::format("{}, mean of {} runs", variant.name, variant.runs.size()) : variant.name,
      .colour = colour_of(index),
      .dots = dots,
      .smooth = !dots};
  for (const auto& [step, own] : values) {
    HtmlPoint point{static_cast<double>(step), mean_of(own)};
    if (several && std::isfinite(point.y)) {
      const auto [low, high] = std::ranges::minmax(own);
      point.low = low;
      point.high = high;
    }
    series.points.push_back(point);
  }
  return series;
}

struct ChartAbout {
  std::string title, y_label;
  Value value;
  bool dots = false;
  bool from_zero = false;
  double smoothing = 0;
};

void add_chart(std::vector<HtmlPart>& parts, const Comparison& comparison, const ChartAbout& about) {
  HtmlChart chart{.title = about.title,
                  .x_label = "step",
                  .y_label = about.y_label,
                  .smoothing = about.smoothing,
                  .from_zero = about.from_zero};
  bool has_points = false;
  // Few points need none, and a falling curve would lag behind.
  if (comparison.steps.size() < kSmoothedSteps) chart.smoothing = 0;
  for (size_t i = 0; i < comparison.variants.size(); ++i) {
    chart.series.push_back(series_of(comparison, i, about.value, about.dots));
    has_points = has_points || std::ranges::any_of(chart.series.back().points,
                                                   [](const HtmlPoint& p) { return std::isfinite(p.y); });
    if (comparison.variants[i].runs.size() > 1)
      chart.note = "A band is the range over the runs of a variant.";
  }
  if (has_points) parts.emplace_back(std::move(chart));
}

// Loss of each variant minus that of the reference, step by step.
void add_difference_chart(std::vector<HtmlPart>& parts, const Comparison& comparison) {
  const Value loss = [](const StepRecord& record) { return std::optional(record.loss); };
  std::map<double, double> reference;
  for (const HtmlPoint& point : series_of(comparison, 0, loss, false).points) reference[point.x] = point.y;
  HtmlChart chart{
      .title = fmt::format("Difference of the training loss to {}", comparison.variants.front().name),
      .x_label = "step",
      .y_label = "difference",
      .smoothing = comparison.steps.size() < kSmoothedSteps ? 0 : 0.8,
      .note = "0 is the reference. Below 0 the variant has the lower loss."};
  for (size_t i = 1; i < comparison.variants.size(); ++i) {
    HtmlSeries series = series_of(comparison, i, loss, false);
    std::erase_if(series.points, [&](const HtmlPoint& point) { return !reference.contains(point.x); });
    for (HtmlPoint& point : series.points) point = {point.x, point.y - reference[point.x]};
    chart.series.push_back(std::move(series));
  }
  HtmlSeries zero{.name = comparison.variants.front().name, .colour = 0, .smooth = false, .dashed = true};
  for (const int64_t step : {comparison.steps.front(), comparison.steps.back()})
    zero.points.push_back({static_cast<double>(step), 0});
  chart.series.push_back(std::move(zero));
  parts.emplace_back(std::move(chart));
}

HtmlSection charts(const Comparison& comparison) {
  HtmlSection section{"Curves", {}};
  add_chart(section.parts, comparison,
            {.title = "Training loss",
             .y_label = "loss",
             .value = [](const StepRecord& r) { return std::optional(r.loss); },
             .smoothing = 0.6});
  add_chart(section.parts, comparison,
            {.title = "Evaluation loss",
             .y_label = "loss",
             .value = [](const StepRecord& r) { return r.eval_loss; },
             .dots = true});
  add_difference_chart(section.parts, comparison);
  add_chart(section.parts, comparison,
            {.title = "Throughput",
             .y_label = "tokens/s",
             .value = [](const StepRecord& r) { return std::optional(r.tokens_per_second); },
             .from_zero = true});
  add_chart(section.parts, comparison,
            {.title = "Gradient norm",
             .y_label = "norm",
             .value = [](const StepRecord& r) { return std::optional(r.grad_norm); },
             .smoothing = 0.6});
  add_chart(section.parts, comparison,
            {.title = "Learning rate", .y_label = "rate", .value = [](const StepRecord& r) {
               return std::optional(r.lr);
             }});
  add_chart(
      section.parts, comparison,
      {.title = "Power of the GPU",
       .y_label = "watts",
       .value = [](const StepRecord& r) { return r.gpu ? std::optional(r.gpu->power_watts) : std::nullopt; },
       .from_zero = true});
  return section;
}

void add_bars(std::vector<HtmlPart>& parts, const Comparison& comparison, const char* figure,
              const char* title, const char* note) {
  for (const FigureRow& row : figure_rows(comparison)) {
    if (row.name != figure) continue;
    HtmlBars bars{.title = title, .note = note};
    for (size_t i = 0; i < row.cells.size(); ++i) {
      if (row.cells[i].value && std::isfinite(*row.cells[i].value))
        bars.bars.push_back(
            {comparison.variants[i].name, *row.cells[i].value, row.cells[i].text, colour_of(i)});
    }
    if (!bars.bars.empty()) parts.emplace_back(std::move(bars));
  }
}

// How much a ratio saves: "18 % less", "1.20x".
std::string change_text(double ratio) {
  if (std::abs(ratio - 1) < 0.005) return "the same";
  return ratio < 1 ? fmt::format("{:.0f} % less", 100 * (1 - ratio))
                   : fmt::format("{:.0f} % more", 100 * (ratio - 1));
}

// With a capital letter: the verdict stands alone here.
std::string sentence(std::string text) {
  if (!text.empty()) text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text;
}

const VariantComparison& shown_first(const Comparison& comparison) {
  return comparison.comparisons[comparison.best.value_or(0)];
}

Tone tone_of(const Difference& difference) {
  if (difference.within_noise() || difference.mean <= 0) return Tone::Good;
  return difference.interval ? Tone::Bad : Tone::Plain;  // what noise there is, is not known
}

HtmlFigures tiles(const Comparison& comparison, const VariantComparison& compared) {
  const Variant& reference = comparison.variants.front();
  const Variant& variant = comparison.variants[compared.variant];
  HtmlFigures tiles;
  const auto tone = [](double ratio) {
    return ratio < 0.98 ? Tone::Good : ratio > 1.02 ? Tone::Bad : Tone::Plain;
  };
  tiles.figures.push_back({"Speed", fmt::format("{:.2f}x", compared.speed),
                           fmt::format("{} tokens/s, {} {}", with_thousands(variant.mean.tokens_per_second),
                                       reference.name, with_thousands(reference.mean.tokens_per_second)),
                           tone(1 / compared.speed)});
  const auto add_loss = [&](const char* label, const std::optional<Difference>& difference) {
    if (!difference) return;
    tiles.figures.push_back({label, fmt::format("{:+.2f} %", difference->percent), noise_text(*difference),
                             tone_of(*difference)});
  };
  add_loss("Evaluation loss", compared.evaluation);
  add_loss("Training loss", compared.loss);
  if (compared.memory)
    tiles.figures.push_back({"Memory", change_text(*compared.memory),
                             human_bytes(static_cast<double>(*variant.mean.memory_bytes)),
                             tone(*compared.memory)});
  if (compared.energy)
    tiles.figures.push_back({"Energy per token", change_text(*compared.energy),
                             fmt::format("{:.3g} J per 1,000 tokens", *variant.mean.joules_per_1000_tokens),
                             tone(*compared.energy)});
  if (compared.cost_per_token)
    tiles.figures.push_back({"Cost per token", change_text(*compared.cost_per_token),
                             fmt::format("{:.3g} per million tokens", *variant.mean.cost_per_million_tokens),
                             tone(*compared.cost_per_token)});
  if (variant.mean.fp8_share && *variant.mean.fp8_share > 0)
    tiles.figures.push_back(
        {"FP8 coverage", fmt::format("{:.0f} %", 100 * *variant.mean.fp8_share), "of all FLOPs"});
  return tiles;
}

std::vector<Table::Column> variant_columns(const Comparison& comparison, const char* first, Align align) {
  std::vector<Table::Column> columns = {{first}};
  for (const Variant& variant : comparison.variants) columns.push_back({variant.name, align});
  return columns;
}

HtmlTable figures_table(const Comparison& comparison) {
  HtmlTable table{.columns = variant_columns(comparison, "figure", Align::Right)};
  for (const FigureRow& row : figure_rows(comparison)) {
    std::vector<HtmlCell> cells = {{row.name}};
    for (const FigureRow::Cell& cell : row.cells)
      cells.push_back(
          {cell.text, cell.text == "-" || cell.text == "not recorded" ? Tone::Muted : Tone::Plain});
    table.rows.push_back(std::move(cells));
  }
  return table;
}

HtmlTable differences_table(const Comparison& comparison) {
  HtmlTable table{.columns = {{"variant"},
                              {"loss"},
                              {"difference", Align::Right},
                              {"in percent", Align::Right},
                              {"95 % interval", Align::Right},
                              {"largest", Align::Right},
                              {"noise"},
                              {"how noise was judged"}}};
  for (const VariantComparison& compared : comparison.comparisons) {
    const auto add = [&](const char* name, const std::optional<Difference>& d) {
      if (!d) return;
      table.rows.push_back(
          {{comparison.variants[compared.variant].name},
           {name},
           {fmt::format("{:+.4f}", d->mean)},
           {fmt::format("{:+.2f} %", d->percent)},
           {d->interval ? fmt::format("{:+.4f} to {:+.4f}", d->interval->low, d->interval->high) : "-"},
           {largest_text(*d)},
           {noise_text(*d), tone_of(*d)},
           {d->basis, Tone::Muted}});
    };
    add("training", compared.loss);
    add("evaluation", compared.evaluation);
  }
  return table;
}

HtmlTable settings_table(const Comparison& comparison) {
  HtmlTable table{.columns = variant_columns(comparison, "setting", Align::Left)};
  for (const SettingRow& row : comparison.settings) {
    std::vector<HtmlCell> cells = {{row.key}};
    for (const std::string& value : row.values) cells.push_back({value.empty() ? "-" : value});
    table.rows.push_back(std::move(cells));
  }
  return table;
}

HtmlTable coverage_table(const Comparison& comparison) {
  HtmlTable table{.columns = variant_columns(comparison, "share of the work in FP8", Align::Right)};
  std::vector<std::string> kinds;
  for (const ComparedRun& run : comparison.runs) {
    if (!run.plan) continue;
    for (const PlanFacts::Work& work : run.plan->work) {
      if (std::ranges::find(kinds, work.kind) == kinds.end()) kinds.push_back(work.kind);
    }
  }
  for (const std::string& kind : kinds) {
    std::vector<HtmlCell> cells = {{kind}};
    for (const Variant& variant : comparison.variants) {
      const std::optional<PlanFacts>& plan = comparison.runs[variant.runs.front()].plan;
      HtmlCell cell{"not recorded", Tone::Muted};
      if (plan) {
        const auto work = std::ranges::find(plan->work, kind, &PlanFacts::Work::kind);
        if (work != plan->work.end())
          cell = {fmt::format("{:.0f} % of {:.1f} %", 100 * work->in_fp8, 100 * work->share)};
      }
      cells.push_back(std::move(cell));
    }
    table.rows.push_back(std::move(cells));
  }
  table.note = "The second figure is the share of this kind of work in all FLOPs of a training step.";
  return table;
}

HtmlTable runs_table(const Comparison& comparison) {
  HtmlTable table{.columns = {{"run"},
                              {"variant"},
                              {"seed", Align::Right},
                              {"steps", Align::Right},
                              {"tokens/s", Align::Right},
                              {"training loss", Align::Right},
                              {"evaluation loss", Align::Right},
                              {"device"}}};
  for (const Variant& variant : comparison.variants) {
    for (const size_t i : variant.runs) {
      const ComparedRun& run = comparison.runs[i];
      const RunFigures& figures = comparison.figures[i];
      const std::string seed = run.run.setting("seed");
      table.rows.push_back(
          {{run.run.name},
           {variant.name},
           {seed.empty() ? "-" : seed},
           {fmt::format("{}", run.run.records.back().step)},
           {with_thousands(figures.tokens_per_second), Tone::Plain, figures.tokens_per_second},
           {fmt::format("{:.4f}", figures.loss), Tone::Plain, figures.loss},
           {figures.eval_loss ? fmt::format("{:.4f}", *figures.eval_loss) : "-"},
           {run.plan ? run.plan->device : "not recorded"}});
    }
  }
  return table;
}

// The latest text of each variant.
HtmlQuotes samples(const Comparison& comparison) {
  HtmlQuotes quotes;
  for (size_t i = 0; i < comparison.variants.size(); ++i) {
    const std::vector<StepRecord>& records = comparison.runs[comparison.variants[i].runs.front()].run.records;
    const auto last = std::find_if(records.rbegin(), records.rend(),
                                   [](const StepRecord& r) { return !r.samples.empty(); });
    if (last == records.rend()) continue;
    quotes.quotes.push_back({fmt::format("{}, step {}", comparison.variants[i].name, last->step),
                             last->samples.front(), colour_of(i)});
  }
  return quotes;
}

HtmlTable checklist_table(const Checklist& checklist) {
  HtmlTable table{.columns = {{"check"}, {"result"}, {"what was found"}, {"what to try"}}};
  for (const ChecklistItem& item : checklist.items) {
    table.rows.push_back({{item.name},
                          {item.passed ? "ok" : "failed", item.passed ? Tone::Good : Tone::Bad},
                          {item.text},
                          {item.passed ? "" : item.remedy}});
  }
  return table;
}

}  // namespace

HtmlPage comparison_page(const Comparison& comparison, const Checklist* checklist) {
  std::vector<std::string> names;
  for (const Variant& variant : comparison.variants) names.push_back(variant.name);
  const VariantComparison& first = shown_first(comparison);
  // A single variant has its own verdict, also if its speed was emulated.
  const bool is_good = comparison.best || (comparison.comparisons.size() == 1 && first.is_good);
  HtmlPage page{.title = fmt::format("{}", fmt::join(names, " / ")),
                .subtitle = fmt::format("{} compared over steps {} to {}; the reference is {}",
                                        counted(static_cast<int64_t>(comparison.runs.size()), "run"),
                                        comparison.steps.front(), comparison.steps.back(), names.front()),
                .footer = "Made by octet compare. Drag in a chart to zoom, double-click to reset."};
  HtmlSection top{"", {}};
  top.parts.emplace_back(HtmlVerdict{sentence(comparison.verdict), is_good ? Tone::Good : Tone::Warning});
  for (const std::string& warning : comparison.warnings)
    top.parts.emplace_back(HtmlText{fmt::format("Warning: {}", warning), Tone::Warning});
  if (names.size() > 2)
    top.parts.emplace_back(HtmlText{
        fmt::format("{} against {}:", comparison.variants[first.variant].name, names.front()), Tone::Muted});
  top.parts.emplace_back(tiles(comparison, first));
  page.sections.push_back(std::move(top));
  if (checklist) {
    page.sections.push_back(
        {"Checklist",
         {HtmlVerdict{checklist->is_ready() ? "Ready for a long run" : "Not ready for a long run",
                      checklist->is_ready() ? Tone::Good : Tone::Bad},
          checklist_table(*checklist)}});
  }
  HtmlSection figures{"Figures", {figures_table(comparison)}};
  add_bars(figures.parts, comparison, "tokens/s", "Throughput in tokens/s", "More is better.");
  add_bars(figures.parts, comparison, "memory", "Memory", "Less is better.");
  add_bars(figures.parts, comparison, "joules per 1,000 tokens", "Joules per 1,000 tokens",
           "Less is better.");
  page.sections.push_back(std::move(figures));
  page.sections.push_back(charts(comparison));
  HtmlTable differences = differences_table(comparison);
  if (!differences.rows.empty())
    page.sections.push_back({fmt::format("Differences to {}", names.front()), {std::move(differences)}});
  if (!comparison.settings.empty())
    page.sections.push_back({"Settings that differ", {settings_table(comparison)}});
  HtmlTable coverage = coverage_table(comparison);
  if (!coverage.rows.empty()) page.sections.push_back({"FP8 coverage", {std::move(coverage)}});
  if (HtmlQuotes quotes = samples(comparison); !quotes.quotes.empty())
    page.sections.push_back({"Samples", {std::move(quotes)}});
  HtmlSection about{"Runs", {runs_table(comparison)}};
  for (const std::string& note : comparison.notes) about.parts.emplace_back(HtmlText{note, Tone::Muted});
  page.sections.push_back(std::move(about));
  return page;
}

}  // namespace octet
