#pragma once

#include "config/step_keys.h"
#include "dist/ranks.h"
#include "model/sharding.h"

namespace octet {

// How a rank shares with the others: what sharding_mode says, or zero1 if it is auto and there are others. Hsdp has the
// ranks of a node as its groups. ConfigError if the ranks cannot be grouped so.
Sharding sharding_of(const StepKeys& config, const RankPlace& place);

// "zero2: each rank keeps all weights, and 1/8 of the gradients, of the optimizer state and of the exact weights"
std::string sharding_text(const Sharding& sharding);

}  // namespace octet
