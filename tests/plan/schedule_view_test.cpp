#include "plan/schedule_view.h"

#include <gmock/gmock.h>

namespace octet {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

ScheduleConfig schedule(ScheduleType type, int64_t warmup, int64_t steps) {
  return {.type = type, .peak_lr = 1e-3, .warmup_steps = warmup, .max_steps = steps, .min_lr_ratio = 0.1};
}

TEST(ScheduleView, UsualSchedulesHaveNoWarning) {
  EXPECT_THAT(schedule_warnings(schedule(ScheduleType::Cosine, 100, 1000)), IsEmpty());
  EXPECT_THAT(schedule_warnings(schedule(ScheduleType::Linear, 0, 1000)), IsEmpty());
  EXPECT_THAT(schedule_warnings(schedule(ScheduleType::Constant, 10, 1000)), IsEmpty());
  EXPECT_THAT(schedule_warnings(schedule(ScheduleType::Cosine, 0, 1)), IsEmpty());
  ScheduleConfig wsd = schedule(ScheduleType::Wsd, 100, 1000);
  wsd.decay_steps = 200;
  EXPECT_THAT(schedule_warnings(wsd), IsEmpty());
}

TEST(ScheduleView, WarmUpThatNeverEnds) {
  EXPECT_THAT(schedule_warnings(schedule(ScheduleType::Cosine, 1000, 1000)),
              ElementsAre(HasSubstr("the warm-up never ends"), HasSubstr("the decay never starts: cosine")));
  EXPECT_THAT(schedule_warnings(schedule(ScheduleType::Constant, 2000, 1000)),
              ElementsAre(HasSubstr("the warm-up never ends")));
  EXPECT_THAT(schedule_warnings(schedule(ScheduleType::Linear, 600, 1000)),
              ElementsAre("the warm-up takes 60 % of the run (600 of 1000 steps); usual are 1 to 10 %"));
}

TEST(ScheduleView, DecayThatNeverStarts) {
  EXPECT_THAT(schedule_warnings(schedule(ScheduleType::Wsd, 0, 1000)),
              ElementsAre(HasSubstr("the decay never starts: decay_ratio of 1000 steps")));
  ScheduleConfig flat = schedule(ScheduleType::Linear, 0, 1000);
  flat.min_lr_ratio = 1;
  EXPECT_THAT(schedule_warnings(flat),
              ElementsAre(HasSubstr("the decay never starts: min_lr_ratio is 1, so the rate of linear")));
  ScheduleConfig late = schedule(ScheduleType::Wsd, 0, 1000);
  late.decay_steps = 1;
  EXPECT_THAT(schedule_warnings(late), ElementsAre(HasSubstr("the decay has one step")));
  ScheduleConfig cut = schedule(ScheduleType::Wsd, 400, 1000);
  cut.decay_steps = 800;
  EXPECT_THAT(schedule_warnings(cut), ElementsAre(HasSubstr("the decay is cut to 600 steps")));
  ScheduleConfig zero = schedule(ScheduleType::Cosine, 0, 1000);
  zero.peak_lr = 0;
  EXPECT_THAT(schedule_warnings(zero), ElementsAre("learning_rate is 0: nothing is trained"));
  EXPECT_EQ(mean_rate_share(zero), 0);
}

TEST(ScheduleView, MarksHoldTheEndsOfThePhases) {
  ScheduleConfig wsd = schedule(ScheduleType::Wsd, 7, 100);
  wsd.decay_steps = 20;
  EXPECT_THAT(schedule_marks(wsd, 2), ElementsAre(0, 6, 7, 49, 79, 80, 99));
  EXPECT_EQ(schedule_phase(wsd, 6), "warm-up");
  EXPECT_EQ(schedule_phase(wsd, 7), "constant");
  EXPECT_EQ(schedule_phase(wsd, 79), "constant");
  EXPECT_EQ(schedule_phase(wsd, 80), "decay");
  EXPECT_THAT(schedule_marks(schedule(ScheduleType::Cosine, 0, 1), 8), ElementsAre(0));
}

TEST(ScheduleView, MeanRateIsThatOfAllSteps) {
  for (const ScheduleType type : {ScheduleType::Cosine, ScheduleType::Linear, ScheduleType::Constant}) {
    const ScheduleConfig config = schedule(type, 50, 700);
    double sum = 0;
    for (int64_t step = 0; step < config.max_steps; ++step) sum += learning_rate(config, step);
    EXPECT_NEAR(mean_rate_share(config), sum / 700 / config.peak_lr, 1e-12);
  }
  // A run that is too long to add up step by step.
  EXPECT_NEAR(mean_rate_share(schedule(ScheduleType::Linear, 0, 1'000'000'000'000)), 0.55, 1e-6);
}

TEST(ScheduleView, ThePlotOfALongRunIsSmallAndKeepsTheCorners) {
  const ScheduleConfig config = schedule(ScheduleType::Cosine, 123'457, 1'000'000'000);
  const Plot plot = schedule_plot(std::vector<NamedSchedule>{{"long", config}});
  const std::vector<PlotPoint>& points = plot.panels.at(0).series.at(0).points;
  EXPECT_LT(points.size(), 1100u);
  double highest = 0;
  for (const PlotPoint& point : points) highest = std::max(highest, point.y);
  EXPECT_EQ(highest, config.peak_lr);
  EXPECT_EQ(points.back().x, 1e9);
}

}  // namespace
}  // namespace octet
