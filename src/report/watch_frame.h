#pragma once

#include <string>
#include <vector>

#include "report/run_follow.h"

namespace octet {

// Where a run stands, as far as its files tell.
struct RunState {
  enum class Kind {
    Waiting,   // no step yet
    Running,   // records come
    Silent,    // none has come for long, and whether a process is alive is not known or it is alive
    Stopped,   // no process holds the run, and it is not at its end
    Finished,  // its last step is done
  };
  Kind kind = Kind::Waiting;
  double silent_seconds = 0;  // since the last record
  int64_t max_steps = 0;      // 0: not known
  std::optional<double> remaining_seconds;
};
RunState state_of(const RunFollower& run, double now);
std::string state_text(const RunState& state);  // "running", "silent for 12m 03s"

struct FrameOptions {
  int columns = 80;
  int rows = 0;  // at most; 0: as many as needed
  bool colour = false;
  double now = 0;  // seconds since 1970
};

// One run: its state, loss chart, figures and red flags. Every line ends in a newline and fits the columns.
std::string watch_frame(const RunFollower& run, const FrameOptions& options);
// Several runs: a row each.
std::string watch_overview(const std::vector<const RunFollower*>& runs, const FrameOptions& options);

}  // namespace octet
