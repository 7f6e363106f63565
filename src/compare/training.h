#pragma once

#include <string>
#include <vector>

#include "compare/checklist.h"
#include "compare/variants.h"

namespace octet {

struct TrainingOptions {
  int64_t processes = 1;  // ranks of each run
  int64_t steps = 100;
  bool shows_progress = false;  // on a line of the terminal that is overwritten
};

// The same command finds what is done and continues: the run was stopped by a signal, or by a failure that a restart may
// mend.
struct Stopped {
  int exit_code = 0;
};

// Trains the runs that are not there yet, one after another, each in a process of its own, with its output in
// <folder>/compare.log. A run that is there with the same settings is used as it is, and continued if it is not
// finished. ConfigError if its folder holds a run of other settings. Throws Stopped after a signal, and Error with the
// last lines of the output where training fails.
void train_variants(const std::vector<PlannedRun>& runs, const TrainingOptions& options);

// A text of the run's latest checkpoint, by 'octet generate'.
SampleCheck try_sample(const PlannedRun& run);

// Continues from a checkpoint in the middle of the run, in another folder, for a few steps, and compares their losses
// with those of the run itself.
ResumeCheck try_resume(const PlannedRun& run, const TrainingOptions& options);

}  // namespace octet
