#pragma once

#include <span>
#include <vector>

namespace octet {

// A Gaussian process over points of a unit cube with a Matern 5/2 kernel, one length per axis. Results are scaled to mean 0
// and deviation 1. Lengths and noise are those of a small grid with the largest marginal likelihood; the variance of the
// signal follows from them. For some hundred points: everything is dense.
class GaussianProcess {
 public:
  struct Prediction {
    double mean = 0, deviation = 0;  // in the units of the results
  };

  // `points` have as many coordinates each, and there is one result per point. At least one point.
  GaussianProcess(std::vector<std::vector<double>> points, std::vector<double> results);

  Prediction predict(std::span<const double> point) const;
  // How much better than `best` the result is expected to be, where smaller is better.
  double expected_improvement(std::span<const double> point, double best) const;

  // Adds points whose results are not known yet, as if each gave what is predicted. They lower the uncertainty around them.
  void believe(const std::vector<std::vector<double>>& points);

  const std::vector<double>& lengths() const { return lengths_; }
  double noise() const { return noise_; }  // as a share of the signal's variance
  double log_likelihood() const { return log_likelihood_; }

 private:
  double kernel(std::span<const double> a, std::span<const double> b) const;
  bool factorize();  // of the kernel matrix with the current lengths and noise; false if it is not positive
  void fit();

  std::vector<std::vector<double>> points_;
  std::vector<double> scaled_;  // results, scaled
  double mean_ = 0, scale_ = 1;
  std::vector<double> lengths_;
  double noise_ = 1e-4, signal_ = 1;
  double log_likelihood_ = 0;
  std::vector<double> factor_;   // lower triangle L of K = L L^T, by rows
  std::vector<double> weights_;  // K^-1 y
};

}  // namespace octet
