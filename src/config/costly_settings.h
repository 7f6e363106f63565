#pragma once

#include <span>
#include <string>
#include <vector>

#include "config/config.h"

namespace octet {

// Settings of a run that cost accuracy, or may do so because nobody has measured them, one message each, with what to set
// instead. Figures are in bench/RESULTS.md.
std::vector<std::string> costly_settings(const TrainConfig& config);

// Warns of each once.
void warn_of_costly_settings(std::span<const TrainConfig> runs);

}  // namespace octet
