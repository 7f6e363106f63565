#pragma once

#include <string>
#include <vector>

#include "import/tree.h"
#include "sweep/sweep_spec.h"

namespace octet {

// Reads `parameters` of a sweep file into the spec, whose method is known. Adds a message per fault, and notes and warnings
// to the spec.
void read_sweep_parameters(const SettingsTree& tree, SweepSpec& spec, std::vector<std::string>& errors);

}  // namespace octet
