#include "sweep/distributions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/beta_function.h"
#include "base/error.h"
#include "base/text.h"

namespace octet {
namespace {

using Kind = DistributionKind;

using Bounds = DistributionName::Bounds;

constexpr DistributionName kNames[] = {
    {"constant", Kind::Constant},
    {"categorical", Kind::Categorical},
    {"int_uniform", Kind::IntUniform},
    {"uniform", Kind::Uniform},
    {"q_uniform", Kind::Uniform, true},
    {"log_uniform", Kind::LogUniform, false, Bounds::Logarithms},
    {"log_uniform_values", Kind::LogUniform},
    {"q_log_uniform", Kind::LogUniform, true, Bounds::Logarithms},
    {"q_log_uniform_values", Kind::LogUniform, true},
    {"inv_log_uniform", Kind::LogUniform, false, Bounds::InverseLogarithms},
    {"inv_log_uniform_values", Kind::LogUniform},
    {"normal", Kind::Normal},
    {"q_normal", Kind::Normal, true},
    {"log_normal", Kind::LogNormal},
    {"q_log_normal", Kind::LogNormal, true},
    {"beta", Kind::Beta},
    {"q_beta", Kind::Beta, true},
    {"categorical_w_probabilities", Kind::Categorical},
};

// Bisection of a rising function on [low, high]: exact to the last bits, and nothing here is called often.
template <class Function>
double solve(const Function& rising, double target, double low, double high) {
  for (int i = 0; i < 200 && low < high; ++i) {
    const double middle = low + (high - low) / 2;
    if (middle <= low || middle >= high) break;
    (rising(middle) < target ? low : high) = middle;
  }
  return low + (high - low) / 2;
}

double normal_share_below(double x) {
  return 0.5 * std::erfc(-x / std::numbers::sqrt2);
}

bool is_ordered(const std::vector<std::string>& values) {
  std::vector<double> numbers;
  for (const std::string& value : values) {
    const std::optional<double> number = parse_double(value);
    if (!number) return false;
    numbers.push_back(*number);
  }
  return std::ranges::is_sorted(numbers) || std::ranges::is_sorted(numbers, std::greater<>());
}

constexpr double kMaxWhole = 0x1p53;  // beyond it a double skips integers

// More values than can be told apart are as good as infinitely many.
std::optional<int64_t> count_of_steps(double steps) {
  if (!(steps < kMaxWhole)) return std::nullopt;
  return static_cast<int64_t>(steps) + 1;
}

}  // namespace

const DistributionName* distribution_called(std::string_view name) {
  const auto* found = std::ranges::find(kNames, name, &DistributionName::name);
  return found == std::end(kNames) ? nullptr : found;
}

std::string distribution_names() {
  std::string text;
  for (const DistributionName& each : kNames) {
    if (each.name != "categorical_w_probabilities")
      text += fmt::format("{}{}", text.empty() ? "" : ", ", each.name);
  }
  return text;
}

double normal_quantile(double u) {
  return solve(normal_share_below, u, -40, 40);
}

double beta_share_below(double x, double a, double b) {
  return incomplete_beta(a, b, x);
}

double beta_quantile(double u, double a, double b) {
  const double value = solve([&](double x) { return beta_share_below(x, a, b); }, u, 0, 1);
  return value < 1e-30 ? 0 : value;  // fp32 holds nothing that small
}

double Distribution::rounded(double value) const {
  return q > 0 ? std::round(value / q) * q : value;
}

std::optional<int64_t> Distribution::count() const {
  switch (kind) {
    case Kind::Constant:
    case Kind::Categorical:
      return static_cast<int64_t>(values.size());
    case Kind::IntUniform:
      return count_of_steps(max - min);
    case Kind::Uniform:
      if (q > 0) return count_of_steps(std::round(max / q) - std::round(min / q));
      return std::nullopt;
    default:
      return std::nullopt;
  }
}

std::string Distribution::value_at(int64_t index) const {
  if (kind == Kind::Constant || kind == Kind::Categorical) return values.at(static_cast<size_t>(index));
  if (kind == Kind::IntUniform) return text_of(min + static_cast<double>(index));
  return text_of(rounded(min) + static_cast<double>(index) * q);
}

double Distribution::quantile(double u) const {
  switch (kind) {
    case Kind::IntUniform:
      return std::min(max, min + std::floor(u * (max - min + 1)));
    case Kind::Uniform:
      return std::lerp(min, max, u);
    case Kind::LogUniform:
      return std::clamp(std::exp(std::lerp(std::log(min), std::log(max), u)), min, max);
    case Kind::Normal:
      return mu + sigma * normal_quantile(u);
    case Kind::LogNormal:
      return std::exp(mu + sigma * normal_quantile(u));
    case Kind::Beta:
      return beta_quantile(u, a, b);
    case Kind::Constant:
    case Kind::Categorical:
      break;
  }
  fail("[sweep] {} has no numbers", name);
}

double Distribution::share_below(double value) const {
  const auto share = [&](double at, double low, double high) {
    return high > low ? std::clamp((at - low) / (high - low), 0.0, 1.0) : 0.5;
  };
  switch (kind) {
    case Kind::IntUniform:  // the middle of the shares that give this value
      return (value - min + 0.5) / (max - min + 1);
    case Kind::Uniform:
      return share(value, min, max);
    case Kind::Normal:
      return sigma > 0 ? normal_share_below((value - mu) / sigma) : 0.5;
    case Kind::LogNormal:
      return value <= 0 ? 0 : sigma > 0 ? normal_share_below((std::log(value) - mu) / sigma) : 0.5;
    case Kind::Beta:
      return beta_share_below(value, a, b);
    default:
      return value <= 0 ? 0 : share(std::log(value), std::log(min), std::log(max));
  }
}

std::string Distribution::text_of(double value) const {
  if (writes_integers && std::abs(value) < kMaxWhole) return fmt::format("{}", std::llround(value));
  // Digits enough for any search, and few enough to read.
  return fmt::format("{:.6g}", value);
}

std::string Distribution::value_of(double u) const {
  if (kind == Kind::Constant) return values.front();
  if (kind != Kind::Categorical) return text_of(rounded(quantile(u)));
  if (probabilities.empty()) {
    const auto last = static_cast<double>(values.size()) - 1;
    return values[static_cast<size_t>(std::min(last, std::floor(u * static_cast<double>(values.size()))))];
  }
  double sum = 0;
  for (size_t i = 0; i + 1 < values.size(); ++i) {
    sum += probabilities[i];
    if (u < sum) return values[i];
  }
  // Rounding may leave the sum below 1: the last value that can occur.
  for (size_t i = values.size(); i-- > 0;)
    if (probabilities[i] > 0) return values[i];
  return values.back();
}

std::vector<double> Distribution::coordinates(const std::string& value) const {
  if (kind == Kind::Constant) return {};
  if (kind != Kind::Categorical) return {share_below(parse_double(value).value_or(min))};
  const auto index = static_cast<size_t>(std::ranges::find(values, value) - values.begin());
  if (is_ordered(values))
    return {values.size() > 1 ? static_cast<double>(index) / static_cast<double>(values.size() - 1) : 0.5};
  // Any two words are at the distance 1.
  std::vector<double> place(values.size(), 0);
  if (index < place.size()) place[index] = 1 / std::numbers::sqrt2;
  return place;
}

}  // namespace octet
