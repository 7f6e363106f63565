#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace octet {

enum class DistributionKind {
  Constant,
  Categorical,
  IntUniform,
  Uniform,
  LogUniform,
  Normal,
  LogNormal,
  Beta
};

// A name of W&B's sweep files. The names end in `_values` where min and max are those of the value itself; the older forms
// without it give them as natural logarithms, of x or of 1 / x.
struct DistributionName {
  enum class Bounds { Values, Logarithms, InverseLogarithms };
  std::string_view name;
  DistributionKind kind = DistributionKind::Constant;
  bool has_q = false;
  Bounds bounds = Bounds::Values;
};

const DistributionName* distribution_called(std::string_view name);  // nullptr: there is none
std::string distribution_names();                                    // for messages

// The possible values of a parameter. Values are texts, as they are given to `octet train`.
struct Distribution {
  DistributionKind kind = DistributionKind::Constant;
  std::string_view name = "constant";
  std::vector<std::string> values;    // Constant: one; Categorical
  std::vector<double> probabilities;  // Categorical; empty: all the same
  double min = 0, max = 1;            // of the value, not of its logarithm
  double mu = 0, sigma = 1;           // normal: of the value; log_normal: of its logarithm
  double a = 1, b = 1;                // beta
  double q = 0;                       // distance of the values; 0: they have none
  bool writes_integers = false;       // int_uniform, and q_ with a whole q

  bool is_searched() const { return kind != DistributionKind::Constant; }
  // How many values there are; none if there are infinitely many (or, of a normal distribution, no bounds).
  std::optional<int64_t> count() const;
  std::string value_at(int64_t index) const;  // of those, in ascending order or that of the list

  // The value at the share `u` of the distribution, 0 to 1: a uniform u gives a draw.
  std::string value_of(double u) const;
  // Whether equal steps of u are equal factors of the value.
  bool is_logarithmic() const {
    return kind == DistributionKind::LogUniform || kind == DistributionKind::LogNormal;
  }
  // The place of a value on an axis from 0 to 1 for a model of the results. Values that are words have no order: each has
  // an axis of its own. As many coordinates for every value.
  std::vector<double> coordinates(const std::string& value) const;

 private:
  double quantile(double u) const;
  double share_below(double value) const;
  double rounded(double value) const;
  std::string text_of(double value) const;
};

double normal_quantile(double u);
double beta_quantile(double u, double a, double b);
double beta_share_below(double x, double a, double b);  // regularized incomplete beta function

}  // namespace octet
