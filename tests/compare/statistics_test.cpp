#include "compare/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace octet {
namespace {

TEST(CompareStatistics, MeanMedianAndDeviation) {
  EXPECT_DOUBLE_EQ(mean_of(std::vector<double>{1, 2, 6}), 3);
  EXPECT_DOUBLE_EQ(median_of(std::vector<double>{6, 1, 2}), 2);
  EXPECT_DOUBLE_EQ(median_of(std::vector<double>{6, 1, 2, 4}), 3);
  EXPECT_DOUBLE_EQ(deviation_of(std::vector<double>{2, 4, 4, 4, 5, 5, 7, 9}), std::sqrt(32.0 / 7));
  EXPECT_TRUE(std::isnan(mean_of({})));
  EXPECT_TRUE(std::isnan(median_of({})));
  EXPECT_TRUE(std::isnan(deviation_of(std::vector<double>{1})));
}

// Values of printed tables of the t distribution.
TEST(CompareStatistics, QuantilesOfT) {
  EXPECT_NEAR(t_quantile(0.975, 1), 12.7062, 1e-4);
  EXPECT_NEAR(t_quantile(0.975, 2), 4.30265, 1e-5);
  EXPECT_NEAR(t_quantile(0.975, 9), 2.26216, 1e-5);
  EXPECT_NEAR(t_quantile(0.975, 30), 2.04227, 1e-5);
  EXPECT_NEAR(t_quantile(0.975, 1e6), 1.95997, 1e-4);
  EXPECT_NEAR(t_quantile(0.95, 5), 2.01505, 1e-5);
  EXPECT_NEAR(t_quantile(0.025, 9), -2.26216, 1e-5);
  EXPECT_NEAR(t_quantile(0.5, 7), 0, 1e-9);
  EXPECT_NEAR(t_quantile(0.975, 2.5), 3.57465, 1e-5);  // the density, integrated by Simpson's rule
  EXPECT_TRUE(std::isnan(t_quantile(0.975, 0)));
}

TEST(CompareStatistics, IntervalOfAMean) {
  const MeanEstimate estimate = estimate_mean(std::vector<double>{1, 2, 3});
  ASSERT_TRUE(estimate.interval);
  EXPECT_DOUBLE_EQ(estimate.mean, 2);
  EXPECT_NEAR(estimate.interval->high - 2, 4.30265 / std::sqrt(3.0), 1e-4);
  EXPECT_NEAR(2 - estimate.interval->low, 4.30265 / std::sqrt(3.0), 1e-4);
  EXPECT_FALSE(estimate_mean(std::vector<double>{1}).interval);
}

TEST(CompareStatistics, WelchOfTwoGroups) {
  // Worked by hand: variances 1 and 4, three values each.
  const MeanEstimate estimate =
      estimate_difference(std::vector<double>{1, 2, 3}, std::vector<double>{3, 5, 7});
  EXPECT_DOUBLE_EQ(estimate.mean, 3);
  const double error = std::sqrt(5.0 / 3), freedom = 25.0 / 9 / (1.0 / 18 + 16.0 / 18);
  ASSERT_TRUE(estimate.interval);
  EXPECT_NEAR(estimate.interval->low, 3 - t_quantile(0.975, freedom) * error, 1e-9);
  EXPECT_FALSE(estimate_difference(std::vector<double>{1}, std::vector<double>{1, 2}).interval);
}

// How often the interval holds the truth, for values of which each resembles the one before.
double coverage(double correlation, MeanEstimate (*estimate)(std::span<const double>), int count = 60) {
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  int held = 0;
  constexpr int kTries = 600;
  for (int i = 0; i < kTries; ++i) {
    std::vector<double> values;
    double value = normal(random);
    for (int j = 0; j < count; ++j) {
      value = correlation * value + std::sqrt(1 - correlation * correlation) * normal(random);
      values.push_back(value);
    }
    held += estimate(values).interval->holds(0) ? 1 : 0;
  }
  return static_cast<double>(held) / kTries;
}

TEST(CompareStatistics, NeighboursThatResembleEachOtherWidenTheInterval) {
  EXPECT_GT(coverage(0, estimate_series_mean), 0.92);
  EXPECT_GT(coverage(0.6, estimate_series_mean), 0.88);
  // What would happen without: the interval is wrong every third time.
  EXPECT_LT(coverage(0.6, estimate_mean), 0.75);
  EXPECT_FALSE(estimate_series_mean(std::vector<double>(kLeastSeries - 1, 1.0)).interval);
}

TEST(CompareStatistics, TheIntervalHoldsTheTruthForFewValuesToo) {
  EXPECT_GT(coverage(0.5, estimate_series_mean, 60), 0.91);
  EXPECT_GT(coverage(0.8, estimate_series_mean, 60), 0.91);
  EXPECT_GT(coverage(0.5, estimate_series_mean, 20), 0.89);
  EXPECT_GT(coverage(0.8, estimate_series_mean, 20), 0.87);
}

TEST(CompareStatistics, TheNoiseOfAMedianHoldsTheTruth) {
  std::mt19937 random(11);
  std::normal_distribution<double> normal;
  for (const auto& [count, least] : {std::pair(kLeastSpread, 0.85), std::pair(size_t{40}, 0.92)}) {
    int held = 0;
    constexpr int kTries = 1000;
    for (int i = 0; i < kTries; ++i) {
      std::vector<double> values(count);
      for (double& value : values) value = normal(random);
      held += std::abs(median_of(values)) <= median_noise(values).value() ? 1 : 0;
    }
    EXPECT_GT(held, least * kTries) << count;
    EXPECT_LT(held, 0.98 * kTries) << count;
  }
  EXPECT_FALSE(median_noise(std::vector<double>(kLeastSpread - 1, 1.0)));
  // One slow step changes nothing.
  std::vector<double> speeds = {10, 11, 12, 13, 14, 15, 16, 17, 18};
  const double noise = median_noise(speeds).value();
  EXPECT_NEAR(noise, 1.82 * 4 / 3, 0.01);
  speeds.front() = 0;
  EXPECT_EQ(median_noise(speeds).value(), noise);
}

TEST(CompareStatistics, EqualValuesHaveAnIntervalOfNoWidth) {
  const MeanEstimate estimate = estimate_series_mean(std::vector<double>(kLeastSeries, 0.25));
  ASSERT_TRUE(estimate.interval);
  EXPECT_EQ(estimate.interval->low, 0.25);
  EXPECT_EQ(estimate.interval->high, 0.25);
}

}  // namespace
}  // namespace octet
