#pragma once

#include "compare/comparison.h"

namespace octet {

// Fills in the sentences of the comparisons and of the whole.
void add_verdicts(Comparison& comparison);

// "differs by -0.13 %, within noise"
std::string difference_text(const Difference& difference);

}  // namespace octet
