#include "report/plot_draw.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "report/text.h"

namespace octet {
namespace {

constexpr double kWidth = 900, kPanelHeight = 270;
constexpr double kLeft = 78, kRight = 24, kAbove = 34, kBelow = 34;  // around a panel's axes
constexpr double kLegendLine = 22, kTop = 16, kBottom = 26;
constexpr double kTextSize = 12, kTitleSize = 13.5;
constexpr Rgb kInk = {40, 44, 52}, kSoft = {110, 116, 126}, kGrid = {226, 229, 234},
              kAxisLine = {150, 156, 166};
constexpr size_t kLegendNames = 3;  // to a line

size_t legend_lines(const Plot& plot) {
  return (plot.runs.size() + kLegendNames - 1) / kLegendNames;
}

struct Frame {
  double x, y, width, height;
  PlotAxis across, up;
  PlotPoint place(PlotPoint p) const {
    return {x + across.share(p.x) * width, y + height - up.share(p.y) * height};
  }
};

// Cuts a series into runs of finite points.
template <class Function>
void for_each_stretch(const PlotSeries& series, const Function& fn) {
  std::vector<PlotPoint> stretch;
  for (const PlotPoint& p : series.points) {
    if (std::isfinite(p.y)) {
      stretch.push_back(p);
      continue;
    }
    if (!stretch.empty()) fn(stretch);
    stretch.clear();
  }
  if (!stretch.empty()) fn(stretch);
}

void draw_axes(const PlotPanel& panel, const Frame& f, PlotCanvas& canvas, bool last) {
  canvas.text({f.x, f.y - 12}, panel.title, kTitleSize, Anchor::Start, kInk);
  for (const double tick : f.up.ticks) {
    const double y = f.place({f.across.low, tick}).y;
    canvas.line({{f.x, y}, {f.x + f.width, y}}, kGrid, 1, 1);
    canvas.text({f.x - 8, y + kTextSize * 0.36}, f.up.label(tick), kTextSize, Anchor::End, kSoft);
  }
  for (const double tick : f.across.ticks) {
    const double x = f.place({tick, f.up.low}).x;
    canvas.line({{x, f.y + f.height}, {x, f.y + f.height + 4}}, kAxisLine, 1, 1);
    canvas.text({x, f.y + f.height + 18}, f.across.label(tick), kTextSize, Anchor::Middle, kSoft);
  }
  canvas.line({{f.x, f.y}, {f.x, f.y + f.height}, {f.x + f.width, f.y + f.height}}, kAxisLine, 1, 1);
  if (last) {
    canvas.text({f.x + f.width / 2, f.y + f.height + 38}, "step", kTextSize, Anchor::Middle, kSoft);
  }
}

void draw_panel(const PlotPanel& panel, double top, PlotCanvas& canvas, bool last) {
  const Frame f{kLeft,
                top + kAbove,
                kWidth - kLeft - kRight,
                kPanelHeight - kAbove - kBelow,
                step_axis(panel, 8),
                value_axis(panel, 5)};
  draw_axes(panel, f, canvas, last);
  canvas.clip(f.x, f.y - 4, f.width + 5, f.height + 8);
  for (const PlotSeries& series : panel.series) {
    const Rgb colour = run_colour(series.run);
    for_each_stretch(series, [&](const std::vector<PlotPoint>& stretch) {
      std::vector<PlotPoint> places;
      for (const PlotPoint& p : stretch) places.push_back(f.place(p));
      if (series.dots || places.size() == 1) {
        for (const PlotPoint& p : places) canvas.dot(p, series.dots ? 3.4 : 2, colour);
      } else {
        canvas.line(places, colour, series.width, series.opacity);
      }
    });
  }
  canvas.clip(0, 0, 0, 0);
}

void draw_legend(const Plot& plot, PlotCanvas& canvas) {
  const double column = (kWidth - kLeft - kRight) / static_cast<double>(kLegendNames);
  for (size_t i = 0; i < plot.runs.size(); ++i) {
    const double x = kLeft + column * static_cast<double>(i % kLegendNames);
    const double y = kTop + kLegendLine * (static_cast<double>(i / kLegendNames) + 0.5);
    canvas.line({{x, y - 4}, {x + 22, y - 4}}, run_colour(static_cast<int>(i)), 3, 1);
    std::string name = plot.runs[i];
    constexpr int kLongest = 30;
    if (display_width(name) > kLongest) name = fmt::format("{}...", truncate_to_width(name, kLongest - 3));
    canvas.text({x + 30, y}, name, kTextSize, Anchor::Start, kInk);
  }
}

}  // namespace

Rgb run_colour(int run) {
  static constexpr std::array<Rgb, 8> kColours = {{{31, 94, 188},
                                                   {214, 90, 18},
                                                   {22, 140, 96},
                                                   {172, 66, 150},
                                                   {190, 140, 10},
                                                   {60, 160, 200},
                                                   {150, 50, 50},
                                                   {90, 90, 90}}};
  return kColours[static_cast<size_t>(run) % kColours.size()];
}

std::string PlotAxis::label(double tick) const {
  if (std::abs(tick) < (high - low) * 1e-9) tick = 0;
  if (tick == 0) return "0";
  if (scientific) {
    // 6e-4, not 6.000e-04.
    const int exponent = static_cast<int>(std::floor(std::log10(std::abs(tick)) + 1e-9));
    return fmt::format("{:.4g}e{}", tick / std::pow(10, exponent), exponent);
  }
  if (std::abs(tick) >= 10000 && decimals == 0) {
    // 20000 as 20K; a label that needs more digits keeps them.
    for (const auto& [unit, name] : {std::pair{1e9, "B"}, {1e6, "M"}, {1e3, "K"}}) {
      if (std::abs(tick) >= unit) return fmt::format("{:.6g}{}", tick / unit, name);
    }
  }
  return fmt::format("{:.{}f}", tick, decimals);
}

PlotAxis make_axis(double low, double high, int wanted, bool exact) {
  PlotAxis axis;
  if (!(high > low)) {
    const double around = low == 0 ? 1 : std::abs(low) * 0.1;
    low -= around;
    high += around;
  }
  const double rough = (high - low) / wanted;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = power;
  for (const double multiple : {1.0, 2.0, 5.0, 10.0}) {
    step = multiple * power;
    if (step >= rough * 0.999) break;
  }
  const double first = exact ? std::ceil(low / step - 1e-9) : std::floor(low / step + 1e-9);
  const double last = exact ? std::floor(high / step + 1e-9) : std::ceil(high / step - 1e-9);
  axis.low = exact ? low : first * step;
  axis.high = exact ? high : last * step;
  for (double i = first; i <= last + 0.5; ++i) axis.ticks.push_back(i * step);
  const int exponent = static_cast<int>(std::floor(std::log10(step) + 1e-9));
  const double largest = std::max(std::abs(axis.low), std::abs(axis.high));
  axis.scientific = largest < 1e-2 || largest >= 1e15;
  axis.decimals = std::max(0, -exponent);
  return axis;
}

PlotAxis step_axis(const PlotPanel& panel, int wanted) {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const PlotSeries& series : panel.series) {
    for (const PlotPoint& p : series.points) {
      low = std::min(low, p.x);
      high = std::max(high, p.x);
    }
  }
  if (!(low <= high)) low = 0, high = 1;
  if (low <= high * 0.05 && low > 0) low = 0;
  return make_axis(low, high, wanted, true);
}

