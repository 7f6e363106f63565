// Faults in the numbers of one rank among several, which are threads here, and what the ranks tell each other.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>

#include "base/error.h"
#include "support/thread_ranks.h"
#include "support/captured_log.h"
#include "support/error_of.h"
#include "support/rank_run.h"
#include "train/rank_watch.h"

namespace octet::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int kRanks = 3, kBadRank = 1;

TinyRunOptions numerics(const std::string& name) {
  TinyRunOptions o{.threads = 1, .rows = 1, .length = 32};
  if (name == "fp32") return o;
  o.precision = name == "bf16" ? Precision::Bf16 : Precision::Fp8;
  if (name == "current") o.fp8.recipe = Fp8Recipe::Current;
  return o;
}

// Calls body(run, rank) on every rank.
template <class Body>
void on_ranks(TinyRunOptions options, ShardingMode mode, Body&& body) {
  run_thread_ranks(kRanks, kRanks, [&](Ranks& ranks) {
    TinyRunOptions mine = options;
    mine.ranks = &ranks;
    mine.sharding = sharding_of({.mode = mode, .ranks = kRanks}, ranks.place().rank);
    TinyRun run(mine);
    body(run, ranks.place().rank);
  });
}

// The training state on this rank: weights, moments, and with the delayed recipe the scales and histories. amax is no
// part of it: it is of the last step, also if that was skipped.
std::vector<std::byte> state_of(TinyRun& run) {
  run.sync->settle();
  std::vector<std::byte> all;
  for (const Parameter& p : run.model->parameters().all()) {
    for (const auto& [name, tensor] : p.state()) {
      const auto* bytes = static_cast<const std::byte*>(tensor.data);
      all.insert(all.end(), bytes, bytes + tensor.bytes());
    }
  }
  const ScaleTable& scales = run.model->scales();
  if (scales.count() == 0 || scales.config().recipe != Fp8Recipe::Delayed) return all;
  for (int i = 0; i < scales.count(); ++i) {
    const auto* pair = reinterpret_cast<const std::byte*>(&scales.slot(i)->scale_rowwise);
    all.insert(all.end(), pair, pair + 2 * sizeof(float));
  }
  const std::vector<std::byte> saved = scales.save(*run.device);  // ends with the histories
  all.insert(all.end(), saved.end() - scales.count() * scales.config().history_length * 4, saved.end());
  return all;
}

// An element of a vector that every rank has whole, and that is not in the part of rank `rank`.
std::byte* foreign_element(TinyRun& run, const char* name, int rank) {
  Parameter& p = run.model->parameters()[name];
  const int64_t other = (rank + 1) % kRanks;
  return static_cast<std::byte*>(p.weight.data) + (p.storage.cut ? other * p.storage.cut.part_rows : 0) *
                                                      static_cast<int64_t>(size_of(p.weight.dtype));
}

// Inf in the dtype that the parameter has.
void make_infinite(TinyRun& run, const char* name, int rank) {
  const uint32_t infinity = 0x7F800000;
  const bool wide = run.model->parameters()[name].weight.dtype == DType::F32;
  std::memcpy(foreign_element(run, name, rank),
              reinterpret_cast<const std::byte*>(&infinity) + (wide ? 0 : 2), wide ? 4 : 2);
}

enum class Poison { Loss, Gradient, Activations };

// The mover of a run, which sends a number that is not finite.
class PoisoningMover : public WeightMover {
 public:
  PoisoningMover(TinyRun& run, Poison poison) : run_(run), mover_(*run.sync), poison_(poison) {}
  void begin_micro_batch(bool first, bool last) override { mover_.begin_micro_batch(first, last); }
  void acquire(int64_t group, Sweep sweep) override { mover_.acquire(group, sweep); }
  void release(int64_t group, Sweep sweep) override {
    if (sweep == Sweep::Backward) poison(group);
    mover_.release(group, sweep);
  }
  void update(Tensor norm, const AdamWOptions& options, float weight_decay, float loraplus_ratio) override {
    mover_.update(norm, options, weight_decay, loraplus_ratio);
  }
  void publish() override { mover_.publish(); }
  void settle() override { mover_.settle(); }
  void merge_slots() override { mover_.merge_slots(); }
  float largest(float value) override { return mover_.largest(value); }

