#pragma once

#include <span>

#include "ops/sampling.h"

namespace octet::test {

// What Ops::choose_tokens chooses for a row: sorted, in double precision.
int32_t plain_choice(std::span<const double> logits, const TokenChoice& choice);

}  // namespace octet::test
