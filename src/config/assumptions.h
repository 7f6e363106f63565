#pragma once

#include <span>
#include <string>
#include <vector>

#include "config/config.h"

namespace octet {

// Whether the model is GPT-2 because the keys of this new run name none.
bool assumes_gpt2(const TrainConfig& config);
// Whether they say how large the model is, so that it is not one of those that people know.
bool sets_model_sizes(const TrainConfig& config);

// What a run takes for granted because its keys leave it open, one message each: the model of a dataset, the type of a
// penalty. And names of the run that promise another precision than it has, as warnings.
struct Assumptions {
  std::vector<std::string> notes, warnings;
};
Assumptions assumptions_of(const TrainConfig& config);

// Says them, each once for all of these runs. Names are judged only if there is a single run.
void tell_assumptions(std::span<const TrainConfig> runs);

}  // namespace octet
