#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "config/config.h"
#include "io/checkpoint_store.h"

// The configuration of a run that continues, and what has changed in it.

namespace octet {

// As load_train_config. With `resume` and without a file, the configuration is the one that the resumed run or checkpoint
// has stored, and flags override it. `resume` may be written as resume_path() takes it. Unless run_name is set, the run
// continues in its own folder; a checkpoint of which no run is known begins a new one. With a file, `latest` needs
// run_name, so that no other run is continued by mistake. ConfigError if nobody says what data the run had.
TrainConfig load_resumable_config(const FileSettings& given, std::span<const KeySetting> flags);

// The settings that a checkpoint was saved with; none if they cannot be read.
std::optional<TrainConfig> settings_of(const Checkpoint& checkpoint);

// Settings of the run that differ from those of the checkpoint and change the result, one per entry:
// "learning_rate 0.0006 -> 0.0003".
std::vector<std::string> changed_settings(const Checkpoint& checkpoint, const TrainConfig& config);

}  // namespace octet
