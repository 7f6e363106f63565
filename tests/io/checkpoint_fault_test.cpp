// Faults at every system call of a save and prune: whatever happens, what was whole stays whole, the newest
// whole checkpoint is found without cleaning by hand, and the next save works.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <set>

#include "checkpoint_support.h"
#include "io/checkpoint_store.h"
#include "temp_dir.h"

namespace octet {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

// A folder from which a faulty operation starts, and what may be found after it.
struct Scenario {
  const char* name;
  std::vector<int64_t> before;       // steps saved; the first is the best
  int64_t saves;                     // the step that the operation saves
  bool prunes = true;                // then down to two
  std::set<int64_t> latest_allowed;  // 0: none at all
  size_t whole_at_least;
};

const std::vector<Scenario> kScenarios = {
    {"next", {1, 2}, 3, true, {2, 3}, 2},
    {"prune_two", {1, 2, 3, 4}, 5, true, {4, 5}, 2},
    {"same_step_again", {1, 2}, 2, false, {2}, 2},
    {"first", {}, 1, true, {0, 1}, 0},
};

class CheckpointFaults : public ::testing::TestWithParam<Scenario> {
 protected:
  void SetUp() override {
    FaultEnv env(template_.path());
    CheckpointStore store(env, template_ / "run/checkpoints");
    for (const int64_t step : GetParam().before) save_step(store, step, step == GetParam().before.front());
    FaultEnv counting(reset());
    operate(counting);
    calls_ = counting.calls();
    ASSERT_GT(calls_, 20);
  }

  // A fresh copy of the starting state.
  std::string reset() {
    std::filesystem::remove_all(work_ / "x");
    std::filesystem::copy(template_.path(), work_ / "x", std::filesystem::copy_options::recursive);
    return work_ / "x";
  }

  std::string checkpoints() const { return work_ / "x/run/checkpoints"; }

  void operate(Env& env) {
    CheckpointStore store(env, checkpoints());
    save_step(store, GetParam().saves, true);
    if (GetParam().prunes) store.prune(2);
  }

  // What a restarted process finds and does.
  void check_recovery(Env& env) {
    const Scenario& scenario = GetParam();
    CheckpointStore store(env, checkpoints());
    const auto latest = store.open_latest();
    EXPECT_TRUE(scenario.latest_allowed.count(latest ? latest->step : 0));
    if (latest) expect_content(*latest, latest->step);
    size_t whole = 0;
    for (const auto& listing : store.list(true)) whole += listing.is_whole();
    EXPECT_GE(whole, scenario.whole_at_least);
    if (!scenario.before.empty()) {
      const auto best = store.open_best();
      ASSERT_TRUE(best);
      EXPECT_THAT(best->step, AnyOf(scenario.before.front(), scenario.saves));
      expect_content(*best, best->step);
    }

    save_step(store, 9);
    store.prune(2);
    expect_content(*store.open_latest(), 9);
    for (const std::string& name : env.list(checkpoints())) {
      EXPECT_FALSE(name.starts_with('.')) << name << " is left over";
    }
    for (const auto& listing : store.list(true)) EXPECT_TRUE(listing.is_whole()) << listing.broken;
  }

