#include "sweep/gaussian_process.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "base/error.h"

namespace octet {
namespace {

// Lengths from a tenth of the cube to far beyond it, where an axis has no effect.
constexpr double kLengths[] = {0.1, 0.2, 0.4, 0.8, 1.6, 5};
constexpr double kNoises[] = {1e-6, 1e-4, 1e-2, 0.1};

}  // namespace

GaussianProcess::GaussianProcess(std::vector<std::vector<double>> points, std::vector<double> results)
    : points_(std::move(points)) {
  require(!points_.empty() && points_.size() == results.size(),
          "[gaussian process] there are {} points and {} results, expected equally many, and at least one",
          points_.size(), results.size());
  const auto count = static_cast<double>(results.size());
  mean_ = std::accumulate(results.begin(), results.end(), 0.0) / count;
  double squares = 0;
  for (const double value : results) squares += (value - mean_) * (value - mean_);
  scale_ = std::sqrt(squares / count);
  if (!(scale_ > 0)) scale_ = 1;
  for (const double value : results) scaled_.push_back((value - mean_) / scale_);
  lengths_.assign(points_.front().size(), 0.4);
  fit();
}

double GaussianProcess::kernel(std::span<const double> a, std::span<const double> b) const {
  double squares = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double distance = (a[i] - b[i]) / lengths_[i];
    squares += distance * distance;
  }
  const double r = std::sqrt(5 * squares);
  return (1 + r + r * r / 3) * std::exp(-r);
}

bool GaussianProcess::factorize() {
  const size_t n = points_.size();
  factor_.assign(n * n, 0);
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j <= i; ++j) {
      double sum = kernel(points_[i], points_[j]) + (i == j ? noise_ : 0);
      for (size_t k = 0; k < j; ++k) sum -= factor_[i * n + k] * factor_[j * n + k];
      if (i == j) {
        if (!(sum > 1e-12)) return false;
        factor_[i * n + i] = std::sqrt(sum);
      } else {
        factor_[i * n + j] = sum / factor_[j * n + j];
      }
    }
  }
  weights_ = scaled_;
  double log_determinant = 0;
  for (size_t i = 0; i < n; ++i) {
    for (size_t k = 0; k < i; ++k) weights_[i] -= factor_[i * n + k] * weights_[k];
    weights_[i] /= factor_[i * n + i];
    log_determinant += 2 * std::log(factor_[i * n + i]);
  }
  double quadratic = 0;
  for (const double value : weights_) quadratic += value * value;
  for (size_t i = n; i-- > 0;) {
    for (size_t k = i + 1; k < n; ++k) weights_[i] -= factor_[k * n + i] * weights_[k];
    weights_[i] /= factor_[i * n + i];
  }
  // The variance that fits best for these lengths.
  signal_ = std::max(quadratic / static_cast<double>(n), 1e-12);
  log_likelihood_ = -0.5 * (static_cast<double>(n) * std::log(2 * std::numbers::pi * signal_) +
                            log_determinant + static_cast<double>(n));
  return true;
}

void GaussianProcess::fit() {
  double best = -INFINITY;
  const auto try_here = [&] {
    if (!factorize() || !(log_likelihood_ > best)) return false;
    best = log_likelihood_;
    return true;
  };
  // One axis after the other, twice: with few points the likelihood has no narrow peaks.
  for (int round = 0; round < 2; ++round) {
    double kept_noise = noise_;
    for (const double noise : kNoises) {
      noise_ = noise;
      if (try_here()) kept_noise = noise;
    }
    noise_ = kept_noise;
    for (double& length : lengths_) {
      double kept = length;
      for (const double candidate : kLengths) {
        length = candidate;
        if (try_here()) kept = candidate;
      }
      length = kept;
    }
  }
  while (!factorize()) noise_ *= 10;  // points that are the same
}

GaussianProcess::Prediction GaussianProcess::predict(std::span<const double> point) const {
  const size_t n = points_.size();
  std::vector<double> covariance(n);
  double mean = 0;
  for (size_t i = 0; i < n; ++i) {
    covariance[i] = kernel(points_[i], point);
    mean += covariance[i] * weights_[i];
  }
  double explained = 0;
  for (size_t i = 0; i < n; ++i) {
    for (size_t k = 0; k < i; ++k) covariance[i] -= factor_[i * n + k] * covariance[k];
    covariance[i] /= factor_[i * n + i];
    explained += covariance[i] * covariance[i];
  }
  return {.mean = mean_ + scale_ * mean,
          .deviation = scale_ * std::sqrt(signal_ * std::max(0.0, 1 - explained))};
}

double GaussianProcess::expected_improvement(std::span<const double> point, double best) const {
  const Prediction prediction = predict(point);
  if (prediction.deviation <= 1e-9 * scale_) return std::max(0.0, best - prediction.mean);
  const double z = (best - prediction.mean) / prediction.deviation;
  const double density = std::exp(-0.5 * z * z) / std::sqrt(2 * std::numbers::pi);
  const double share = 0.5 * std::erfc(-z / std::numbers::sqrt2);
  return prediction.deviation * (z * share + density);
}

void GaussianProcess::believe(const std::vector<std::vector<double>>& points) {
  if (points.empty()) return;
  std::vector<double> believed;
  for (const std::vector<double>& point : points) believed.push_back((predict(point).mean - mean_) / scale_);
  const double signal = signal_, likelihood = log_likelihood_;
  points_.insert(points_.end(), points.begin(), points.end());
  scaled_.insert(scaled_.end(), believed.begin(), believed.end());
  while (!factorize()) noise_ *= 10;
  signal_ = signal;  // beliefs are no evidence
  log_likelihood_ = likelihood;
}

}  // namespace octet
