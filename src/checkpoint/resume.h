#pragma once

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/run_folders.h"
#include "config/common_keys.h"
#include "config/trained_run.h"
#include "dist/host_channel.h"
#include "io/checkpoint_store.h"

namespace octet {

inline RunFolders folders_of(const CommonKeys& keys) {
  return {keys.output_dir, keys.run_name, keys.checkpoint_dir};
}
inline std::string run_folder(const CommonKeys& keys) {
  return folders_of(keys).run();
}

inline constexpr const char* kLatest = "latest";  // of the key resume

// The run whose configuration octet wrote to this file. Nothing if it cannot be read, for example because a newer octet
// wrote it.
std::optional<TrainedRun> known_run(const std::string& configuration);

// Where `latest` looks: in the run's folders, in the checkpoint_dir that it had, and in the one that is set now.
std::vector<std::string> latest_folders(Env& env, const CommonKeys& keys);

// The checkpoint that `resume` names. latest: the newest whole one of this run, whatever its precision; if the run has
// never saved one, it starts from the beginning, and ConfigError if it has. A path: a checkpoint, or a folder of
// checkpoints or of a run, whose latest is taken; Error when there is none or it is not whole. Checksums are verified. With
// `host`, all ranks call this, and each verifies some of the files.
std::optional<Checkpoint> find_checkpoint(Env& env, const CommonKeys& keys, HostChannel* host = nullptr);

}  // namespace octet
