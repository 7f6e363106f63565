#pragma once

#include <optional>
#include <span>
#include <string>

#include "checkpoint/run_folders.h"
#include "config/config.h"
#include "dist/host_channel.h"
#include "io/checkpoint_store.h"

namespace octet {

inline RunFolders folders_of(const TrainConfig& config) {
  return {config.output_dir, config.run_name, config.checkpoint_dir};
}
inline std::string run_folder(const TrainConfig& config) {
  return folders_of(config).run();
}

// As load_train_config. With `resume` and without a file, the configuration is the one that the resumed run or checkpoint
// has stored, and flags override it. `resume` may be written as resume_path() takes it. Unless run_name is set, the run
// continues in its own folder; a checkpoint of which no run is known begins a new one. With a file, `latest` needs
// run_name, so that no other run is continued by mistake. ConfigError if nobody says what data the run had.
TrainConfig load_resumable_config(const FileSettings& given, std::span<const KeySetting> flags);

// A configuration that octet wrote. Nothing if it cannot be read, for example because a newer octet wrote it.
std::optional<TrainConfig> stored_config(const std::string& path);

// The checkpoint that `resume` names. latest: the newest whole one of this run, whatever its precision; if the run has
// never saved one, it starts from the beginning, and ConfigError if it has. A path: a checkpoint, or a folder of
// checkpoints or of a run, whose latest is taken; Error when there is none or it is not whole. Checksums are verified. With
// `host`, all ranks call this, and each verifies some of the files.
std::optional<Checkpoint> find_checkpoint(Env& env, const TrainConfig& config, HostChannel* host = nullptr);

// The settings that a checkpoint was saved with; none if they cannot be read.
std::optional<TrainConfig> settings_of(const Checkpoint& checkpoint);

// Settings of the run that differ from those of the checkpoint and change the result, one per entry:
// "learning_rate 0.0006 -> 0.0003".
std::vector<std::string> changed_settings(const Checkpoint& checkpoint, const TrainConfig& config);

}  // namespace octet
