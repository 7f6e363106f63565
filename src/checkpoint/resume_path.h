#pragma once

#include <functional>
#include <optional>
#include <string>

#include "io/checkpoint_store.h"

namespace octet {

// The newest checkpoint of several folders, of which a run has two if it changed its precision; the best: the one with
// the lowest evaluation loss among those that are marked. Nothing if there is none. The checkpoint may be damaged.
struct ChosenCheckpoint {
  Checkpoint checkpoint;
  std::string folder;
};
std::optional<ChosenCheckpoint> newest_checkpoint(Env& env, const std::vector<std::string>& folders);
std::optional<ChosenCheckpoint> best_checkpoint(Env& env, const std::vector<std::string>& folders);

// The run that saved the checkpoint, or the folder of checkpoints, at `path`: a folder above it, or the run that the
// checkpoint names if that one's own files say that it keeps its checkpoints here (checkpoint_dir). Empty if that is not
// known, as of a copy.
std::string run_of_checkpoint(Env& env, const std::string& path);

// Whether two paths lead to the same folder, whether or not it exists.
bool is_same_folder(const std::string& a, const std::string& b);

// The folder that a value of `resume` means: of a checkpoint, of checkpoints or of a run. "latest" stays as it is.
//
//   best                     the best checkpoint of the run
//   X/latest, X/best         octet's own files in a folder of checkpoints
//   X/latest.pt, X/best.pt   likewise, as other trainers call them, if no such file is there and X holds checkpoints
//
// A path is looked for in the current folder, then in the run. `run` names the run; empty: there is none. ConfigError if
// nothing is there, or a file of another program.
std::string resume_path(Env& env, const std::string& typed, const std::function<std::string()>& run);

}  // namespace octet
