#pragma once

#include "config/config.h"
#include "io/env.h"

namespace octet {

// Runs the main job from its keys to its summary; returns the exit code. With dry_run it makes all the checks that a run
// makes before it trains, prints the resolved configuration, the plan and the schedule, and writes nothing. Checkpoints go
// through `env`.
int train(TrainConfig keys, Env& env = posix_env());

}  // namespace octet
