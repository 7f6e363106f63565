#pragma once

#include "step/rank_sync.h"
#include "train/step.h"
#include "report/step_record.h"

namespace octet {

// A step that has just ended, and what is written of it.
struct StepReport {
  int64_t step = 0;  // counted from 0
  StepResult result;
  double seconds = 0;
  bool has_fp8_stats = false;
  StepRecord record = {};
};

// What happens around the steps of a run. Each is called in the order of the run's list, on every rank.
class RunObserver {
 public:
  virtual ~RunObserver() = default;
  virtual void before_run() {}
  // `note` is what this rank tells the others with the step.
  virtual void before_step(int64_t /*step*/, StepNote& /*note*/) {}
  virtual void after_step(StepReport&) {}           // adds to the record
  virtual void after_record(const StepReport&) {}   // the record is complete
  virtual void at_end() {}                          // what the run leaves is written
  virtual void after_end() {}                       // what it can be shown for
};

}  // namespace octet
