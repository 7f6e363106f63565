#pragma once

namespace octet {

// While it lives, SIGINT, SIGTERM and SIGUSR1 (a scheduler's early warning) ask the run to stop at the next step's end
// instead of ending the program. A second signal ends it at once with status 128 + its number. The destructor
// restores the previous handlers. Only one object at a time.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  bool requested() const noexcept { return number() != 0; }
  int number() const noexcept;  // 0 when none has come
};

}  // namespace octet
