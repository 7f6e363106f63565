// Several processes: host messages between them, and what they do when one of them dies, stops or hangs. Each test starts
// the helper program rank_process once per rank and tells it in OCTET_TEST_MODE what to do.

#include "dist/process_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "base/clock.h"
#include "dist/engines.h"
#include "dist/rendezvous_messages.h"
#include "support/places.h"
#include "support/process.h"

namespace octet::test {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

struct RankProcesses {
  explicit RankProcesses(const std::string& mode, int count, std::vector<std::string> more = {}) {
    const std::string job = random_hex(8);
    for (int rank = 0; rank < count; ++rank) {
      std::vector<std::string> variables = {fmt::format("OCTET_RANK={}", rank),
                                            fmt::format("OCTET_RANKS={}", count),
                                            fmt::format("OCTET_LOCAL_RANK={}", rank),
                                            fmt::format("OCTET_LOCAL_RANKS={}", count),
                                            "OCTET_JOB=" + job,
                                            "OCTET_MASTER=127.0.0.1",
                                            "OCTET_TEST_MODE=" + mode};
      variables.insert(variables.end(), more.begin(), more.end());
      const std::string place = fmt::format("{}/{}", folder.path(), rank);
      require(mkdir(place.c_str(), 0700) == 0, "{}", place);
      std::vector<std::string> words = std::move(variables);
      words.push_back(helper_program("rank_process"));
      pids.push_back(start_process("/usr/bin/env", words, place));
    }
    ended.resize(pids.size());
  }
  ~RankProcesses() {
    for (size_t i = 0; i < pids.size(); ++i) {
      if (ended[i]) continue;
      kill(pids[i], SIGKILL);
      wait_for_process(pids[i]);
    }
  }
  std::string output(int rank) const {
    const std::string file = fmt::format("{}/{}/out.txt", folder.path(), rank);
    return std::filesystem::exists(file) ? read_text(file) : "";
  }
  // All of them have said it.
  void wait_for(const std::string& text) const {
    const Clock::time_point start = Clock::now();
    for (int rank = 0; rank < static_cast<int>(pids.size()); ++rank) {
      while (output(rank).find(text) == std::string::npos) {
        if (seconds_since(start) > 60) fail("rank {} has not said '{}': {}", rank, text, output(rank));
        std::this_thread::sleep_for(10ms);
      }
    }
  }
  // Within a limit that a loaded machine holds; far below the limits of the ranks that are not under test.
  int code(int rank) {
    const auto index = static_cast<size_t>(rank);
    const Clock::time_point start = Clock::now();
    int status = 0;
    while (waitpid(pids[index], &status, WNOHANG) == 0) {
      if (seconds_since(start) > 25) return -1;
      std::this_thread::sleep_for(10ms);
    }
    ended[index] = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  void send_signal(int rank, int number) const { kill(pids[static_cast<size_t>(rank)], number); }
  void stop(int rank) const {
    send_signal(rank, SIGSTOP);
    siginfo_t info{};
    waitid(P_PID, static_cast<id_t>(pids[static_cast<size_t>(rank)]), &info, WSTOPPED);
  }

  TemporaryFolder folder;
  std::vector<pid_t> pids;
  std::vector<bool> ended;
};

TEST(ProcessRanks, GatherTexts) {
  for (const int count : {3, 4}) {
    RankProcesses processes("gather", count);
    std::string all = "r0";
    for (int rank = 1; rank < count; ++rank) all += fmt::format("|r{}", rank);
    for (int rank = 0; rank < count; ++rank) {
      EXPECT_EQ(processes.code(rank), 0) << processes.output(rank);
      const std::string output = processes.output(rank);
      EXPECT_THAT(output,
                  AllOf(HasSubstr("all: " + all + "\n"), HasSubstr("first: from 0\n"), HasSubstr("done\n")));
      EXPECT_EQ(output.find(fmt::format("part: {}|1\n", count - 1)) != std::string::npos,
                rank == 1 || rank == count - 1);
    }
  }
}

TEST(ProcessRanks, AMissingRankIsNamed) {
  RankProcesses processes("missing", 3);
  for (const int rank : {0, 1, 2}) EXPECT_EQ(processes.code(rank), 0) << processes.output(rank);
  for (const int rank : {0, 1})
    EXPECT_THAT(processes.output(rank), HasSubstr("'alone': rank 2 has not called it within 0.5 s")) << rank;
}

TEST(ProcessRanks, ARankThatHasEndedIsNotWaitedFor) {
  RankProcesses processes("leaving", 3);
  for (const int rank : {0, 1, 2}) EXPECT_EQ(processes.code(rank), 0) << processes.output(rank);
  for (const int rank : {0, 1})
    EXPECT_THAT(processes.output(rank), HasSubstr("'alone': rank 2 has ended")) << rank;
}

TEST(ProcessRanks, MisuseIsAnErrorOfTheCaller) {
  RankProcesses processes("misuse", 2);
  for (const int rank : {0, 1}) {
    EXPECT_EQ(processes.code(rank), 0) << processes.output(rank);
    EXPECT_THAT(processes.output(rank),
                AllOf(HasSubstr(fmt::format("rank {} is not a member", rank)),
                      HasSubstr("member 7, expected"), HasSubstr("at most 67108864")));
  }
}

TEST(ProcessRanks, AKilledRankEndsAll) {
  RankProcesses processes("work", 4);
  processes.wait_for("at work");
  processes.send_signal(2, SIGKILL);
  for (const int rank : {0, 1, 3}) {
    EXPECT_EQ(processes.code(rank), 1) << processes.output(rank);
    EXPECT_THAT(
        processes.output(rank),
        AllOf(HasSubstr("rank 2 of 4 failed: its process has ended"), HasSubstr("step 12"),
              HasSubstr("lane 0: 2 queued, last 'gather layers.3', 1 finished, last 'gather layers.2'"),
              HasSubstr("no checkpoint to continue from (exit code 1)")))
        << rank;
  }
  EXPECT_EQ(processes.code(2), 128 + SIGKILL);
  // Whether the dead one is among them depends on its last heartbeat.
  EXPECT_THAT(processes.output(0),
              AnyOf(HasSubstr("ranks 0, 1, 2 and 3: step 12"), HasSubstr("ranks 0, 1 and 3: step 12")));
}

TEST(ProcessRanks, AKilledRank0EndsAll) {
  RankProcesses processes("saved", 3);
  processes.wait_for("at work");
  processes.send_signal(0, SIGKILL);
  for (const int rank : {1, 2}) {
    EXPECT_EQ(processes.code(rank), 75) << processes.output(rank);
    EXPECT_THAT(processes.output(rank), AllOf(HasSubstr("rank 0 of 3 failed: its process has ended"),
                                              HasSubstr("--resume latest continues the run (exit code 75)")));
  }
}

TEST(ProcessRanks, AStoppedRankEndsAll) {
  RankProcesses processes("saved", 3, {"OCTET_TEST_SILENCE_MS=3000"});
  processes.wait_for("at work");
  processes.send_signal(1, SIGSTOP);
  for (const int rank : {0, 2}) {
    EXPECT_EQ(processes.code(rank), 75) << processes.output(rank);
    EXPECT_THAT(processes.output(rank),
                HasSubstr("rank 1 of 3 failed: its process has stopped: no heartbeat for"));
  }
  // It ends, too, when it goes on.
  processes.send_signal(1, SIGCONT);
  EXPECT_EQ(processes.code(1), 75) << processes.output(1);
}

TEST(ProcessRanks, AStoppedRank0EndsAll) {
  RankProcesses processes("work", 3, {"OCTET_TEST_SILENCE_MS=3000"});
  processes.wait_for("at work");
  processes.send_signal(0, SIGSTOP);
  for (const int rank : {1, 2}) {
    EXPECT_EQ(processes.code(rank), 1) << processes.output(rank);
    EXPECT_THAT(processes.output(rank), HasSubstr("rank 0 of 3 failed: its process has stopped"));
  }
}

TEST(ProcessRanks, AHangEndsAllAndNamesTheRankThatIsBehind) {
  RankProcesses processes("hang", 3, {"OCTET_TEST_STALL_MS=1000"});
  for (const int rank : {0, 1, 2}) {
    EXPECT_EQ(processes.code(rank), 1) << processes.output(rank);
    EXPECT_THAT(processes.output(rank),
                AllOf(HasSubstr("the ranks hang: no collective has finished for 1."),
                      HasSubstr("rank 0 waits in 'gather layers.3' of step 12"),
                      HasSubstr("rank 2 is behind: 1 of 2 collectives of lane 0 queued")));
  }
  EXPECT_THAT(processes.output(0), AllOf(HasSubstr("ranks 0 and 1: step 12; lane 0: 2 queued"),
                                         HasSubstr("rank 2: step 12; lane 0: 1 queued")));
}

TEST(ProcessRanks, ALongPhaseIsNoHang) {
  RankProcesses processes("phase", 3, {"OCTET_TEST_STALL_MS=1000"});
  for (const int rank : {0, 1, 2}) {
    EXPECT_EQ(processes.code(rank), 0) << processes.output(rank);
    EXPECT_THAT(processes.output(rank), HasSubstr("done\n"));
  }
}

// The survivors fail in a collective and report that. All blame the dead rank, not each other.
TEST(ProcessRanks, ADeadRankIsBlamedForFailedCollectives) {
  if (gloo_description() != "Gloo") GTEST_SKIP() << gloo_description();
  for (const int dead : {0, 1, 2}) {
    RankProcesses processes("gloo", 3);
    processes.wait_for("at work");
    processes.send_signal(dead, SIGKILL);
    for (const int rank : {0, 1, 2}) {
      EXPECT_EQ(processes.code(rank), rank == dead ? 128 + SIGKILL : 1) << processes.output(rank);
      if (rank == dead) continue;
      EXPECT_THAT(processes.output(rank),
                  AllOf(HasSubstr(fmt::format("rank {} of 3 failed: its process has ended", dead)),
                        HasSubstr("all: "), HasSubstr("last 'gather layers.3'"),
                        HasSubstr("name: [ranks] there is already a group 'two'")));
    }
  }
}

// A rank's own failure and the death behind it are found at the same moment.
TEST(ProcessRanks, ADeathSeenTogetherWithAReportIsTheCause) {
  for (int round = 0; round < 3; ++round) {
    RankProcesses processes("continued", 3);
    processes.wait_for("at work");
    processes.stop(0);
    processes.send_signal(2, SIGKILL);
    EXPECT_EQ(processes.code(2), 128 + SIGKILL);
    processes.send_signal(0, SIGCONT);
    for (const int rank : {0, 1}) {
      EXPECT_EQ(processes.code(rank), 1) << processes.output(rank);
      EXPECT_THAT(processes.output(rank), HasSubstr("rank 2 of 3 failed: its process has ended")) << rank;
    }
  }
}

// Rank 0 has told who died, and has ended, when another rank finds its own failure.
TEST(ProcessRanks, TheFirstRankIsBelievedMoreThanTheOwnFailure) {
  for (int round = 0; round < 3; ++round) {
    RankProcesses processes("continued", 3);
    processes.wait_for("at work");
    processes.stop(1);
    processes.send_signal(2, SIGKILL);
    EXPECT_EQ(processes.code(0), 1) << processes.output(0);
    processes.send_signal(1, SIGCONT);
    EXPECT_EQ(processes.code(1), 1) << processes.output(1);
    EXPECT_THAT(processes.output(1), HasSubstr("rank 2 of 3 failed: its process has ended"));
  }
}

TEST(ProcessRanks, AReportedFailureEndsAll) {
  RankProcesses processes("report", 3);
  for (const int rank : {0, 1, 2}) {
    EXPECT_EQ(processes.code(rank), 75) << processes.output(rank);
    EXPECT_THAT(processes.output(rank), HasSubstr("rank 1 of 3 failed: the loss has feathers"));
  }
}

TEST(ProcessRanks, AnExceptionEndsTheOthers) {
  RankProcesses processes("throw", 3);
  for (const int rank : {0, 2}) {
    EXPECT_EQ(processes.code(rank), 1) << processes.output(rank);
    EXPECT_THAT(processes.output(rank), HasSubstr("rank 1 of 3 failed: it ended with an error"));
  }
  EXPECT_EQ(processes.code(1), 1);
  EXPECT_THAT(processes.output(1), AllOf(HasSubstr("nobody foresaw"), Not(HasSubstr("rank 1 of 3 failed"))));
}

}  // namespace
}  // namespace octet::test
