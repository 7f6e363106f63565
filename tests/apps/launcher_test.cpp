// `octet launch`: exit codes, signals, restarts. A test starts this program again as the launcher
// (LauncherProcess.Launch), which starts it once more for every rank (LauncherProcess.Work).

#include "launcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/signals.h"
#include "base/text.h"
#include "support/process.h"

namespace octet::test {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void append(const std::string& file, const std::string& text) {
  std::ofstream(file, std::ios::app) << text << std::flush;
}

// A rank. Ends with the code that TEST_CODES has for it, killed by SIGKILL for "kill", waits for a signal for
// "wait", and for a second one for "stay".
TEST(LauncherProcess, Work) {
  if (variable("TEST_CODES").empty()) GTEST_SKIP() << "runs only as a part of other tests";
  const size_t rank = std::stoul(variable("OCTET_RANK"));
  append(variable("TEST_FOLDER") + "/started",
         fmt::format("{} of {} job {} threads {} progress {} secret {}\n", rank, variable("OCTET_RANKS"),
                     variable("OCTET_JOB"), variable("OMP_NUM_THREADS"),
                     !variable("OCTET_PROGRESS_FILE").empty(), variable("OCTET_SECRET").size()));
  fmt::print("words of rank {}\n", rank);
  fmt::print(stderr, "trouble of rank {}\n", rank);
  std::fflush(stdout);
  // The nth start writes the nth of TEST_STEPS as the last finished step.
  const std::vector<std::string> steps = split_list(variable("TEST_STEPS"));
  if (rank == 0 && !steps.empty()) {
    const std::string starts = variable("TEST_FOLDER") + "/starts";
    append(starts, "x");
    const size_t start = read_text(starts).size() - 1;
    std::ofstream(variable("OCTET_PROGRESS_FILE")) << steps.at(std::min(start, steps.size() - 1));
  }
  const std::string code = split_list(variable("TEST_CODES")).at(rank);
  if (code == "kill") raise(SIGKILL);
  if (code != "wait" && code != "stay") _exit(std::stoi(code));
  const StopSignal stop;
  append(variable("TEST_FOLDER") + "/waiting", "x");
  while (!stop.requested()) std::this_thread::sleep_for(5ms);
  append(variable("TEST_FOLDER") + "/signals", fmt::format("{} ", stop.number()));
  if (code == "stay") std::this_thread::sleep_for(120s);
  std::this_thread::sleep_for(200ms);  // a second signal would end it with another code
  _exit(75);
}

TEST(LauncherProcess, Launch) {
  if (variable("TEST_LAUNCH").empty()) GTEST_SKIP() << "runs only as a part of other tests";
  LaunchPlan plan{.command = {"--gtest_filter=LauncherProcess.Work"}};
  plan.processes = std::stoi(variable("TEST_LAUNCH"));
  if (!variable("TEST_RESTARTS").empty()) plan.max_restarts = std::stoi(variable("TEST_RESTARTS"));
  const int code = launch_processes(plan);
  std::fflush(stdout);
  _exit(code);
}

struct Launched : testing::Test {
  pid_t start(const std::string& codes, std::vector<std::string> more = {}) {
    std::vector<std::string> words = std::move(more);  // env's own flags come first
    words.insert(words.end(), {fmt::format("TEST_LAUNCH={}", split_list(codes).size()), "TEST_CODES=" + codes,
                               "TEST_FOLDER=" + folder.path()});
    words.insert(words.end(), {std::filesystem::read_symlink("/proc/self/exe").string(),
                               "--gtest_filter=LauncherProcess.Launch"});
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
