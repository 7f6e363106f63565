// Several processes of this very program: host messages between them, and what they do when one of them dies, stops or
// hangs. Each test starts the processes with a mode in OCTET_TEST_MODE; RankProcess.Run is what they run.

#include "dist/process_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "base/clock.h"
#include "dist/collective_support.h"
#include "dist/engines.h"
#include "dist/rendezvous_messages.h"
#include "support/error_of.h"
#include "support/process.h"

namespace octet::test {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

// ---- what the processes do

std::string joined(const std::vector<std::string>& texts) {
  return fmt::format("{}", fmt::join(texts, "|"));
}

void say(const std::string& text) {
  fmt::print("{}\n", text);
  std::fflush(stdout);
}

[[noreturn]] void wait_for_the_end() {
  while (true) std::this_thread::sleep_for(1h);
}

void gather_mode(Ranks& ranks) {
  HostChannel& host = ranks.host();
  const int rank = host.rank(), size = host.size();
  say("all: " + joined(host.all_gather("names", fmt::format("r{}", rank))));
  say("first: " + host.from_first("first", fmt::format("from {}", rank)));
  // A part of the ranks, in another order; rank 0 is no member.
  const std::vector<int> members = {size - 1, 1};
  if (std::ranges::count(members, rank) > 0)
    say("part: " + joined(host.all_gather("part", std::to_string(rank), 20s, members)));
  // Two threads, many calls with the same tag after each other.
  const auto many = [&](const std::string& tag) {
    for (int i = 0; i < 200; ++i) {
      const std::vector<std::string> texts = host.all_gather(tag, fmt::format("{} {} {}", tag, i, rank));
      for (int other = 0; other < size; ++other) {
        require(texts.at(static_cast<size_t>(other)) == fmt::format("{} {} {}", tag, i, other),
                "wrong text '{}'", texts[static_cast<size_t>(other)]);
      }
    }
  };
  std::thread thread([&] { many("one"); });
  many("two");
  thread.join();
  const std::vector<std::string> large = host.all_gather("large", std::string(4'000'000, char('a' + rank)));
  for (int other = 0; other < size; ++other)
    require(large[static_cast<size_t>(other)] == std::string(4'000'000, char('a' + other)), "large text");
  say("done");
}

void missing_mode(Ranks& ranks) {
  if (ranks.place().rank == 2) {
    ranks.host().barrier("end");
    return;
  }
  say(error_of([&] { ranks.host().all_gather("alone", "x", 500ms, {}); }));
  ranks.host().barrier("end");
}

void leaving_mode(Ranks& ranks) {
  if (ranks.place().rank == 2) return;  // says goodbye at once
  say(error_of([&] { ranks.host().barrier("alone"); }));
}

void misuse_mode(Ranks& ranks) {
  const int rank = ranks.place().rank;
  const std::vector<int> others = {rank == 0 ? 1 : 0};
  say(error_of([&] { ranks.host().all_gather("x", "", 1s, others); }));
  const std::vector<int> wrong = {rank, 7};
  say(error_of([&] { ranks.host().all_gather("x", "", 1s, wrong); }));
  say(error_of([&] { ranks.host().all_gather("x", std::string(70 << 20, 'x'), 1s, {}); }));
  ranks.host().barrier("end");
}

// At work: one collective has finished, one is under way. Rank 2 may be one behind.
void work(Ranks& ranks, bool one_behind) {
  Progress& progress = ranks.progress();
  progress.begin_step(12);
  progress.queued(0, "gather layers.2");
  progress.finished(0);
  if (!one_behind) progress.queued(0, "gather layers.3");
  ranks.host().barrier("at work");
  say("at work");
}

// Collectives until one fails, as in training: that failure is reported.
void gloo_mode(Ranks& ranks) {
  const auto device = make_cpu_device(1);
  const std::vector<int> all = {0, 1, 2}, pair = {1, 2};
  const auto group = ranks.make_communicator(*device, "all", all);
  const auto two = ranks.make_communicator(*device, "two", pair);
  require((two == nullptr) == (ranks.place().rank == 0), "only members have a group");
  require(ranks.description() == "3 ranks, Gloo, started by octet launch", "{}", ranks.description());
  say("name: " + error_of([&] { ranks.make_communicator(*device, "two", pair); }));
  if (two) require(check_exchange(*two, *device, 0, "exchange").empty(), "wrong bytes");
  require(check_all_gather(*group, *device, "gather").empty(), "wrong bytes");
  try {
    for (int64_t step = 0;; ++step) {
      ranks.progress().begin_step(step);
      check_all_gather(*group, *device, "gather layers.3");
      if (step == 0) say("at work");
    }
  } catch (const Error& error) {
    ranks.report_failure(error.what());
  }
}

// Reports a failure at the moment in which a stopped process continues: SIGCONT interrupts this thread. The service's
// thread then finds this report together with all that has come in the meantime.
void continued_mode(Ranks& ranks) {
  static volatile sig_atomic_t is_continued = 0;
  struct sigaction action {};
  action.sa_handler = [](int) { is_continued = 1; };
  sigaction(SIGCONT, &action, nullptr);
  sigset_t blocked, before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGCONT);
  sigprocmask(SIG_BLOCK, &blocked, &before);
  work(ranks, false);
  while (is_continued == 0) sigsuspend(&before);
  ranks.report_failure("a collective broke");
}

