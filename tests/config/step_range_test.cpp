#include "config/step_range.h"

#include <gtest/gtest.h>

namespace octet {
namespace {

TEST(StepRange, IsTwoStepsOrOne) {
  EXPECT_EQ(parse_step_range("10:12"), (StepRange{10, 12}));
  EXPECT_EQ(parse_step_range("7"), (StepRange{7, 7}));
  EXPECT_EQ(parse_step_range("3:3"), (StepRange{3, 3}));
  for (const char* text : {"", ":", "10:", ":12", "12:10", "0:3", "0", "-1:3", "a", "1:b", "1:2:3", " 1",
                           "1.5", "1e2", "99999999999999999999"})
    EXPECT_FALSE(parse_step_range(text)) << text;
}

TEST(StepRange, IncludesBothEnds) {
  const StepRange range{10, 12};
  EXPECT_FALSE(range.contains(9));
  EXPECT_TRUE(range.contains(10));
  EXPECT_TRUE(range.contains(12));
  EXPECT_FALSE(range.contains(13));
}

}  // namespace
}  // namespace octet
