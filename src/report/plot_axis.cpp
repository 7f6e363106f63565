#include "report/plot_axis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace octet {

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
  // A few values far above all others are cut off, so that the others stay readable.
  const double usual = values[(values.size() - 1) * 99 / 100];
  if (values.size() >= 200 && high - low > 4 * (usual - low) && usual > low) high = low + 1.5 * (usual - low);
  if (panel.from_zero) low = std::min(low, 0.0);
  return make_axis(low, high, wanted, false);
}

}  // namespace octet