void run_mode(const std::string& mode, Ranks& ranks) {
  const int rank = ranks.place().rank;
  if (mode == "gather") return gather_mode(ranks);
  if (mode == "missing") return missing_mode(ranks);
  if (mode == "leaving") return leaving_mode(ranks);
  if (mode == "misuse") return misuse_mode(ranks);
  if (mode == "work" || mode == "saved") {
    if (mode == "saved") ranks.set_failure_code(75);
    work(ranks, false);
    wait_for_the_end();
  }
  if (mode == "hang") {
    work(ranks, rank == 2);
    wait_for_the_end();
  }
  if (mode == "phase") {  // longer than the stall limit, but allowed
    ranks.progress().begin_phase(rank == 2 ? "saving" : "");
    work(ranks, rank == 2);
    std::this_thread::sleep_for(3s);
    if (rank != 2) ranks.progress().finished(0);
    ranks.progress().begin_phase("");
    ranks.host().barrier("after the phase");
    say("done");
    return;
  }
  if (mode == "gloo") return gloo_mode(ranks);
  if (mode == "continued") return continued_mode(ranks);
  if (mode == "report") {
    ranks.set_failure_code(75);
    work(ranks, false);
    if (rank == 1) ranks.report_failure("the loss has feathers");
    wait_for_the_end();
  }
  if (mode == "throw") {
    work(ranks, false);
    if (rank == 1) throw Error("an error that nobody foresaw");
    wait_for_the_end();
  }
  throw Error("unknown mode " + mode);
}

TEST(RankProcess, Run) {
  const char* mode = std::getenv("OCTET_TEST_MODE");
  if (mode == nullptr) GTEST_SKIP() << "runs only as a part of other tests";
  ProcessRanksOptions options{
      .config = "c", .version = "v", .rendezvous = 60s, .heartbeat = 100ms, .finish = 60s};
  if (const char* silence = std::getenv("OCTET_TEST_SILENCE_MS"))
    options.silence = std::chrono::milliseconds(std::atoi(silence));
  if (const char* stall = std::getenv("OCTET_TEST_STALL_MS"))
    options.stall = std::chrono::milliseconds(std::atoi(stall));
  const std::unique_ptr<Ranks> ranks =
      make_process_ranks(read_launch_environment(process_environment()), options);
  run_mode(mode, *ranks);
}

// ---- the tests

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
      words.insert(words.end(), {"/proc/self/exe", "--gtest_filter=RankProcess.Run"});
      // env(1) would be /proc/self/exe itself there, so the path is resolved here.
      words[words.size() - 2] = std::filesystem::read_symlink("/proc/self/exe").string();
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
