#include "report/plot.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace octet {
namespace {

constexpr size_t kMostLinePoints = 1600;   // of a line: more cannot be told apart
constexpr size_t kSmoothFrom = 40;         // fewer points are shown as they are
constexpr double kSmoothShare = 1.0 / 80;  // of a run: the running mean covers this much on either side

// Keeps the lowest and the highest point per piece of the line, so that no spike is lost.
std::vector<PlotPoint> thinned(std::vector<PlotPoint> points) {
  if (points.size() <= kMostLinePoints) return points;
  std::vector<PlotPoint> kept;
  const size_t pieces = kMostLinePoints / 2;
  for (size_t i = 0; i < pieces; ++i) {
    const auto begin = points.begin() + static_cast<std::ptrdiff_t>(i * points.size() / pieces);
    const auto end = points.begin() + static_cast<std::ptrdiff_t>((i + 1) * points.size() / pieces);
    const auto gap = std::find_if(begin, end, [](const PlotPoint& p) { return !std::isfinite(p.y); });
    const auto below = [](const PlotPoint& a, const PlotPoint& b) {
      return std::isfinite(a.y) && (!std::isfinite(b.y) || a.y < b.y);
    };
    const auto above = [](const PlotPoint& a, const PlotPoint& b) {
      return std::isfinite(b.y) && (!std::isfinite(a.y) || a.y < b.y);
    };
    auto low = std::min_element(begin, end, below), high = std::max_element(begin, end, above);
    if (low > high) std::swap(low, high);
    kept.push_back(*low);
    if (gap != end && gap != low && gap != high) kept.push_back(*gap);
    if (low != high) kept.push_back(*high);
  }
  std::sort(kept.begin(), kept.end(), [](const PlotPoint& a, const PlotPoint& b) { return a.x < b.x; });
  return kept;
}

// The mean of the points around each one: unlike a mean of those before, it does not lag behind.
std::vector<PlotPoint> running_mean(const std::vector<PlotPoint>& points) {
  std::vector<PlotPoint> finite;
  for (const PlotPoint& p : points) {
    if (std::isfinite(p.y)) finite.push_back(p);
  }
  std::vector<double> sums = {0};
  for (const PlotPoint& p : finite) sums.push_back(sums.back() + p.y);
  const size_t most =
      std::max<size_t>(3, static_cast<size_t>(static_cast<double>(finite.size()) * kSmoothShare));
  std::vector<PlotPoint> result;
  for (size_t i = 0; i < finite.size(); ++i) {
    const size_t reach = std::min({most, i, finite.size() - 1 - i});  // as far on both sides
    const double total = sums[i + reach + 1] - sums[i - reach];
    result.push_back({finite[i].x, total / static_cast<double>(2 * reach + 1)});
  }
  return result;
}

std::vector<PlotPoint> points_of(const RunFolder& run,
                                 const std::function<double(const StepRecord&)>& value) {
  std::vector<PlotPoint> points;
  for (const StepRecord& record : run.records)
    points.push_back({static_cast<double>(record.step), value(record)});
  return points;
}

bool has_data(const std::vector<PlotPoint>& points) {
  return std::any_of(points.begin(), points.end(), [](const PlotPoint& p) { return std::isfinite(p.y); });
}

void add_lines(PlotPanel& panel, int run, const std::vector<PlotPoint>& points) {
  if (!has_data(points)) return;
  const bool smooth = points.size() >= kSmoothFrom;
  panel.series.push_back(
      {.run = run, .points = thinned(points), .opacity = smooth ? 0.3 : 1.0, .width = smooth ? 1.0 : 1.8});
  if (smooth) panel.series.push_back({.run = run, .points = thinned(running_mean(points)), .width = 2.0});
}

}  // namespace

Plot plot_of_runs(const std::vector<RunFolder>& runs) {
  std::vector<const RunFolder*> places;
  for (const RunFolder& run : runs) places.push_back(&run);
  return plot_of_runs(places);
}

Plot plot_of_runs(const std::vector<const RunFolder*>& runs) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  Plot plot;
  PlotPanel loss{.title = "loss (dots: evaluation)"}, rate{.title = "learning rate", .from_zero = true},
      speed{.title = "tokens per second", .from_zero = true};
  bool evaluated = false;
  for (size_t i = 0; i < runs.size(); ++i) {
    const RunFolder& run = *runs[i];
    const int colour = static_cast<int>(i);
    plot.runs.push_back(run.name);
    add_lines(loss, colour, points_of(run, [](const StepRecord& r) { return r.loss; }));
    std::vector<PlotPoint> evaluations;
    for (const StepRecord& r : run.records) {
      if (r.eval_loss && std::isfinite(*r.eval_loss))
        evaluations.push_back({static_cast<double>(r.step), r.eval_loss.value_or(kNan)});
    }
    evaluated = evaluated || !evaluations.empty();
    if (!evaluations.empty())
      loss.series.push_back({.run = colour, .points = thinned(std::move(evaluations)), .dots = true});
    const std::vector<PlotPoint> rates = points_of(run, [](const StepRecord& r) { return r.lr; });
    if (has_data(rates)) rate.series.push_back({.run = colour, .points = thinned(rates), .width = 1.8});
    add_lines(speed, colour, points_of(run, [](const StepRecord& r) { return r.tokens_per_second; }));
  }
  if (!evaluated) loss.title = "loss";
  for (PlotPanel* panel : {&loss, &rate, &speed}) {
    if (!panel->series.empty()) plot.panels.push_back(std::move(*panel));
  }
  return plot;
}

}  // namespace octet
