#pragma once

#include "plan/run_spec.h"
#include "report/console.h"
#include "train/cost_meter.h"
#include "train/fp8_stats.h"
#include "train/guards.h"
#include "train/red_flags.h"
#include "train/run_files.h"
#include "train/step.h"
#include "train/summary.h"

namespace octet {

// The record of each step: what it says, and where it is written (console, metrics.jsonl, TensorBoard). Watches the
// losses for spikes, the FP8 tensors for saturation, and the run for red flags.
class StepLog {
 public:
  // `costs` may be empty until the first step.
  StepLog(const RunSpec& run, RunFiles& files, Console& console, CostMeter& costs);

  // Of step number `step`, counted from 0, which `outcome` includes already.
  StepRecord make_record(const StepResult& result, int64_t step, double seconds, double epoch,
                         const Outcome& outcome);
  void add_fp8_stats(StepRecord& record, Transformer& model);
  // With `logged` also to the console. Otherwise only to the files, and only if it has FP8 statistics,
  // a checkpoint or a red flag.
  void write(StepRecord record, bool logged);
  // The last record as logged, unless it was: a run that stops between two logged steps shows where.
  void write_last();

  RedFlags& red_flags() { return red_flags_; }
  const RedFlags& red_flags() const { return red_flags_; }
  SpikeDetector& spikes() { return spikes_; }
  const SpikeDetector& spikes() const { return spikes_; }

 private:
  void file(StepRecord& record);
  void add_flags(StepRecord& record, const std::vector<RedFlag>& flags, bool say = true);

  const RunSpec& run_;
  RunFiles& files_;
  Console& console_;
  CostMeter& costs_;
  RedFlags red_flags_;
  SpikeDetector spikes_;
  NormSpikeDetector norm_spikes_;
  SaturationWatch saturation_;
  std::optional<StepRecord> last_;  // if it was written nowhere
};

}  // namespace octet
