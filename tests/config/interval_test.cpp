#include "config/interval.h"

#include <gtest/gtest.h>

namespace octet {
namespace {

TEST(Interval, CountsHowOftenItIsDue) {
  for (const Interval& interval : {Interval{}, Interval{.steps = 1}, Interval{.steps = 7},
                                   Interval{.epoch_steps = 1}, Interval{.epoch_steps = 3.7}}) {
    int64_t due = 0;
    for (int64_t step = 0; step < 100; ++step) {
      EXPECT_EQ(interval.count(step), due) << interval.steps << " " << interval.epoch_steps;
      due += interval.is_due(step);
    }
  }
  EXPECT_EQ(Interval{.steps = 7}.count(70), 10);
  EXPECT_EQ(Interval{.epoch_steps = 3.7}.count(37), 10);
}

}  // namespace
}  // namespace octet
