#include "compare/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/beta_function.h"

namespace octet {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kTwoSided = 0.975;

// The probability that a t-distributed variable is below t >= 0.
double t_probability(double t, double freedom) {
  return 1 - 0.5 * incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t));
}

ConfidenceInterval around(double mean, double error, double freedom) {
  const double half = t_quantile(kTwoSided, freedom) * error;
  return {mean - half, mean + half};
}

double lag_one_correlation(std::span<const double> values, double mean) {
  double own = 0, next = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    own += (values[i] - mean) * (values[i] - mean);
    if (i > 0) next += (values[i] - mean) * (values[i - 1] - mean);
  }
  return own > 0 ? next / own : 0;
}

}  // namespace

double mean_of(std::span<const double> values) {
  if (values.empty()) return kNan;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double median_of(std::span<const double> values) {
  if (values.empty()) return kNan;
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  const size_t middle = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

std::optional<double> median_noise(std::span<const double> values) {
  if (values.size() < kLeastSpread) return std::nullopt;
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  const auto quantile = [&](double share) {
    const double place = share * static_cast<double>(sorted.size() - 1);
    const auto below = static_cast<size_t>(place);
    const size_t above = std::min(below + 1, sorted.size() - 1);
    return sorted[below] + (place - static_cast<double>(below)) * (sorted[above] - sorted[below]);
  };
  // For normal values, quartiles are 1.349 deviations apart, and a median has 1.253 times the error of a mean.
  constexpr double kHalfInterval = 1.96 * 1.253 / 1.349;
  return kHalfInterval * (quantile(0.75) - quantile(0.25)) / std::sqrt(static_cast<double>(sorted.size()));
}

double deviation_of(std::span<const double> values) {
  if (values.size() < 2) return kNan;
  const double mean = mean_of(values);
  double sum = 0;
  for (const double value : values) sum += (value - mean) * (value - mean);
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
}

double t_quantile(double p, double freedom) {
  if (!(p > 0 && p < 1 && freedom > 0)) return kNan;
  if (p < 0.5) return -t_quantile(1 - p, freedom);
  double low = 0, high = 1;
  while (t_probability(high, freedom) < p && high < 1e300) high *= 2;
  for (int i = 0; i < 200 && high - low > 1e-13 * high; ++i) {
    const double middle = (low + high) / 2;
    (t_probability(middle, freedom) < p ? low : high) = middle;
  }
  return (low + high) / 2;
}

MeanEstimate estimate_mean(std::span<const double> values) {
  MeanEstimate estimate{mean_of(values), std::nullopt, values.size()};
  if (values.size() < 2) return estimate;
  const auto n = static_cast<double>(values.size());
  estimate.interval = around(estimate.mean, deviation_of(values) / std::sqrt(n), n - 1);
  return estimate;
}

MeanEstimate estimate_series_mean(std::span<const double> values) {
  MeanEstimate estimate{mean_of(values), std::nullopt, values.size()};
  if (values.size() < kLeastSeries) return estimate;
  const auto n = static_cast<double>(values.size());
  const double seen = lag_one_correlation(values, estimate.mean);
  const double r = std::clamp(seen + (1 + 3 * seen) / n, 0.0, 0.99);  // Kendall's correction of the bias
  const double effective = std::max(2.0, n * (1 - r) / (1 + r));
  // Around their own mean, values that resemble each other spread less than around the true one.
  const double widening = std::sqrt((n - 1) / n / (1 - 1 / effective));
  const double error = widening * deviation_of(values) / std::sqrt(effective);
  estimate.interval = around(estimate.mean, error, effective - 1);
  return estimate;
}

MeanEstimate estimate_difference(std::span<const double> a, std::span<const double> b) {
  MeanEstimate estimate{mean_of(b) - mean_of(a), std::nullopt, a.size() + b.size()};
  if (a.size() < 2 || b.size() < 2) return estimate;
  const auto part = [](std::span<const double> values) {
    const double deviation = deviation_of(values);
    return deviation * deviation / static_cast<double>(values.size());
  };
  const double va = part(a), vb = part(b);
  const double sum = va + vb;
  const auto na = static_cast<double>(a.size()), nb = static_cast<double>(b.size());
  const double freedom = sum > 0 ? sum * sum / (va * va / (na - 1) + vb * vb / (nb - 1)) : na + nb - 2;
  estimate.interval = around(estimate.mean, std::sqrt(sum), freedom);
  return estimate;
}

}  // namespace octet
