// One of several ranks dies, hangs, fails or is asked to stop: all end together, and the run can be continued.

#include "cli/rank_runs.h"
#include "support/places.h"

namespace octet::test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
namespace fs = std::filesystem;

struct RankFaults : RankRuns {
  static constexpr const char* kForEver = "100000";

  // Starts a run without end, does `fault` to a rank in the middle of it, and returns the launcher's exit code.
  int code_after(const std::string& name, int ranks, size_t victim, int number, Flags flags) {
    flags["max_steps"] = kForEver;
    const pid_t launcher = start_launch(ranks, name, flags);
    const std::vector<pid_t> pids = ranks_after_steps(launcher, name, 3);
    if (pids.size() != static_cast<size_t>(ranks)) {
      ADD_FAILURE() << "it did not start:\n" << console();
      return -1;
    }
    if (flags.contains("save_steps")) {
      EXPECT_TRUE(wait_until([&] { return has_checkpoint(name); }));
      const size_t steps = metrics(name).size();
      EXPECT_TRUE(wait_until([&] { return metrics(name).size() > steps + 1; }));
    }
    kill(pids[victim], number);
    const int code = end_of(launcher);
    for (const pid_t pid : pids) EXPECT_FALSE(is_running(pid));
    return code;
  }
  // In the words of the ranks that saw it: who failed, and where each was.
  void expect_named(const std::string& text, size_t victim, int ranks) {
    EXPECT_THAT(text, AllOf(HasSubstr(fmt::format("rank {} of {} failed", victim, ranks)),
                            ContainsRegex("this is rank [0-9] on .*: step [0-9]+"),
                            ContainsRegex("queued, last '[^']+', [0-9]+ finished")));
  }
};

// FAULTS 25, a rank that dies.
TEST_F(RankFaults, AKilledRankEndsAll) {
  EXPECT_EQ(code_after("run", 4, 2, SIGKILL, {}), 1) << console();
  expect_named(console(), 2, 4);
  EXPECT_THAT(console(), HasSubstr("there is no checkpoint"));
  expect_named(read_text(run_file("run", "rank_1.log")), 2, 4);
  EXPECT_EQ(code_after("saved", 3, 2, SIGKILL, {{"save_steps", "2"}}), 75) << console();
  expect_named(console(), 2, 3);
  EXPECT_THAT(console(), HasSubstr("--resume latest continues the run"));
  const ProcessResult list =
      run_process(test::octet_program(), {"checkpoints", "runs/saved", "--verify"}, folder.path());
  EXPECT_EQ(list.exit_code, 0) << list.out << list.err;
}

TEST_F(RankFaults, AKilledFirstRankEndsAll) {
  EXPECT_EQ(code_after("saved", 3, 0, SIGKILL, {{"save_steps", "2"}}), 75) << console();
  EXPECT_THAT(console(), HasSubstr("rank 0 was killed by signal 9"));
  expect_named(read_text(run_file("saved", "rank_1.log")), 0, 3);
  expect_named(read_text(run_file("saved", "rank_2.log")), 0, 3);
}

// A rank that lives and does nothing.
TEST_F(RankFaults, AStoppedRankEndsAll) {
  EXPECT_EQ(code_after("run", 3, 1, SIGSTOP, {{"comm_timeout", "16"}, {"save_steps", "2"}}), 75) << console();
  expect_named(console(), 1, 3);
  EXPECT_THAT(console(), HasSubstr("no heartbeat for"));
  expect_named(read_text(run_file("run", "rank_2.log")), 1, 3);
}

TEST_F(RankFaults, AStoppedFirstRankEndsAll) {
  EXPECT_EQ(code_after("run", 3, 0, SIGSTOP, {{"comm_timeout", "16"}}), 1) << console();
  for (const char* log : {"rank_1.log", "rank_2.log"}) expect_named(read_text(run_file("run", log)), 0, 3);
}

// FAULTS 23: all ranks finish the same step, save it, and ask to be started again. The continued run is the run that was
// never stopped.
TEST_F(RankFaults, ASignalToOneRankStopsAllAfterTheSameStep) {
  Flags flags = {{"max_steps", "24"}};
  ASSERT_EQ(launch(3, "whole", flags).exit_code, 0);
  size_t steps = 2;
  for (const auto& [victim, number] : std::vector<std::pair<size_t, int>>{{1, SIGUSR1}, {0, SIGTERM}}) {
    const pid_t launcher = start_launch(3, "stopped", flags);
    const std::vector<pid_t> pids = ranks_after_steps(launcher, "stopped", steps);
    ASSERT_EQ(pids.size(), 3u) << console();
    kill(pids[victim], number);
    ASSERT_EQ(end_of(launcher), 75) << console();
    EXPECT_THAT(console(), HasSubstr("stopped on request"));
    const size_t done = metrics("stopped").size();
    ASSERT_LT(done, 24u);
    EXPECT_TRUE(fs::exists(run_file("stopped", fmt::format("checkpoints_fp8/step_{}", done))));
    EXPECT_FALSE(fs::exists(run_file("stopped", "crashes")));
    flags["resume"] = "latest";
    steps = done + 2;
  }
  ASSERT_EQ(launch(3, "stopped", flags).exit_code, 0);
  for (const char* key : {"step", "loss", "grad_norm", "tokens"})
    EXPECT_EQ(values("stopped", key), values("whole", key)) << key;
}

