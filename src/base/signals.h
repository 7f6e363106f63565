#pragma once

#include <signal.h>
#include <sys/resource.h>

#include <optional>
#include <vector>

namespace octet {

// The signals that ask a run to stop: SIGINT, SIGTERM, SIGUSR1 (a scheduler's early warning), SIGXCPU (a limit of CPU
// time), and SIGHUP (the terminal is gone) unless it is ignored, as under nohup.
std::vector<int> stop_signals();

// While it lives, `handler` takes the stop signals. Then the previous handlers are back.
class StopHandler {
 public:
  explicit StopHandler(void (*handler)(int));
  ~StopHandler();
  StopHandler(const StopHandler&) = delete;
  StopHandler& operator=(const StopHandler&) = delete;

 private:
  struct Previous {
    int number;
    struct sigaction action;
  };
  std::vector<Previous> previous_;
};

// While it lives, the stop signals ask the run to stop at the next step's end instead of ending the program. A second
// signal ends it at once with status 128 + its number. SIGHUP and SIGXCPU do not, because the system repeats them, and do
// not count as the first one of a person. Only one object at a time.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  bool requested() const noexcept { return number() != 0; }
  int number() const noexcept;  // 0 when none has come

 private:
  std::optional<StopHandler> handler_;
  std::optional<rlimit> cpu_limit_;  // of before
};

// From now on, output to a pipe that nobody reads is lost and does not end this process. Processes that it starts are
// not affected.
void survive_broken_pipes();

}  // namespace octet
