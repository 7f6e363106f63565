#include "support/tolerance.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace octet::test {
namespace {

double sum_of_squares(const std::vector<double>& x) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return sum;
}

}  // namespace

double relative_error(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0;
  for (size_t i = 0; i < b.size(); ++i) difference += (a[i] - b[i]) * (a[i] - b[i]);
  if (difference == 0) return 0;
  const double size = sum_of_squares(b);
  return std::isfinite(difference) && size > 0 ? std::sqrt(difference / size) : INFINITY;
}

std::string mismatch(const std::vector<double>& got, const std::vector<double>& expected, Tolerance tolerance,
                     double least_rms, size_t line) {
  if (got.size() != expected.size())
    return fmt::format("{} values, expected {}", got.size(), expected.size());
  if (got.empty()) return "";
  const auto count = static_cast<double>(got.size());
  const double rms = std::max(std::sqrt(sum_of_squares(expected) / count), least_rms);
  double difference = 0, largest = 0;
  size_t worst = 0, wrong = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double off = std::abs(got[i] - expected[i]);
    if (off == 0) continue;
    const double error = off / (std::abs(expected[i]) + rms);
    difference += off * off;
    if (!(error <= tolerance.largest)) ++wrong;  // NaN is wrong, too
    if (!(error <= largest) && !std::isnan(largest)) largest = error, worst = i;
  }
  const double norm = difference == 0 ? 0 : std::sqrt(difference / count) / rms;
  if (norm <= tolerance.norm && largest <= tolerance.largest) return "";
  const std::string place =
      line > 0 ? fmt::format("row {}, column {}", worst / line, worst % line) : fmt::format("{}", worst);
  return fmt::format(
      "error in norm {:.2e} (at most {:.0e}), largest {:.2e} (at most {:.0e}); {} of {} are too far off, the "
      "worst at {}: {} instead of {}",
      norm, tolerance.norm, largest, tolerance.largest, wrong, got.size(), place, got[worst],
      expected[worst]);
}

}  // namespace octet::test
