#include "base/signals.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <iterator>

#include "base/error.h"

namespace octet {
namespace {

// Launchers may deliver one request twice in a row: timeout(1) signals its child and then the whole process
// group. A signal this soon after another is the same request.
constexpr int64_t kSameRequestNs = 50'000'000;

std::atomic<int> stop_number = 0;
std::atomic<int64_t> stop_time_ns = 0;
std::atomic<bool> installed = false;
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free,
              "a signal handler may use lock-free atomics only");

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGUSR1};
struct sigaction previous[std::size(kSignals)];

int64_t now_ns() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);  // async-signal-safe
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// The time is stored first, so that whoever sees the number also sees the time.
void on_stop_signal(int number) {
  const int saved_errno = errno;
  const int64_t now = now_ns();
  int64_t first = 0;
  if (stop_time_ns.compare_exchange_strong(first, now)) {
    stop_number.store(number);
    constexpr char kStopping[] = "\nstopping as soon as the present work is done; a second signal ends the program at once\n";
    if (write(STDERR_FILENO, kStopping, sizeof kStopping - 1) < 0) errno = saved_errno;
  } else if (now - first > kSameRequestNs) {
    // Ends the progress bar's line; nothing can be done about a failure here.
    if (write(STDERR_FILENO, "\n", 1) < 0) errno = saved_errno;
    _exit(128 + number);
  }
  errno = saved_errno;
}

}  // namespace

StopSignal::StopSignal() {
  require(!installed.exchange(true), "[signals] there is already a StopSignal, expected one at a time");
  stop_number = 0;
  stop_time_ns = 0;
  struct sigaction action {};
  action.sa_handler = on_stop_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;  // pending reads and writes continue
  // Also if they were ignored, as in a shell script's background job: a scheduler's SIGINT must work there.
  for (size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &action, &previous[i]);
}

StopSignal::~StopSignal() {
  for (size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &previous[i], nullptr);
  installed = false;
}

int StopSignal::number() const noexcept {
  return stop_number.load();
}

}  // namespace octet