PlotAxis value_axis(const PlotPanel& panel, int wanted) {
  std::vector<double> values;
  for (const PlotSeries& series : panel.series) {
    for (const PlotPoint& p : series.points) {
      if (std::isfinite(p.y)) values.push_back(p.y);
    }
  }
  if (values.empty()) return make_axis(0, 1, wanted, false);
  std::sort(values.begin(), values.end());
  double low = values.front(), high = values.back();
  // What lies far above nearly everything is cut off rather than shown at the cost of the rest.
  const double usual = values[(values.size() - 1) * 99 / 100];
  if (values.size() >= 200 && high - low > 4 * (usual - low) && usual > low) high = low + 1.5 * (usual - low);
  if (panel.from_zero) low = std::min(low, 0.0);
  return make_axis(low, high, wanted, false);
}

PlotSize plot_size(const Plot& plot) {
  return {kWidth, kTop + kLegendLine * static_cast<double>(legend_lines(plot)) +
                      kPanelHeight * static_cast<double>(plot.panels.size()) + kBottom};
}

void draw_plot(const Plot& plot, PlotCanvas& canvas) {
  draw_legend(plot, canvas);
  double top = kTop + kLegendLine * static_cast<double>(legend_lines(plot));
  for (size_t i = 0; i < plot.panels.size(); ++i) {
    draw_panel(plot.panels[i], top, canvas, i + 1 == plot.panels.size());
    top += kPanelHeight;
  }
}

}  // namespace octet
