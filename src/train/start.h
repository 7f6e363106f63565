#pragma once

#include <optional>

#include "checkpoint/checkpoint.h"
#include "plan/run_stages.h"
#include "report/console.h"

namespace octet {

// Allocates `model` and fills in its weights: those of the checkpoint that the run continues from, those that
// model_name_or_path names, or new ones from the seed. Says on the console what it did. Gives the state of a run that
// continues.
std::optional<TrainerState> start_weights(Env& env, const RunStages& stages, Transformer& model,
                                          Console& console);

}  // namespace octet
