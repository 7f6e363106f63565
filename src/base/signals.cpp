#include "base/signals.h"

#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>

#include "base/error.h"

namespace octet {
namespace {

// Launchers may deliver one request twice in a row: timeout(1) signals its child and then the whole process
// group. A signal this soon after another is the same request.
constexpr int64_t kSameRequestNs = 50'000'000;

std::atomic<int> stop_number = 0;
std::atomic<int64_t> stop_time_ns = 0;   // of the first signal
std::atomic<int64_t> asked_time_ns = 0;  // of the first one that is not of the system
std::atomic<bool> installed = false;
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free,
              "a signal handler may use lock-free atomics only");

int64_t now_ns() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);  // async-signal-safe
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// The system repeats these.
constexpr bool is_of_system(int number) {
  return number == SIGHUP || number == SIGXCPU;
}

void say_stopping() {
  constexpr char kStopping[] =
      "\nstopping as soon as the present work is done; a second signal ends the program at once\n";
  if (write(STDERR_FILENO, kStopping, sizeof kStopping - 1) < 0) return;  // nothing can be done about it here
}

// The time is stored first, so that whoever sees the number also sees the time.
void on_stop_signal(int number) {
  const int saved_errno = errno;
  const int64_t now = now_ns();
  int64_t first = 0, first_asked = 0;
  if (stop_time_ns.compare_exchange_strong(first, now)) {
    stop_number.store(number);
    if (!is_of_system(number)) asked_time_ns.store(now);
    say_stopping();
  } else if (is_of_system(number)) {
    // is the same request
  } else if (asked_time_ns.compare_exchange_strong(first_asked, now)) {
    say_stopping();
  } else if (now - first_asked > kSameRequestNs) {
    // Ends the progress bar's line; nothing can be done about a failure here.
    if (write(STDERR_FILENO, "\n", 1) < 0) errno = saved_errno;
    _exit(128 + number);
  }
  errno = saved_errno;
}

}  // namespace

std::vector<int> stop_signals() {
  // Those are taken also if they are ignored, as in a shell script's background job: a scheduler's SIGINT must work there.
  std::vector<int> numbers = {SIGINT, SIGTERM, SIGUSR1, SIGXCPU};
  struct sigaction hangup {};
  if (sigaction(SIGHUP, nullptr, &hangup) != 0 || hangup.sa_handler != SIG_IGN) numbers.push_back(SIGHUP);
  return numbers;
}

StopHandler::StopHandler(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;  // pending reads and writes continue
  for (const int number : stop_signals()) {
    Previous& before = previous_.emplace_back(Previous{number, {}});
    sigaction(number, &action, &before.action);
  }
}

StopHandler::~StopHandler() {
  for (const Previous& before : previous_) sigaction(before.number, &before.action, nullptr);
}

void survive_broken_pipes() {
  struct sigaction action {};
  if (sigaction(SIGPIPE, nullptr, &action) != 0 || action.sa_handler != SIG_DFL) return;
  // A handler and not SIG_IGN, which processes that are started would inherit.
  action = {};
  action.sa_handler = [](int) {};
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGPIPE, &action, nullptr);
}

namespace {

// "ulimit -t" sets both limits of CPU time, and at the hard one the process is killed. Its own soft limit, whose signal asks
// a run to stop, comes a little earlier.
// Returns the limits of before, if they were changed.
std::optional<rlimit> hear_of_cpu_limit_in_time() {
  rlimit limit{};
  if (getrlimit(RLIMIT_CPU, &limit) != 0 || limit.rlim_max == RLIM_INFINITY) return std::nullopt;
  const rlim_t margin = std::clamp<rlim_t>(limit.rlim_max / 10, 1, 60);
  if (limit.rlim_max <= margin || limit.rlim_cur <= limit.rlim_max - margin) return std::nullopt;
  const rlimit before = limit;
  limit.rlim_cur = limit.rlim_max - margin;
  return setrlimit(RLIMIT_CPU, &limit) == 0 ? std::optional(before) : std::nullopt;
}

}  // namespace

StopSignal::StopSignal() {
  require(!installed.exchange(true), "[signals] there is already a StopSignal, expected one at a time");
  stop_number = 0;
  stop_time_ns = 0;
  asked_time_ns = 0;
  handler_.emplace(on_stop_signal);
  cpu_limit_ = hear_of_cpu_limit_in_time();
}

StopSignal::~StopSignal() {
  if (cpu_limit_) setrlimit(RLIMIT_CPU, &*cpu_limit_);
  handler_.reset();
  installed = false;
}

int StopSignal::number() const noexcept {
  return stop_number.load();
}

}  // namespace octet