  TempDir template_, work_;
  int64_t calls_ = 0;
  LogCapture log_;
};

// FAULTS 1 and 8.
TEST_P(CheckpointFaults, KillAtEveryCall) {
  for (const IoFault fault : {IoFault::Kill, IoFault::KillInside}) {
    for (int64_t k = 1; k <= calls_; ++k) {
      SCOPED_TRACE(k);
      FaultEnv env(reset());
      env.arm(k, fault);
      try {
        operate(env);
      } catch (const SimulatedKill&) {
      }
      // One can die before every call; "inside" a read there is nothing to see.
      if (fault == IoFault::Kill) {
        EXPECT_TRUE(env.struck());
      } else if (!env.struck()) {
        continue;
      }
      env.disarm();
      check_recovery(env);
      if (HasFailure()) return;
    }
  }
}

// FAULTS 1 with real processes that really end.
TEST_P(CheckpointFaults, ExitOfAChildAtEveryCall) {
  for (int64_t k = 1; k <= calls_; ++k) {
    SCOPED_TRACE(k);
    const std::string root = reset();
    const pid_t child = fork();
    if (child == 0) {
      FaultEnv env(root);
      env.arm(k, IoFault::Exit);
      operate(env);
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 137) << status;
    FaultEnv env(root);
    check_recovery(env);
    if (HasFailure()) return;
  }
}

// FAULTS 2 and 8.
TEST_P(CheckpointFaults, PowerLossAtEveryCall) {
  struct Loss {
    Unsynced entries, bytes;
    uint64_t seed;
  };
  for (const Loss loss :
       {Loss{Unsynced::Drop, Unsynced::Drop, 0}, Loss{Unsynced::Keep, Unsynced::Drop, 0},
        Loss{Unsynced::Drop, Unsynced::Keep, 0}, Loss{Unsynced::Random, Unsynced::Random, 1},
        Loss{Unsynced::Random, Unsynced::Random, 2}}) {
    for (int64_t k = 1; k <= calls_ + 1; ++k) {
      SCOPED_TRACE(k);
      FaultEnv env(reset());
      env.arm(k, IoFault::Kill);
      try {
        operate(env);
      } catch (const SimulatedKill&) {
      }
      env.disarm();
      env.lose_power(loss.entries, loss.bytes, loss.seed + static_cast<uint64_t>(k) * 100);
      if (k == calls_ + 1) {  // a finished save is durable
        const auto latest = CheckpointStore(env, checkpoints()).open_latest();
        ASSERT_TRUE(latest);
        EXPECT_EQ(latest->step, GetParam().saves);
      }
      check_recovery(env);
      if (HasFailure()) return;
    }
  }
}

// FAULTS 5: loud, and harmless.
TEST_P(CheckpointFaults, DiskErrorsAtEveryCall) {
  int64_t reported = 0;
  for (const auto& [fault, lasting] : std::vector<std::pair<IoFault, bool>>{
           {IoFault::Enospc, false}, {IoFault::Enospc, true}, {IoFault::Eio, false}}) {
    for (int64_t k = 1; k <= calls_; ++k) {
      SCOPED_TRACE(k);
      FaultEnv env(reset());
      env.arm(k, fault, lasting);
      log_.lines.clear();
      std::string said;
      try {
        operate(env);
      } catch (const IoError& error) {
        said = error.what();
        ++reported;
      }
      if (!env.struck()) continue;
      for (const auto& line : log_.lines) said += line;
      // close() of a file that was only read may fail unheard; everything else is told.
      if (fault == IoFault::Enospc) {
        EXPECT_THAT(said, HasSubstr("No space left on device"));
      }
      env.disarm();
      check_recovery(env);
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(reported, calls_);
}

TEST_P(CheckpointFaults, InterruptionsAndShortWritesAreNotNoticed) {
  for (const IoFault fault : {IoFault::Eintr, IoFault::Short}) {
    for (int64_t k = 1; k <= calls_; ++k) {
      SCOPED_TRACE(k);
      FaultEnv env(reset());
      env.arm(k, fault);
      ASSERT_NO_THROW(operate(env));
      if (!env.struck()) continue;
      const auto latest = CheckpointStore(env, checkpoints()).open_latest();
      ASSERT_TRUE(latest);
      expect_content(*latest, GetParam().saves);
      if (HasFailure()) return;
    }
  }
}

void PrintTo(const Scenario& scenario, std::ostream* out) {
  *out << scenario.name;
}

INSTANTIATE_TEST_SUITE_P(Scenarios, CheckpointFaults, ::testing::ValuesIn(kScenarios),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace octet
