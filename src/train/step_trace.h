#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/trace.h"
#include "config/step_range.h"
#include "ops/device.h"

namespace octet {

// The steps of the key profile_steps. Empty, with a warning, if all of them are among the `steps_done`.
std::optional<StepRange> steps_to_trace(const std::string& profile_steps, int64_t steps_done);

// Traces some steps of a run: what this process does, and every op on its device. Without steps it does nothing.
class StepTrace {
 public:
  // `path` is the file that is written after the last of the steps. `rank` names the process in it.
  StepTrace(std::optional<StepRange> steps, Device& device, int rank, std::string path);
  ~StepTrace();  // without writing: the run has failed
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  // Around everything that belongs to step number `step`, counted from 1.
  void begin_step(int64_t step);
  void end_step(int64_t step);
  // The run ends here: a trace that has begun is written.
  void finish();

 private:
  void write();

  const std::optional<StepRange> steps_;
  Device& device_;
  const int rank_;
  const std::string path_;
  std::shared_ptr<Trace> trace_;  // while it is recorded
  size_t step_span_ = 0;
};

}  // namespace octet
