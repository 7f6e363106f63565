#include "sweep/sweep_store.h"

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "support/error_of.h"
#include "support/process.h"

namespace octet {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

struct SweepStoreTest : testing::Test {
  SweepStore store(double lease = 60) { return {posix_env(), folder.path() + "/sweep", lease}; }
  std::string trial_file(const std::string& name) const { return folder.path() + "/sweep/trials/" + name; }
  test::TemporaryFolder folder;
};

TEST_F(SweepStoreTest, ARunIsDoneOnce) {
  SweepStore a = store(), b = store();
  EXPECT_FALSE(a.exists());
  a.open("method: grid\n", 1);
  b.open("method: grid\n", 1);
  EXPECT_TRUE(a.create(0, {"0.1", "x"}));
  EXPECT_FALSE(b.create(0, {"0.2", "y"}));
  const Trial trial = b.scan().at(0);
  EXPECT_EQ(trial.values, (SweepValues{"0.1", "x"}));
  const auto claim = a.try_claim(trial);
  ASSERT_TRUE(claim);
  EXPECT_FALSE(b.try_claim(b.scan().at(0)));
  EXPECT_TRUE(a.finish(
      *claim, {.state = TrialState::StoppedEarly, .metric = 2.5, .reason = "why", .seconds = 3, .steps = 9}));
  const Trial done = b.scan().at(0);
  EXPECT_EQ(done.result->state, TrialState::StoppedEarly);
  EXPECT_EQ(done.result->metric, 2.5);
  EXPECT_EQ(done.result->reason, "why");
  EXPECT_EQ(done.result->steps, 9);
  EXPECT_FALSE(b.try_claim(done));
  EXPECT_FALSE(a.finish(*claim, {}));  // a second result is refused
}

TEST_F(SweepStoreTest, ALookAtTheResultsWritesNothing) {
  store().open("method: grid\n", 1);
  fs::remove_all(folder.path() + "/sweep/runs");
  EXPECT_EQ(store().open("method: grid\n", 1, true), "method: grid\n");
  EXPECT_FALSE(fs::exists(folder.path() + "/sweep/runs"));
}

TEST_F(SweepStoreTest, ManyAgentsAtOnceShareTheRuns) {
  SweepStore first = store();
  first.open("x", 1);
  constexpr int kAgents = 8, kRuns = 40;
  std::atomic<int> claimed = 0;
  std::vector<std::thread> agents;
  for (int agent = 0; agent < kAgents; ++agent) {
    agents.emplace_back([&] {
      SweepStore mine = store();
      for (int64_t i = 0; i < kRuns; ++i) {
        mine.create(i, {"v"});
        if (mine.try_claim(mine.scan().at(static_cast<size_t>(i)))) ++claimed;
      }
    });
  }
  for (std::thread& agent : agents) agent.join();
  EXPECT_EQ(claimed, kRuns);
  for (const auto& entry : fs::directory_iterator(folder.path() + "/sweep/trials"))
    EXPECT_EQ(entry.path().string().find(".tmp-"), std::string::npos) << entry.path();
}

TEST_F(SweepStoreTest, WhatIsGivenBackCanBeTaken) {
  SweepStore a = store(), b = store();
  a.open("x", 1);
  a.create(0, {"v"});
  const auto claim = a.try_claim(a.scan().at(0));
  a.give_back(*claim);
  const auto second = b.try_claim(b.scan().at(0));
  ASSERT_TRUE(second);
  EXPECT_EQ(second->generation, 1);
  Claim old = *claim;
  EXPECT_FALSE(a.keep(old));  // its owner notices
  EXPECT_EQ(b.lost_claims(0), 1);
}

TEST_F(SweepStoreTest, ADeadProcessOfThisMachineIsNoticedAtOnce) {
  SweepStore mine = store();
  mine.open("x", 1);
  mine.create(0, {"v"});
  const pid_t child = fork();
  if (child == 0) {
    SweepStore its = store();
    its.try_claim(its.scan().at(0));
    pause();
    _exit(0);
  }
  while (!fs::exists(trial_file("0000.beat.0"))) usleep(1000);
  EXPECT_FALSE(mine.try_claim(mine.scan().at(0)));
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(mine.try_claim(mine.scan().at(0)));
}

// An agent of another machine: only its beat tells whether it lives.
TEST_F(SweepStoreTest, ASilentAgentElsewhereIsDeadAfterTheLease) {
  SweepStore mine = store(0.3);
  mine.open("x", 1);
  mine.create(0, {"v"});
  folder.write("sweep/trials/0000.claim.0",
               R"({"host": "elsewhere", "namespace": "pid:[1]", "pid": 1, "start": "5"})");
  folder.write("sweep/trials/0000.beat.0", "1\n");
  for (int i = 2; i < 10; ++i) {  // alive for longer than the lease
    EXPECT_FALSE(mine.try_claim(mine.scan().at(0)));
    folder.write("sweep/trials/0000.beat.0", std::to_string(i));
    usleep(60'000);
  }
  EXPECT_FALSE(mine.try_claim(mine.scan().at(0)));
  usleep(400'000);
  const auto claim = mine.try_claim(mine.scan().at(0));
  ASSERT_TRUE(claim);
  EXPECT_EQ(claim->generation, 1);
}

TEST_F(SweepStoreTest, HalfWrittenFilesAreNotThereYet) {
  SweepStore mine = store();
  mine.open("x", 1);
  folder.write("sweep/trials/0000.json", "{\"index\": 0, \"val");
  folder.write("sweep/trials/0001.json", "");
  folder.write("sweep/trials/notes.txt", "hello");
  EXPECT_FALSE(mine.scan().at(0).exists);
  mine.create(2, {"v"});
  folder.write("sweep/trials/0002.result.json", "{\"state\": \"fin");
  EXPECT_FALSE(mine.scan().at(2).result);
}

TEST_F(SweepStoreTest, ARunWithADamagedFileFailsAfterTheLease) {
  SweepStore mine = store(0), patient = store();
  mine.open("x", 1);
  folder.write("sweep/trials/0000.json", "{\"index\": 0, \"val");
  mine.create(1, {"v"});
  folder.write("sweep/trials/0001.result.json", "{\"state\": \"fin");
  for (int look = 0; look < 2; ++look) {
    mine.scan();
    patient.scan();
  }
  for (const Trial& trial : mine.scan()) {
    ASSERT_TRUE(trial.result) << trial.index;
    EXPECT_EQ(trial.result->state, TrialState::Failed);
    EXPECT_THAT(trial.result->reason, HasSubstr("is damaged"));
  }
  for (const Trial& trial : patient.scan()) EXPECT_FALSE(trial.result) << trial.index;
}

TEST_F(SweepStoreTest, AnotherSweepInTheFolderIsAnError) {
  SweepStore mine = store();
  mine.open("method: grid\nlr: categorical [1, 2]\n", 1);
  EXPECT_NO_THROW(mine.open("method: grid\nlr: categorical [1, 2]\n", 1));
  // Who only looks at the results need not repeat everything.
  EXPECT_EQ(mine.open("method: grid\n", 1, true), "method: grid\nlr: categorical [1, 2]\n");
  EXPECT_THROW(mine.open("method: grid\n", 1), ConfigError);
  EXPECT_THROW(mine.open("method: bayes\n", 1, true), ConfigError);
  EXPECT_THAT(
      error_of([&] { mine.open("method: grid\nlr: categorical [1, 3]\n", 1); }),
      HasSubstr("holds another sweep: it has 'lr: categorical [1, 2]', expected 'lr: categorical [1, 3]'"));
  EXPECT_THAT(error_of([&] { mine.open("method: grid\n", 1); }), HasSubstr("expected 'nothing more'"));
  EXPECT_THAT(error_of([&] { mine.open("method: grid\nlr: categorical [1, 2]\n", 2); }),
              HasSubstr("has --sweep_seed 1, not 2"));
}

TEST_F(SweepStoreTest, FailedRunsAreRepeatedOnRequest) {
  SweepStore mine = store();
  mine.open("x", 1);
  for (int64_t i = 0; i < 2; ++i) {
    mine.create(i, {"v"});
    const auto claim = mine.try_claim(mine.scan().at(static_cast<size_t>(i)));
    mine.finish(*claim, {.state = i == 0 ? TrialState::Failed : TrialState::Finished, .reason = "r"});
  }
  EXPECT_EQ(mine.retry_failed(), 1);
  EXPECT_FALSE(mine.scan().at(0).result);
  EXPECT_TRUE(mine.scan().at(1).result);
  EXPECT_TRUE(mine.try_claim(mine.scan().at(0)));
}

TEST_F(SweepStoreTest, FilesOfOtherKindsAreRefusedOrSkipped) {
  SweepStore mine = store();
  mine.open("x", 1);
  EXPECT_TRUE(mine.create(0, {"v"}));
  const auto write = [&](const std::string& name, const std::string& text) {
    std::ofstream(folder.path() + "/sweep/" + name) << text;
  };
  // A result that cannot be one is as good as none.
  for (const char* result : {"5", R"({"state": 5})", R"({"state": "sleeping"})", "{"}) {
    write("trials/0000.result.json", result);
    EXPECT_FALSE(store().scan().at(0).result) << result;
  }
  write("trials/0000.result.json",
        R"({"state": "finished", "reason": [], "exit_code": "x", "seconds": null})");
  EXPECT_TRUE(store().scan().at(0).result);
  write("trials/0000.json", R"({"values": [5]})");
  EXPECT_THAT(error_of([&] { store().scan(); }), HasSubstr("\"values\" holds 5, expected texts"));
  for (const char* sweep : {"", "5", R"({"format": "x"})", R"({"format": 1, "seed": "1", "sweep": "x"})",
                            R"({"format": 1, "seed": 1, "sweep": 5})"}) {
    write("sweep.json", sweep);
    EXPECT_THAT(error_of([&] { mine.open("x", 1); }), HasSubstr("is not the description of a sweep"))
        << sweep;
  }
}

}  // namespace
}  // namespace octet
