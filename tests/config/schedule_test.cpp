#include "step/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "base/error.h"

namespace octet {
namespace {

ScheduleConfig config_of(ScheduleType type, int64_t warmup, int64_t steps, double min_ratio,
                         int64_t decay = 0) {
  ScheduleConfig config{type, 8e-4, warmup, steps, min_ratio, decay};
  config.validate();
  return config;
}

std::vector<double> all_rates(const ScheduleConfig& config) {
  std::vector<double> rates;
  for (int64_t step = 0; step < config.max_steps; ++step) rates.push_back(learning_rate(config, step));
  return rates;
}

TEST(Schedule, WarmupRisesFromTheFirstStepAndReachesThePeak) {
  for (const auto type :
       {ScheduleType::Cosine, ScheduleType::Linear, ScheduleType::Constant, ScheduleType::Wsd}) {
    const auto config = config_of(type, 4, 20, 0.1, 5);
    EXPECT_EQ(learning_rate(config, 0), 2e-4);
    EXPECT_EQ(learning_rate(config, 1), 4e-4);
    EXPECT_EQ(learning_rate(config, 2), 8e-4 * 0.75);
    EXPECT_EQ(learning_rate(config, 3), 8e-4);
    EXPECT_EQ(learning_rate(config, 4), 8e-4);  // the first step after warm-up
  }
}

TEST(Schedule, Cosine) {
  const auto config = config_of(ScheduleType::Cosine, 2, 11, 0.25);  // decays over steps 2..10
  EXPECT_EQ(learning_rate(config, 2), 8e-4);
  EXPECT_NEAR(learning_rate(config, 4), 2e-4 + 6e-4 * (2 + std::sqrt(2.0)) / 4, 1e-18);
  EXPECT_NEAR(learning_rate(config, 6), 5e-4, 1e-18);  // half way: the mean of both ends
  EXPECT_NEAR(learning_rate(config, 8), 2e-4 + 6e-4 * (2 - std::sqrt(2.0)) / 4, 1e-18);
  EXPECT_EQ(learning_rate(config, 10), 8e-4 * 0.25);
  EXPECT_EQ(learning_rate(config, 11), 8e-4 * 0.25);  // after the run
  EXPECT_EQ(learning_rate(config, 1'000'000), 8e-4 * 0.25);
}

TEST(Schedule, Linear) {
  const auto config = config_of(ScheduleType::Linear, 0, 5, 0);
  EXPECT_THAT(all_rates(config), testing::Pointwise(testing::DoubleEq(), {8e-4, 6e-4, 4e-4, 2e-4, 0.0}));
  EXPECT_EQ(learning_rate(config, 0), 8e-4);
  EXPECT_EQ(learning_rate(config, 4), 0.0);
}

TEST(Schedule, ConstantIgnoresTheMinimum) {
  EXPECT_THAT(all_rates(config_of(ScheduleType::Constant, 0, 4, 0.1)), testing::Each(8e-4));
}

TEST(Schedule, WsdDecaysOverTheLastSteps) {
  const auto config = config_of(ScheduleType::Wsd, 2, 10, 0, 4);
  EXPECT_THAT(all_rates(config), testing::Pointwise(testing::DoubleEq(), {4e-4, 8e-4, 8e-4, 8e-4, 8e-4, 8e-4,
                                                                          6e-4, 4e-4, 2e-4, 0.0}));
  EXPECT_EQ(learning_rate(config, 9), 0.0);
  EXPECT_THAT(all_rates(config_of(ScheduleType::Wsd, 0, 5, 0.5, 0)), testing::Each(8e-4));
  EXPECT_EQ(learning_rate(config_of(ScheduleType::Wsd, 0, 5, 0.5, 1), 3), 8e-4);
  EXPECT_EQ(learning_rate(config_of(ScheduleType::Wsd, 0, 5, 0.5, 1), 4), 4e-4);
}

TEST(Schedule, WsdDecayThatDoesNotFitStartsAfterWarmup) {
  const auto config = config_of(ScheduleType::Wsd, 2, 6, 0, 100);
  EXPECT_THAT(all_rates(config),
              testing::Pointwise(testing::DoubleEq(), {4e-4, 8e-4, 6e-4, 4e-4, 2e-4, 0.0}));
  EXPECT_THAT(config.remark().value_or(""), testing::HasSubstr("the decay is cut to 4 steps"));
}

TEST(Schedule, OneStep) {
  for (const auto type :
       {ScheduleType::Cosine, ScheduleType::Linear, ScheduleType::Constant, ScheduleType::Wsd}) {
    EXPECT_EQ(learning_rate(config_of(type, 0, 1, 0, 1), 0), 8e-4);
    EXPECT_EQ(learning_rate(config_of(type, 1, 1, 0), 0), 8e-4);
  }
}

TEST(Schedule, OneStepAfterWarmupIsTheLastAndHasTheMinimum) {
  EXPECT_EQ(learning_rate(config_of(ScheduleType::Cosine, 3, 4, 0.5), 2), 8e-4);
  EXPECT_EQ(learning_rate(config_of(ScheduleType::Cosine, 3, 4, 0.5), 3), 4e-4);
  EXPECT_EQ(learning_rate(config_of(ScheduleType::Linear, 3, 4, 0.5), 3), 4e-4);
}

TEST(Schedule, WarmupLongerThanTheRunIsAllowedAndRemarkedOn) {
  const auto config = config_of(ScheduleType::Cosine, 100, 10, 0.1);
  EXPECT_EQ(learning_rate(config, 9), 8e-4 * 0.1);
  EXPECT_THAT(
      config.remark().value_or(""),
      testing::HasSubstr("the warm-up takes 100 steps and the run has 10: the whole run is warm-up, and the "
                         "learning rate ends at 8.00e-05 (learning_rate is 8.00e-04)"));
  EXPECT_FALSE(config_of(ScheduleType::Cosine, 9, 10, 0.1).remark());
  EXPECT_FALSE(config_of(ScheduleType::Wsd, 5, 10, 0.1, 5).remark());
}

TEST(Schedule, NeverRisesAfterWarmupNorLeavesItsRange) {
  for (const auto type : {ScheduleType::Cosine, ScheduleType::Linear, ScheduleType::Wsd}) {
    const auto rates = all_rates(config_of(type, 7, 1001, 0.1, 300));
    for (size_t i = 8; i < rates.size(); ++i) {
      ASSERT_LE(rates[i], rates[i - 1]) << to_string(type) << " step " << i;
      ASSERT_GE(rates[i], 8e-4 * 0.1) << to_string(type) << " step " << i;
    }
    EXPECT_EQ(rates.back(), 8e-4 * 0.1) << to_string(type);
  }
}

TEST(Schedule, RejectsWhatMakesNoSense) {
  const auto message_of = [](auto change) {
    ScheduleConfig config{ScheduleType::Cosine, 1e-3, 10, 100, 0.1, 0};
    change(config);
    try {
      config.validate();
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(message_of([](ScheduleConfig&) {}), "");
  EXPECT_EQ(message_of([](ScheduleConfig& c) { c.max_steps = 0; }),
            "[config] max_steps is 0, expected at least 1");
  EXPECT_EQ(message_of([](ScheduleConfig& c) { c.warmup_steps = -1; }),
            "[config] warmup_steps is -1, expected at least 0");
  EXPECT_EQ(message_of([](ScheduleConfig& c) { c.min_lr_ratio = 1.5; }),
            "[config] min_lr_ratio is 1.5, expected a number from 0 to 1");
  EXPECT_NE(message_of([](ScheduleConfig& c) { c.min_lr_ratio = std::nan(""); }), "");
  EXPECT_NE(message_of([](ScheduleConfig& c) { c.peak_lr = -1; }), "");
  EXPECT_NE(message_of([](ScheduleConfig& c) { c.peak_lr = std::numeric_limits<double>::infinity(); }), "");
  EXPECT_NE(message_of([](ScheduleConfig& c) { c.decay_steps = -5; }), "");
  EXPECT_THROW(learning_rate({ScheduleType::Cosine, 1e-3, 0, 10, 0, 0}, -1), Error);
}

}  // namespace
}  // namespace octet
