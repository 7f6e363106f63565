#include "sweep/gaussian_process.h"

#include <gmock/gmock.h>

#include <cmath>

#include "base/error.h"
#include "base/philox.h"

namespace octet {
namespace {

using Points = std::vector<std::vector<double>>;

TEST(GaussianProcess, PassesItsPointsAndDoubtsBetweenThem) {
  const Points points = {{0}, {0.25}, {0.5}, {0.75}, {1}};
  std::vector<double> results;
  for (const auto& point : points) results.push_back(100 + 5 * std::sin(6 * point[0]));
  const GaussianProcess process(points, results);
  for (size_t i = 0; i < points.size(); ++i) {
    EXPECT_NEAR(process.predict(points[i]).mean, results[i], 0.05);
    EXPECT_LT(process.predict(points[i]).deviation, 0.2);
  }
  EXPECT_NEAR(process.predict(std::vector{0.4}).mean, 100 + 5 * std::sin(2.4), 0.5);
  EXPECT_GT(process.predict(std::vector{0.125}).deviation, process.predict(std::vector{0.25}).deviation);
}

TEST(GaussianProcess, FindsWhichAxisMatters) {
  Points points;
  std::vector<double> results;
  for (uint64_t i = 0; i < 30; ++i) {
    points.push_back({Philox(1, 0).uniform(i), Philox(1, 1).uniform(i)});
    results.push_back(std::sin(5 * points.back()[0]));
  }
  const GaussianProcess process(points, results);
  EXPECT_LT(process.lengths()[0], process.lengths()[1]);
}

TEST(GaussianProcess, NoiseIsSeenAsNoise) {
  Points points;
  std::vector<double> results;
  for (uint64_t i = 0; i < 40; ++i) {
    points.push_back({static_cast<double>(i % 10) / 9});  // each place four times, with different results
    results.push_back(points.back()[0] + 0.5 * Philox(3, 0).normal(i));
  }
  EXPECT_GE(GaussianProcess(points, results).noise(), 0.01);
}

TEST(GaussianProcess, ExpectedImprovement) {
  const GaussianProcess process({{0}, {0.5}, {1}}, {1, 0, 1});
  // Never negative, none at a known point that is not better, and largest near the best one or where nothing is known.
  for (int i = 0; i <= 20; ++i) EXPECT_GE(process.expected_improvement(std::vector{i / 20.0}, 0), 0);
  EXPECT_LT(process.expected_improvement(std::vector{1.0}, 0), 0.01);
  EXPECT_GT(process.expected_improvement(std::vector{0.4}, 0),
            process.expected_improvement(std::vector{0.98}, 0));
  // The closed form for a known mean and deviation.
  const auto at = process.predict(std::vector{0.3});
  const double z = (0 - at.mean) / at.deviation;
  const double expected = at.deviation * (z * 0.5 * std::erfc(-z / std::sqrt(2.0)) +
                                          std::exp(-z * z / 2) / std::sqrt(2 * std::acos(-1.0)));
  EXPECT_NEAR(process.expected_improvement(std::vector{0.3}, 0), expected, 1e-12);
}

TEST(GaussianProcess, BelievedPointsLowerTheDoubtAroundThem) {
  GaussianProcess process({{0}, {1}}, {1, 0});
  const std::vector<double> middle = {0.5};
  const auto before = process.predict(middle);
  process.believe({middle});
  EXPECT_NEAR(process.predict(middle).mean, before.mean, 1e-3);
  EXPECT_LT(process.predict(middle).deviation, before.deviation);
}

TEST(GaussianProcess, EqualPointsAndEqualResultsAreNoTrouble) {
  const GaussianProcess same({{0.5}, {0.5}, {0.5}}, {1, 1, 1});
  EXPECT_NEAR(same.predict(std::vector{0.5}).mean, 1, 1e-9);
  const GaussianProcess one({{0.1, 0.9}}, {7});
  EXPECT_NEAR(one.predict(std::vector{0.1, 0.9}).mean, 7, 1e-9);
  EXPECT_THROW(GaussianProcess({}, {}), Error);
}

}  // namespace
}  // namespace octet
