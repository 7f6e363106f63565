#pragma once

#include "io/env.h"
#include "plan/setup.h"

namespace octet {

// Runs the main job from a resolved configuration to its summary; returns the exit code. With dry_run it prints the
// configuration, the plan and the schedule, and trains nothing. Checkpoints go through `env`.
int train(TrainConfig config, Env& env = posix_env());

}  // namespace octet
