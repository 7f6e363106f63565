#pragma once

#include <span>
#include <string>
#include <vector>

#include "config/config.h"

// What a user should know of the settings of one or several runs before they start.

namespace octet {

// Settings that have no effect because of other settings. For several runs that are compared: settings that have no effect
// in any of the runs that have them.
struct IdleSetting {
  std::string key, text;  // "decay_ratio has no effect: lr_scheduler_type is not wsd"
};
std::vector<IdleSetting> find_idle_settings(std::span<const TrainConfig> runs, bool on_gpu);
std::vector<std::string> idle_settings(std::span<const TrainConfig> runs, bool on_gpu);  // their texts
void warn_of_idle_settings(std::span<const TrainConfig> runs, bool on_gpu);

// What a run takes for granted because its keys leave it open, one message each: the model of a dataset, the type of a
// penalty. And names of the run that promise another precision than it has, as warnings.
struct Assumptions {
  std::vector<std::string> notes, warnings;
};
Assumptions assumptions_of(const TrainConfig& config);
// Says them, each once for all of these runs. Names are judged only if there is a single run.
void tell_assumptions(std::span<const TrainConfig> runs);

// Warns once of each setting of these runs that costs accuracy, or may do so because nobody has measured it, and says what to
// set instead. Figures are in bench/RESULTS.md.
void warn_of_costly_settings(std::span<const TrainConfig> runs);

// All of these.
void tell_of_settings(std::span<const TrainConfig> runs, bool on_gpu);

}  // namespace octet
