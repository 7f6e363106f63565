#include "data/loading/prefetcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>

#include "base/error.h"
#include "batch_hash.h"

namespace octet {
namespace {

std::unique_ptr<Loader> make_loader(uint64_t seed = 1) {
  std::vector<int32_t> ids(5000);
  std::iota(ids.begin(), ids.end(), 0);
  return std::make_unique<Loader>(TokenSource::from_ids(std::move(ids), "counting", 5000),
                                  LoaderOptions{.rows = 4, .length = 32, .seed = seed});
}

// Counts its batches; throws in place of batch `faulty`.
class Faulty final : public BatchSource {
 public:
  explicit Faulty(int64_t faulty, std::atomic<int64_t>* calls = nullptr) : faulty_(faulty), calls_(calls) {}
  void next(Batch& batch) override {
    if (calls_ != nullptr) ++*calls_;
    if (state_.next_sample == faulty_) fail("batch {} is bad", faulty_);
    batch.tokens.assign(1, static_cast<int32_t>(state_.next_sample++));
  }
  LoaderState state() const override { return state_; }
  void set_state(const LoaderState& state) override {
    require(state.next_sample >= 0, "negative");
    state_ = state;
  }
  double epoch() const override { return 0; }

 private:
  int64_t faulty_;
  std::atomic<int64_t>* calls_;
  LoaderState state_;
};

TEST(Prefetcher, GivesTheSameBatchesAndStatesAsItsSource) {
  for (int depth : {1, 2, 5}) {
    auto plain = make_loader();
    Prefetcher prefetcher(make_loader(), depth);
    Batch expected, batch;
    for (int step = 0; step < 200; ++step) {
      ASSERT_EQ(prefetcher.state(), plain->state());  // of what was handed out, not of what is ready
      ASSERT_EQ(prefetcher.epoch(), plain->epoch());
      plain->next(expected);
      prefetcher.next(batch);
      ASSERT_EQ(hash_of(batch), hash_of(expected)) << "step " << step;
    }
  }
}

TEST(Prefetcher, RestoresInTheMiddle) {
  Prefetcher prefetcher(make_loader(), 3);
  Batch batch;
  for (int step = 0; step < 7; ++step) prefetcher.next(batch);
  const LoaderState saved = prefetcher.state();
  prefetcher.next(batch);
  const uint64_t expected = hash_of(batch);
  for (int step = 0; step < 5; ++step) prefetcher.next(batch);

  Prefetcher other(make_loader(99), 2);
  for (Prefetcher* one : {&prefetcher, &other}) {
    one->set_state(saved);
    EXPECT_EQ(one->state(), saved);
    one->next(batch);
    EXPECT_EQ(hash_of(batch), expected);
  }
}

TEST(Prefetcher, ForwardsWhatItsSourceThrowsInOrder) {
  Prefetcher prefetcher(std::make_unique<Faulty>(3), 8);
  Batch batch;
  for (int32_t i = 0; i < 3; ++i) {
    prefetcher.next(batch);
    EXPECT_EQ(batch.tokens[0], i);
  }
  for (int again = 0; again < 2; ++again) {
    try {
      prefetcher.next(batch);
      FAIL() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "batch 3 is bad");
    }
    EXPECT_EQ(prefetcher.state().next_sample, 3);
  }
  prefetcher.set_state({0, 4});
  prefetcher.next(batch);
  EXPECT_EQ(batch.tokens[0], 4);
}

TEST(Prefetcher, RefusedStateChangesNothing) {
  Prefetcher prefetcher(std::make_unique<Faulty>(-1), 4);
  Batch batch;
  prefetcher.next(batch);
  EXPECT_THROW(prefetcher.set_state({0, -5}), Error);
  prefetcher.next(batch);
  EXPECT_EQ(batch.tokens[0], 1);
}

TEST(Prefetcher, RunsAheadByNoMoreThanItsDepth) {
  std::atomic<int64_t> calls = 0;
  Prefetcher prefetcher(std::make_unique<Faulty>(-1, &calls), 3);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (calls < 3 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(calls, 3);
}

TEST(Prefetcher, StopsCleanlyWithBatchesLeft) {
  for (int i = 0; i < 50; ++i) {
    Prefetcher prefetcher(make_loader(), 1 + i % 4);
    Batch batch;
    for (int step = 0; step < i % 3; ++step) prefetcher.next(batch);
  }
  EXPECT_THROW(Prefetcher(make_loader(), 0), Error);
}

}  // namespace
}  // namespace octet
