#include "plan/start_times.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace octet {
namespace {

TEST(StartTimes, NamesWhatTakesLong) {
  EXPECT_EQ(start_times_text({}, 0.12), "0.1 s");
  EXPECT_EQ(start_times_text({.data = 0.4, .weights = 9.83}, 12.33),
            "12.3 s: data 0.4, weights 9.8, other 2.1");
  EXPECT_EQ(start_times_text({.device = 0.04, .plan = 1.96}, 2.0), "2.0 s: plan 2.0");
  EXPECT_EQ(
      start_times_text({.device = 1, .model = 2, .data = 3, .plan = 4, .weights = 5, .evaluation = 6}, 21),
      "21.0 s: device 1.0, model 2.0, data 3.0, plan 4.0, weights 5.0, evaluation 6.0");
}

TEST(StartTimes, ThePartsAddUp) {
  double seconds = 1;
  EXPECT_EQ(timed(seconds, [] { return usleep(20'000), 7; }), 7);
  EXPECT_GE(seconds, 1.02);
  timed(seconds, [] { usleep(20'000); });
  EXPECT_GE(seconds, 1.04);
}

TEST(StartTimes, TheProcessHasAnAge) {
  const double before = process_seconds();
  EXPECT_GE(before, 0);
  EXPECT_LT(before, 24 * 3600);
  usleep(50'000);
  EXPECT_GE(process_seconds() - before, 0.04) << "in clock ticks of 10 ms";
}

}  // namespace
}  // namespace octet
