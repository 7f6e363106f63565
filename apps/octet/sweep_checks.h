#pragma once

#include <cstdint>
#include <vector>

#include "command_line.h"
#include "config/config.h"
#include "import/import.h"
#include "sweep/sweep_spec.h"

// Checks of a sweep before it starts: by 'octet sweep', and by 'octet submit' before its job waits in a queue.

namespace octet {

// The settings of the flags in the sweep file's command, without those that are given here again.
std::vector<KeySetting> base_settings(const SweepSpec& spec, const RunArguments& run);

// Checks the first run, so that a sweep does not begin with failures that were known before. Returns what it trains on.
DataKeys check_first_run(const SweepSpec& spec, const FileSettings& file,
                         const std::vector<KeySetting>& settings, uint64_t seed);

// How many runs there are in all. `given` by a flag; 0: not.
int64_t count_runs(const SweepSpec& spec, int64_t given);

// Those of the first `runs` whose values are known now; bayes chooses others later.
class KnownRuns {
 public:
  KnownRuns(const SweepSpec& spec, const FileSettings& file, const std::vector<KeySetting>& settings,
            uint64_t seed, int64_t runs);

  // Runs that differ only in a parameter without effect are equal, and the best of them is none. An error if all runs of the
  // grid are known; a warning otherwise, because the parameter may have an effect in the others.
  void judge_idle_parameters(bool on_gpu) const;
  // What else a user should know of their settings.
  void tell_of_settings() const;

 private:
  const SweepSpec& spec_;
  std::vector<TrainConfig> configs_;
};

}  // namespace octet