// FAULTS 26: an exception on one rank only, before the ranks have planned the run and after they have joined groups.
TEST_F(RankFaults, AFailureOfTheFirstRankEndsAll) {
  fs::create_directories(run_file("run", "crashes"));  // where that rank reads and writes a file
  const ProcessResult result = launch(3, "run", {{"max_steps", kForEver}});
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("rank 0 of 3 failed"), HasSubstr("crashes")));
  for (const char* log : {"rank_1.log", "rank_2.log"})
    EXPECT_THAT(read_text(run_file("run", log)),
                AllOf(HasSubstr("rank 0 of 3 failed"), HasSubstr("crashes")));
}

TEST_F(RankFaults, AFailureOfTheFirstRankAtTheStartEndsAll) {
  folder.write("runs", "a file where the folder of all runs should be");
  const ProcessResult result = launch(3, "run");
  // A wrong configuration, said once.
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("cannot be written"), Not(HasSubstr("failed"))));
}

TEST_F(RankFaults, AFailureOfAnotherRankEndsAll) {
  fs::create_directories(run_file("run", "rank_2.log"));  // where that rank writes a file
  const ProcessResult result = launch(3, "run", {{"max_steps", kForEver}});
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("rank 2 of 3 failed"), HasSubstr("rank_2.log")));
}

// FAULTS 27: three starts from the same step have crashed; the fourth crash is not worth another start, also where the
// rank that crashes is the one that counts.
TEST_F(RankFaults, ACrashLoopEnds) {
  Flags flags = {{"save_steps", "3"}, {"max_steps", "3"}};
  ASSERT_EQ(launch(2, "run", flags).exit_code, 0);
  flags = {{"save_steps", kForEver}, {"max_steps", kForEver}, {"resume", "latest"}};
  for (int starts = 1; starts <= 4; ++starts) {
    const size_t steps = 4;  // metrics begin again behind the step that is resumed
    const pid_t launcher = start_launch(2, "run", flags);
    std::vector<pid_t> pids;
    ASSERT_TRUE(wait_until([&] {
      pids = ranks_of(launcher);
      return pids.size() == 2 && fs::exists(run_file("run", "crashes")) &&
             read_text(run_file("run", "crashes")) == fmt::format("3 {}\n", starts) &&
             metrics("run").size() >= steps;
    })) << console();
    kill(pids[starts % 2 == 0 ? 0 : 1], SIGKILL);
    EXPECT_EQ(end_of(launcher), starts < 4 ? 75 : 1) << starts << console();
  }
  EXPECT_THAT(console(), HasSubstr("the last 3 starts from step 3 crashed"));
  // A run that ends in order forgets them.
  flags["max_steps"] = "4";
  EXPECT_EQ(launch(2, "run", flags).exit_code, 0);
  EXPECT_FALSE(fs::exists(run_file("run", "crashes")));
}

// The launcher starts a run again, and gives up if it makes no progress.
TEST_F(RankFaults, TheLauncherRestartsARunThatCrashed) {
  std::vector<std::string> words = {"launch", "-n", "2", "--max_restarts", "2"};
  const std::vector<std::string> command = train("run", {{"save_steps", "2"}, {"max_steps", "12"}});
  words.insert(words.end(), command.begin(), command.end());
  const pid_t launcher = start(words);
  std::vector<pid_t> pids;
  ASSERT_TRUE(wait_until([&] {
    pids = ranks_of(launcher);
    return pids.size() == 2 && metrics("run").size() >= 5;
  })) << console();
  kill(pids[1], SIGKILL);
  EXPECT_EQ(end_of(launcher), 0) << console();
  EXPECT_THAT(console(), HasSubstr("[launch] restart 1:"));
  EXPECT_EQ(metrics("run").size(), 12u);
  ASSERT_EQ(launch(2, "whole", {{"max_steps", "12"}}).exit_code, 0);
  EXPECT_EQ(values("run", "loss"), values("whole", "loss"));
}

}  // namespace
}  // namespace octet::test
