#include "sweep/distributions.h"

#include <gmock/gmock.h>

#include <cmath>
#include <map>

namespace octet {
namespace {

using testing::ElementsAre;
using Kind = DistributionKind;

Distribution numbers(Kind kind, double min, double max) {
  Distribution d;
  d.kind = kind;
  d.min = min;
  d.max = max;
  return d;
}
double value(const Distribution& d, double u) {
  return std::stod(d.value_of(u));
}

TEST(Distributions, NamesAreThoseOfWandb) {
  for (const char* name :
       {"constant", "categorical", "int_uniform", "uniform", "q_uniform", "log_uniform", "log_uniform_values",
        "q_log_uniform", "q_log_uniform_values", "inv_log_uniform", "inv_log_uniform_values", "normal",
        "q_normal", "log_normal", "q_log_normal", "beta", "q_beta"})
    EXPECT_NE(distribution_called(name), nullptr) << name;
  EXPECT_EQ(distribution_called("categorical_w_probabilities")->kind, Kind::Categorical);
  EXPECT_FALSE(distribution_called("gamma"));
}

TEST(Distributions, UniformOnesCoverTheirRange) {
  const Distribution integers = [] {
    Distribution d = numbers(Kind::IntUniform, 3, 6);
    d.writes_integers = true;
    return d;
  }();
  std::map<std::string, int> count;
  for (int i = 0; i < 400; ++i) ++count[integers.value_of((i + 0.5) / 400)];
  EXPECT_EQ(count, (std::map<std::string, int>{{"3", 100}, {"4", 100}, {"5", 100}, {"6", 100}}));
  EXPECT_EQ(integers.value_of(1), "6");
  EXPECT_EQ(integers.count(), 4);
  EXPECT_EQ(integers.value_at(3), "6");
  EXPECT_EQ(numbers(Kind::Uniform, -1, 3).value_of(0.25), "0");
  Distribution steps = numbers(Kind::Uniform, 0, 1);
  steps.q = 0.25;
  EXPECT_EQ(steps.value_of(0.3), "0.25");
  EXPECT_EQ(steps.count(), 5);
  EXPECT_EQ(steps.value_at(4), "1");
}

TEST(Distributions, LogarithmicOnesHaveEqualFactors) {
  const Distribution d = numbers(Kind::LogUniform, 1e-5, 1e-1);
  EXPECT_EQ(d.value_of(0), "1e-05");
  EXPECT_EQ(d.value_of(0.5), "0.001");
  EXPECT_EQ(d.value_of(1), "0.1");
  EXPECT_TRUE(d.is_logarithmic());
  EXPECT_FALSE(numbers(Kind::Uniform, 1, 2).is_logarithmic());
  Distribution q = numbers(Kind::LogUniform, 8, 512);
  q.q = 8;
  q.writes_integers = true;
  EXPECT_EQ(q.value_of(0), "8");
  EXPECT_EQ(q.value_of(0.5), "64");
}

// The numbers are those of scipy.stats.
TEST(Distributions, NormalAndBetaQuantiles) {
  EXPECT_NEAR(normal_quantile(0.5), 0, 1e-12);
  EXPECT_NEAR(normal_quantile(0.975), 1.959963984540054, 1e-9);
  EXPECT_NEAR(normal_quantile(1e-10), -6.361340902404056, 1e-6);
  EXPECT_NEAR(beta_quantile(0.5, 2, 5), 0.26444998329566005, 1e-9);
  EXPECT_NEAR(beta_quantile(0.9, 0.5, 0.5), 0.9755282581475768, 1e-9);
  EXPECT_NEAR(beta_quantile(0.25, 1, 1), 0.25, 1e-12);
  EXPECT_NEAR(beta_share_below(0.3, 2, 5), 0.579825, 1e-9);
  EXPECT_EQ(beta_share_below(0, 2, 5), 0);
  EXPECT_EQ(beta_share_below(1, 2, 5), 1);
  Distribution d;
  d.kind = Kind::LogNormal;
  d.mu = -7;
  d.sigma = 0.5;
  EXPECT_NEAR(value(d, 0.5), std::exp(-7), 1e-8);
}

TEST(Distributions, WordsAreDrawnByTheirProbabilities) {
  Distribution d;
  d.kind = Kind::Categorical;
  d.values = {"delayed", "current", "block"};
  d.probabilities = {0.5, 0, 0.5};
  EXPECT_EQ(d.value_of(0.49), "delayed");
  EXPECT_EQ(d.value_of(0.51), "block");
  EXPECT_EQ(d.value_of(1), "block");
  d.probabilities = {0.5, 0.5, 0};
  EXPECT_EQ(d.value_of(1 - 1e-17), "current");
  d.probabilities.clear();
  EXPECT_EQ(d.value_of(0.34), "current");
  EXPECT_EQ(d.value_of(1), "block");
}

TEST(Distributions, PlacesForAModelOfTheResults) {
  Distribution words;
  words.kind = Kind::Categorical;
  words.values = {"delayed", "current", "block"};
  const auto a = words.coordinates("delayed"), b = words.coordinates("block");
  ASSERT_EQ(a.size(), 3u);
  double squares = 0;
  for (size_t i = 0; i < 3; ++i) squares += (a[i] - b[i]) * (a[i] - b[i]);
  EXPECT_NEAR(squares, 1, 1e-12);
  words.values = {"0.001", "0.01", "0.1"};
  EXPECT_THAT(words.coordinates("0.01"), ElementsAre(0.5));
  // A place gives the value back.
  for (const Kind kind : {Kind::Uniform, Kind::LogUniform, Kind::Normal, Kind::LogNormal, Kind::Beta}) {
    Distribution d = numbers(kind, 0.01, 3);
    d.a = 2;
    d.b = 3;
    for (const double u : {0.1, 0.5, 0.9})
      EXPECT_NEAR(d.coordinates(d.value_of(u)).at(0), u, 1e-4) << static_cast<int>(kind);
  }
  words.kind = Kind::Constant;
  EXPECT_TRUE(words.coordinates("0.001").empty());
}

}  // namespace
}  // namespace octet
