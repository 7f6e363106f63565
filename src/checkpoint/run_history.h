#pragma once

#include <optional>
#include <string>

#include "io/env.h"

namespace octet {

// Notes in the folder of a run that it has saved a checkpoint, wherever that is: the file last_checkpoint. A failure is a
// warning.
void note_last_checkpoint(Env& env, const std::string& run_folder, const std::string& checkpoint);

// The last checkpoint that a run has noted, whether or not it is still there. Empty: it has saved some, but does not say
// where, as runs of older versions. Nothing: it has never saved one.
std::optional<std::string> last_checkpoint_of(Env& env, const std::string& run_folder);

}  // namespace octet
