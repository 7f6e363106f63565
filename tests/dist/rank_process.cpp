// One rank of process_ranks_test.cpp: does what OCTET_TEST_MODE says.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "dist/collective_support.h"
#include "dist/engines.h"
#include "dist/process_ranks.h"
#include "dist/rendezvous_messages.h"
#include "support/error_of.h"

namespace octet::test {
namespace {

using namespace std::chrono_literals;

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

void run() {
  ProcessRanksOptions options{
      .config = "c", .version = "v", .rendezvous = 60s, .heartbeat = 100ms, .finish = 60s};
  if (const char* silence = std::getenv("OCTET_TEST_SILENCE_MS"))
    options.silence = std::chrono::milliseconds(std::atoi(silence));
  if (const char* stall = std::getenv("OCTET_TEST_STALL_MS"))
    options.stall = std::chrono::milliseconds(std::atoi(stall));
  const std::unique_ptr<Ranks> ranks =
      make_process_ranks(read_launch_environment(process_environment()), options);
  run_mode(std::getenv("OCTET_TEST_MODE"), *ranks);
}

}  // namespace
}  // namespace octet::test

int main() {
  try {
    octet::test::run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
