#pragma once

#include <string>

#include "base/clock.h"

namespace octet {

// Seconds between the command and the first step of a run, by what they were spent on.
struct StartTimes {
  double device = 0;
  double model = 0;  // its configuration and the headers of its files
  double data = 0;   // tokenizer and datasets
  double plan = 0;
  double weights = 0;     // memory for them, reading, converting
  double evaluation = 0;  // before the first step
};

// "12.3 s: data 0.4, weights 9.8, other 2.1". What takes less than 0.05 s is not named.
std::string start_times_text(const StartTimes& times, double seconds);

// Since this process was started.
double process_seconds();

// Adds the time from its construction to its end.
class PhaseTimer {
 public:
  explicit PhaseTimer(double& seconds) : seconds_(seconds) {}
  ~PhaseTimer() { seconds_ += seconds_since(start_); }
  PhaseTimer(const PhaseTimer&) = delete;
  PhaseTimer& operator=(const PhaseTimer&) = delete;

 private:
  double& seconds_;
  const Clock::time_point start_ = Clock::now();
};

// The result of `work`; its time is added to `seconds`.
template <class Work>
auto timed(double& seconds, Work&& work) {
  const PhaseTimer timer(seconds);
  return work();
}

}  // namespace octet