 private:
  void poison(int64_t group) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    if (poison_ == Poison::Gradient && group == 1) {
      Parameter& p = run_.model->parameters()["layers.0.mlp.norm.gain"];
      EXPECT_EQ(p.gradient.dtype, DType::F32);
      static_cast<float*>(p.gradient.data)[p.spec.shape[0] - 1] = nan;
    }
    if (poison_ == Poison::Loss && group == 0) static_cast<float*>(run_.model->loss_sums().data)[0] = nan;
  }

  TinyRun& run_;
  RankSync& mover_;
  Poison poison_;
};

struct Case {
  const char* numerics;
  ShardingMode mode;
};
class RankFault : public testing::TestWithParam<std::tuple<Case, Poison>> {};

// FAULTS 16: a number of one rank that is not finite makes all of them skip the step, and nothing of it remains.
TEST_P(RankFault, AllRanksSkipTheStep) {
  const auto& [which, poison] = GetParam();
  std::atomic<int> skipped = 0, finite = 0;
  std::mutex mutex;
  std::vector<uint64_t> hashes;
  std::vector<double> losses;
  on_ranks(numerics(which.numerics), which.mode, [&](TinyRun& run, int rank) {
    run.steps(2);
    run.sync->merge_slots();  // so that all have the same to begin with
    const std::vector<std::byte> before = state_of(run);
    PoisoningMover bad(run, poison);
    if (rank == kBadRank && poison == Poison::Activations) {
      make_infinite(run, "final_norm.gain", rank);  // its owner renews it after the step
    } else if (rank == kBadRank) {
      run.model->set_mover(&bad);
    }
    const StepResult result = run.step();
    skipped += result.skipped;
    EXPECT_FALSE(std::isfinite(result.grad_norm));
    EXPECT_TRUE(poison != Poison::Gradient || std::isfinite(result.loss));
    run.model->set_mover(run.sync.get());
    EXPECT_TRUE(state_of(run) == before) << "rank " << rank;
    run.step();
    const StepResult next = run.step();  // with scales from the step after the bad one
    finite += !next.skipped && std::isfinite(next.loss);
    EXPECT_TRUE(state_of(run) != before);
    run.sync->merge_slots();
    const uint64_t hash = run.sync->weights_hash();
    const std::lock_guard lock(mutex);
    hashes.push_back(hash);
    losses.push_back(next.loss);
  });
  EXPECT_EQ(skipped, kRanks);
  EXPECT_EQ(finite, kRanks);
  EXPECT_THAT(hashes, testing::Each(hashes.front()));
  EXPECT_THAT(losses, testing::Each(losses.front()));
}

constexpr Case kCases[] = {{"fp32", ShardingMode::Zero1},    {"bf16", ShardingMode::FsdpFull},
                           {"delayed", ShardingMode::Zero1}, {"delayed", ShardingMode::FsdpFull},
                           {"current", ShardingMode::Zero2}, {"delayed", ShardingMode::None}};

INSTANTIATE_TEST_SUITE_P(LossAndGradient, RankFault,
                         testing::Combine(testing::ValuesIn(kCases),
                                          testing::Values(Poison::Loss, Poison::Gradient)));
// Not in mode none, where a weight that is not finite stays so.
INSTANTIATE_TEST_SUITE_P(Activations, RankFault,
                         testing::Combine(testing::Values(kCases[0], kCases[2]),
                                          testing::Values(Poison::Activations)));

void flip_a_bit(std::byte* fp32) {
  fp32[1] ^= std::byte{1 << 4};  // in the middle of the mantissa
}

