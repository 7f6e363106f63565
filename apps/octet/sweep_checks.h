#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "command_line.h"
#include "config/config.h"
#include "import/import.h"
#include "sweep/sweep_spec.h"

// Checks of a sweep before it starts: by 'octet sweep', and by 'octet submit' before its job waits in a queue.

namespace octet {

// The settings of the flags in the sweep file's command, without those that are given here again.
std::vector<KeySetting> base_settings(const SweepSpec& spec, const RunArguments& run);

// Checks the first run, so that a sweep does not begin with failures that were known before.
TrainConfig check_first_run(const SweepSpec& spec, const FileSettings& file,
                            const std::vector<KeySetting>& settings, uint64_t seed);

// How many runs there are in all. `given` by a flag; 0: not.
int64_t count_runs(const SweepSpec& spec, int64_t given);

// Those of the first `runs` whose values are known now; bayes chooses others later.
std::vector<TrainConfig> known_runs(const SweepSpec& spec, const FileSettings& file,
                                    const std::vector<KeySetting>& settings, uint64_t seed, int64_t runs);

// Runs that differ only in a parameter without effect are equal, and the best of them is none. An error if `configs` are
// the whole grid; a warning otherwise, because the parameter may have an effect in the others.
void judge_idle_parameters(const SweepSpec& spec, std::span<const TrainConfig> configs, bool on_gpu);

}  // namespace octet
