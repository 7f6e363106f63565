#include "backend/cpu/element.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace octet::cpu {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// At every place, in whole vectors and in the rest.
TEST(LaneMax, FindsTheLargestAndSkipsNotANumber) {
  for (const int64_t count : {1, 3, 15, 16, 17, 40, 64}) {
    for (int64_t place = 0; place < count; ++place) {
      std::vector<float> x(static_cast<size_t>(count), -2.0f);
      x[static_cast<size_t>(place)] = -1.0f;
      EXPECT_EQ(lane_max(x.data(), count), -1.0f) << count << " " << place;
      x[static_cast<size_t>(place)] = kNan;
      EXPECT_EQ(lane_max(x.data(), count), count == 1 ? -kInfinity : -2.0f) << count << " " << place;
      std::vector<Bf16> halves(static_cast<size_t>(count), to_bf16(-2.0f));
      halves[static_cast<size_t>(place)] = to_bf16(3.0f);
      EXPECT_EQ(lane_max(halves.data(), count), 3.0f) << count << " " << place;
    }
    const std::vector<float> none(static_cast<size_t>(count), kNan),
        least(static_cast<size_t>(count), -kInfinity);
    EXPECT_EQ(lane_max(none.data(), count), -kInfinity);
    EXPECT_EQ(lane_max(least.data(), count), -kInfinity);
  }
}

}  // namespace
}  // namespace octet::cpu
