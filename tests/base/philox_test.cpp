#include "base/philox.h"

#include <gtest/gtest.h>

namespace octet {
namespace {

// Known-answer vectors published with the Random123 library for philox4x32-10.
TEST(Philox, MatchesPublishedVectors) {
  EXPECT_EQ(Philox(0, 0).words(0), (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox(~uint64_t{0}, ~uint64_t{0}).words(~uint64_t{0}),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  // And for philox4x32-7.
  EXPECT_EQ(Philox(0, 0).words<7>(0),
            (std::array<uint32_t, 4>{0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48}));
}

TEST(Philox, BelowStaysInRangeAndReachesTheEnds) {
  const Philox random(7);
  bool low = false, high = false;
  for (uint64_t i = 0; i < 1000; ++i) {
    const uint64_t x = random.below(i, 10);
    ASSERT_LT(x, 10u);
    low |= x == 0;
    high |= x == 9;
  }
  EXPECT_TRUE(low && high);
}

TEST(Philox, NormalHasUnitVariance) {
  const Philox random(3);
  double sum = 0, squares = 0;
  const int count = 20000;
  for (int i = 0; i < count; ++i) {
    const double x = random.normal(static_cast<uint64_t>(i));
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / count, 0.0, 0.02);
  EXPECT_NEAR(squares / count, 1.0, 0.03);
}

}  // namespace
}  // namespace octet
