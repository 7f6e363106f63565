#include "tensor/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "base/error.h"
#include "base/philox.h"

namespace octet {
namespace {

int64_t padded(const PlannedBuffer& buffer) {
  return round_up(buffer.shape.numel() * static_cast<int64_t>(size_of(buffer.dtype)), MemoryPlan::kAlignment);
}

void expect_sound(const MemoryPlan& plan) {
  int64_t end = 0;
  for (const PlannedBuffer& a : plan.buffers()) {
    ASSERT_GE(a.offset, 0) << a.name;
    EXPECT_EQ(a.offset % MemoryPlan::kAlignment, 0) << a.name;
    end = std::max(end, a.offset + padded(a));
    for (const PlannedBuffer& b : plan.buffers()) {
      if (&a >= &b || !a.lifetime.meets(b.lifetime)) continue;
      EXPECT_TRUE(a.offset + padded(a) <= b.offset || b.offset + padded(b) <= a.offset)
          << a.name << " and " << b.name << " are alive together and share memory";
    }
  }
  EXPECT_EQ(plan.peak_bytes(), end);
  const auto parts = plan.bytes_in_arena();
  EXPECT_EQ(std::accumulate(parts.begin(), parts.end(), int64_t{0}), plan.peak_bytes());
}

// The most that is alive at any one moment: no plan can need less.
int64_t most_alive(const MemoryPlan& plan) {
  int64_t most = 0;
  for (const PlannedBuffer& moment : plan.buffers()) {
    int64_t alive = 0;
    for (const PlannedBuffer& buffer : plan.buffers()) {
      const bool there =
          buffer.lifetime.first <= moment.lifetime.first && moment.lifetime.first <= buffer.lifetime.last;
      if (there) alive += padded(buffer);
    }
    most = std::max(most, alive);
  }
  return most;
}

TEST(MemoryPlan, RandomPlansAreSoundAndShare) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const Philox random(seed);
    uint64_t drawn = 0;
    const auto below = [&](uint64_t bound) { return static_cast<int64_t>(random.below(drawn++, bound)); };
    MemoryPlan plan;
    int64_t total = 0;
    const int64_t count = 1 + below(60);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t first = below(30);
      const Lifetime lifetime = below(5) == 0 ? Lifetime::always() : Lifetime{first, first + below(6)};
      const auto category = kMemoryCategories[static_cast<size_t>(below(kMemoryCategories.size()))];
      const int index = plan.add(fmt::format("buffer {}", i), below(2) ? DType::F32 : DType::BF16,
                                 {1 + below(40), 1 + below(40)}, category, lifetime);
      EXPECT_EQ(index, i);
      total += padded(plan.buffers().back());
    }
    plan.finish();
    expect_sound(plan);
    EXPECT_GE(plan.peak_bytes(), most_alive(plan));
    EXPECT_LE(plan.peak_bytes(), total);
    int64_t by_category = 0;
    for (const MemoryCategory category : kMemoryCategories) by_category += plan.bytes(category);
    EXPECT_EQ(by_category, total);
  }
}

TEST(MemoryPlan, BuffersThatNeverMeetShareOnePlace) {
  MemoryPlan plan;
  plan.add("weights", DType::F32, {64}, MemoryCategory::Weights, Lifetime::always());
  plan.add("early", DType::F32, {128}, MemoryCategory::Activations, {0, 1});
  plan.add("late", DType::F32, {128}, MemoryCategory::Activations, {2, 3});
  plan.add("both", DType::F32, {64}, MemoryCategory::Workspace, {1, 2});
  plan.finish();
  expect_sound(plan);
  EXPECT_EQ(plan.buffers()[1].offset, plan.buffers()[2].offset);
  EXPECT_EQ(plan.peak_bytes(), 256 + 512 + 256);
  EXPECT_EQ(plan.bytes(MemoryCategory::Activations), 1024);
  EXPECT_EQ(plan.bytes_in_arena()[3], 512);
}

TEST(MemoryPlan, LifetimesThatTouchMeet) {
  EXPECT_TRUE((Lifetime{0, 1}.meets({1, 2})));
  EXPECT_FALSE((Lifetime{0, 1}.meets({2, 2})));
  EXPECT_TRUE(Lifetime::always().meets({5, 5}));
}

TEST(MemoryPlan, SharingBetweenCategoriesIsCountedOnce) {
  MemoryPlan plan;
  plan.add("gradient", DType::F32, {64}, MemoryCategory::Gradients, {0, 0});
  plan.add("activation", DType::F32, {128}, MemoryCategory::Activations, {1, 1});
  plan.finish();
  expect_sound(plan);
  EXPECT_EQ(plan.peak_bytes(), 512);
  EXPECT_EQ(plan.bytes_in_arena()[1], 256);  // gradients come first
  EXPECT_EQ(plan.bytes_in_arena()[3], 256);
}

TEST(MemoryPlan, RefusesBuffersAfterFinishAndSizesThatOverflow) {
  MemoryPlan plan;
  plan.finish();
  EXPECT_EQ(plan.peak_bytes(), 0);
  EXPECT_THROW(plan.add("late", DType::F32, {1}, MemoryCategory::Weights, Lifetime::always()), Error);
  MemoryPlan huge;
  huge.add("huge", DType::F32, {int64_t{1} << 40, int64_t{1} << 40}, MemoryCategory::Weights,
           Lifetime::always());
  EXPECT_THROW(huge.finish(), Error);
}

}  // namespace
}  // namespace octet
