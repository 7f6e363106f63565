// `octet launch`: exit codes, signals, restarts. A test starts the helper program launcher_process.

#include "launcher.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "base/clock.h"
#include "base/text.h"
#include "support/places.h"
#include "support/process.h"

namespace octet::test {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

struct Launched : testing::Test {
  pid_t start(const std::string& codes, std::vector<std::string> more = {}) {
    std::vector<std::string> words = std::move(more);  // env's own flags come first
    words.insert(words.end(), {fmt::format("TEST_LAUNCH={}", split_list(codes).size()), "TEST_CODES=" + codes,
                               "TEST_FOLDER=" + folder.path()});
    words.push_back(helper_program("launcher_process"));
    return start_process("/usr/bin/env", words, folder.path());
  }
  int run(const std::string& codes, const std::vector<std::string>& more = {}) {
    return wait_for_process(start(codes, more));
  }
  std::string text(const std::string& name) const {
    const std::string file = folder.path() + "/" + name;
    return std::filesystem::exists(file) ? read_text(file) : "";
  }
  size_t starts() const {
    const std::string started = text("started");
    return static_cast<size_t>(std::ranges::count(started, '\n'));
  }
  TemporaryFolder folder;
};

TEST(Launcher, CombinesExitCodes) {
  EXPECT_EQ(combined_exit_code({{0}, {0}}), 0);
  EXPECT_EQ(combined_exit_code({{75}, {75}}), 75);
  EXPECT_EQ(combined_exit_code({{0}, {75}}), 75);
  EXPECT_EQ(combined_exit_code({{75}, {3}, {1}}), 3);
  EXPECT_EQ(combined_exit_code({{0, SIGKILL}, {75}, {75}}), 75);
  EXPECT_EQ(combined_exit_code({{0, SIGKILL}, {1}, {1}}), 1);
  EXPECT_EQ(combined_exit_code({{0, SIGSEGV}, {0}}), 128 + SIGSEGV);
}

TEST_F(Launched, GivesEveryRankItsVariables) {
  EXPECT_EQ(run("0,0,0", {"-u", "OMP_NUM_THREADS"}), 0) << text("out.txt");
  const std::string started = text("started");
  for (const char* rank : {"0 of 3", "1 of 3", "2 of 3"}) EXPECT_THAT(started, HasSubstr(rank));
  EXPECT_THAT(started, AllOf(HasSubstr("progress true secret 64"), Not(HasSubstr("threads  "))));
  // Only rank 0 speaks.
  EXPECT_THAT(text("out.txt"),
              AllOf(HasSubstr("words of rank 0\n"), Not(HasSubstr("rank 1")), Not(HasSubstr("rank 2"))));
}

TEST_F(Launched, KeepsTheUsersThreads) {
  EXPECT_EQ(run("0", {"OMP_NUM_THREADS=7"}), 0);
  EXPECT_THAT(text("started"), HasSubstr("threads 7 "));
}

TEST_F(Launched, ShowsTheLastWordsOfARankThatFails) {
  EXPECT_EQ(run("0,5,0"), 5);
  EXPECT_THAT(text("out.txt"), AllOf(HasSubstr("[launch] rank 1 ended with code 5; its last lines:"),
                                     HasSubstr("[rank 1] trouble of rank 1\n"), Not(HasSubstr("[rank 2]"))));
}

TEST_F(Launched, AKilledRankLeavesTheWordToTheOthers) {
  EXPECT_EQ(run("75,kill,75"), 75);
  EXPECT_THAT(text("out.txt"), HasSubstr("[launch] rank 1 was killed by signal 9"));
}

TEST_F(Launched, EndsTheRestAfterAFailure) {
  const Clock::time_point start = Clock::now();
  EXPECT_EQ(run("wait,3,wait"), 3);
  EXPECT_EQ(text("signals"), fmt::format("{} {} ", SIGTERM, SIGTERM));
  EXPECT_GE(seconds_since(start), 15);  // the ranks have this time to notice themselves
}

TEST_F(Launched, PassesSignalsOnOnce) {
  for (const int number : {SIGTERM, SIGINT, SIGUSR1}) {
    std::filesystem::remove(folder.path() + "/waiting");
    std::filesystem::remove(folder.path() + "/signals");
    const pid_t launcher = start("wait,wait", {"TEST_RESTARTS=3"});
    for (int i = 0; i < 6000 && text("waiting").size() < 2; ++i) std::this_thread::sleep_for(10ms);
    ASSERT_EQ(text("waiting"), "xx");
    kill(launcher, number);
    EXPECT_EQ(wait_for_process(launcher), 75);  // and no restart
    EXPECT_EQ(text("signals"), fmt::format("{} {} ", number, number));
  }
}

// Who presses Ctrl-C twice wants no report of what happened then.
TEST_F(Launched, ASecondSignalIsNoFailure) {
  const pid_t launcher = start("stay,stay", {"TEST_RESTARTS=3"});
  for (int i = 0; i < 6000 && text("waiting").size() < 2; ++i) std::this_thread::sleep_for(10ms);
  kill(launcher, SIGINT);
  const std::string both = fmt::format("{0} {0} ", SIGINT);
  for (int i = 0; i < 6000 && text("signals") != both; ++i) std::this_thread::sleep_for(10ms);
  std::this_thread::sleep_for(100ms);
  kill(launcher, SIGINT);
  EXPECT_EQ(wait_for_process(launcher), 128 + SIGINT);
  EXPECT_THAT(text("out.txt"), Not(HasSubstr("[launch]")));
}

TEST_F(Launched, RestartsUntilNothingMoves) {
  // Steps 4, 8, 8, 8: one restart after 4, then two without a new step.
  EXPECT_EQ(run("75,75", {"TEST_RESTARTS=2", "TEST_STEPS=4,8,8,8"}), 1);
  EXPECT_EQ(starts(), 2u * 4);
  EXPECT_THAT(text("started"),
              AllOf(HasSubstr(" threads"), HasSubstr("restart 1 "), HasSubstr("restart 3 ")));
  EXPECT_THAT(text("out.txt"), HasSubstr("2 restarts without a new step"));
}

TEST_F(Launched, DoesNotRestartByDefault) {
  EXPECT_EQ(run("75,75"), 75);
  EXPECT_EQ(starts(), 2u);
}

TEST_F(Launched, DoesNotRestartAfterAnError) {
  EXPECT_EQ(run("75,1", {"TEST_RESTARTS=3"}), 1);
  EXPECT_EQ(starts(), 2u);
}

}  // namespace
}  // namespace octet::test
