#pragma once

#include <cstddef>
#include <optional>
#include <span>

namespace octet {

double mean_of(std::span<const double> values);    // NaN for none
double median_of(std::span<const double> values);  // likewise
// Half of the 95 % interval of the median, from the quartiles, which single outliers do not change. With few values it is
// too narrow: it covers the true median about 7 times in 8. Absent for fewer than kLeastSpread.
inline constexpr size_t kLeastSpread = 8;
std::optional<double> median_noise(std::span<const double> values);
// With n - 1 in the denominator; NaN for fewer than two values.
double deviation_of(std::span<const double> values);

// The value that a t-distributed variable stays below with probability `p`. `freedom` may be a fraction, above 0.
double t_quantile(double p, double freedom);

struct ConfidenceInterval {
  double low = 0, high = 0;
  bool holds(double value) const { return low <= value && value <= high; }
};

// A mean and its 95 % interval, which is absent where the values cannot tell it.
struct MeanEstimate {
  double mean = 0;
  std::optional<ConfidenceInterval> interval;
  size_t count = 0;
};

// For independent values: Student's t. Needs two.
MeanEstimate estimate_mean(std::span<const double> values);

// For values that follow each other in time. Neighbours that resemble each other say less than their number: n values
// count as n (1 - r) / (1 + r), where r is their lag-1 correlation. Few values show too little of r and of their own
// spread; both are corrected for that. Needs kLeastSeries values: with fewer the interval is far too narrow.
inline constexpr size_t kLeastSeries = 20;
MeanEstimate estimate_series_mean(std::span<const double> values);

// mean(b) - mean(a) of independent groups: Welch. Needs two of each.
MeanEstimate estimate_difference(std::span<const double> a, std::span<const double> b);

}  // namespace octet