// Trains with a watch that compares weights every `period` steps, and flips a bit on one rank before step `flip_at`.
std::string error_after_flip(ShardingMode mode, int64_t period, int64_t flip_at, int64_t& steps) {
  std::atomic<int64_t> done = 0;
  const std::string error = error_of([&] {
    on_ranks(numerics("fp32"), mode, [&](TinyRun& run, int rank) {
      RankWatch watch(run.sync.get(), period);
      for (int64_t step = 0; step < 10; ++step) {
        if (step == flip_at) run.sync->settle();
        if (step == flip_at && rank == kBadRank) flip_a_bit(foreign_element(run, "final_norm.gain", rank));
        const StepResult result = run.runner->train_step(step, false, watch.note(step, 0));
        watch.look(step, result);
        if (rank == 0) done = step + 1;
      }
    });
  });
  steps = done;
  return error;
}

// FAULTS 22: with a copy of all weights on every rank, a wrong one stays wrong until it is found.
TEST(RankWatch, AFlippedBitIsFoundWithinItsPeriod) {
  int64_t steps = 0;
  const std::string error = error_after_flip(ShardingMode::None, 4, 5, steps);
  EXPECT_THAT(error, AllOf(HasSubstr("before step 9 the weights of rank 1 differ from those of rank 0, 2")));
  EXPECT_EQ(steps, 8);
}

// In zero1 the copy is renewed by its owner after every step, so that only a check before that can find it.
TEST(RankWatch, AFlippedBitInACopyIsFoundOrOverwritten) {
  int64_t steps = 0;
  EXPECT_THAT(error_after_flip(ShardingMode::Zero1, 4, 4, steps), HasSubstr("the weights of rank 1 differ"));
  EXPECT_EQ(steps, 4);
  EXPECT_EQ(error_after_flip(ShardingMode::Zero1, 4, 5, steps), "nothing was thrown");
  EXPECT_EQ(error_after_flip(ShardingMode::Zero1, 0, 4, steps), "nothing was thrown");
}

TEST(RankWatch, ASignalOfOneRankIsAgreed) {
  on_ranks(numerics("fp32"), ShardingMode::Zero1, [&](TinyRun& run, int rank) {
    RankWatch watch(run.sync.get(), 0);
    for (int64_t step = 0; step < 3; ++step) {
      // It comes in the middle of step 1: the next one carries it.
      const int own = rank == kBadRank && step >= 1 ? SIGUSR1 : 0;
      EXPECT_EQ(watch.agreed_signal(own), 0);
      watch.look(step, run.runner->train_step(step, false, watch.note(step, own)));
      EXPECT_EQ(watch.agreed_signal(0), step >= 1 ? SIGUSR1 : 0) << "rank " << rank << " step " << step;
      if (watch.agreed_signal(own) != 0) break;
    }
  });
  const RankWatch alone(nullptr, 0);
  EXPECT_EQ(alone.agreed_signal(SIGTERM), SIGTERM);
}

TEST(RankWatch, SlowRanks) {
  EXPECT_THAT(slow_ranks({10, 10, 12, 10}), ElementsAre(2));
  EXPECT_THAT(slow_ranks({10, 10, 11, 10}), IsEmpty());
  EXPECT_THAT(slow_ranks({10, 30, 10, 30, 10}), ElementsAre(1, 3));
  EXPECT_THAT(slow_ranks({10, 30}), IsEmpty()) << "of two ranks, either may be the odd one";
  EXPECT_THAT(slow_ranks({0, 0, 0}), IsEmpty());
  EXPECT_THAT(slow_ranks({}), IsEmpty());
}

TEST(RankWatch, AStragglerIsNamed) {
  CapturedLog log;
  on_ranks(numerics("fp32"), ShardingMode::Zero1, [&](TinyRun& run, int rank) {
    if (rank != 0) return;
    RankWatch watch(run.sync.get(), 0);
    StepResult result;
    result.ranks.resize(kRanks);
    for (RankRecord& record : result.ranks) record.note.compute_ms = 10;
    result.ranks[2].note.compute_ms = 20;
    for (int64_t step = 0; step < 30; ++step) watch.look(step, result);
  });
  ASSERT_EQ(log.messages.size(), 1u);
  EXPECT_THAT(log.messages.front(), AllOf(HasSubstr("step 25: rank 2 is slow"), HasSubstr("20.0 ms"),
                                          HasSubstr("the median of all ranks is 10.0 ms")));
}

}  // namespace
}  // namespace octet::test
