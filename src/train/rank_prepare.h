#pragma once

#include <optional>

#include "dist/ranks.h"
#include "io/checkpoint_store.h"
#include "plan/run_stages.h"

namespace octet {

// The stages of a run before its first step. The first rank goes first and prepares the data, which may take long. The
// others wait, and then find everything in its caches.
RunStages prepare_as_rank(const TrainConfig& keys, Env& env, Ranks& ranks, std::optional<RunLock>& lock);

// After all that the first rank has to prepare: lets the others begin, and checks that all ranks have planned the same
// run and that its files will fit.
void check_prepared(const RunStages& stages, Env& env, Ranks& ranks);

}  // namespace octet
