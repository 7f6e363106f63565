#pragma once

#include <vector>

#include "compare/comparison.h"

namespace octet {

// Runs that are the same but for their seed are one variant. The names of variants differ.
std::vector<Variant> group_into_variants(const std::vector<ComparedRun>& runs,
                                         const std::vector<RunFigures>& figures);

// Fills in the settings that differ, and warns of those that make the comparison unfair.
void add_settings(Comparison& comparison);

}  // namespace octet
