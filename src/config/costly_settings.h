#pragma once

#include <span>

#include "config/config.h"

namespace octet {

// Warns once of each setting of these runs that costs accuracy, or may do so because nobody has measured it, and says what to
// set instead. Figures are in bench/RESULTS.md.
void warn_of_costly_settings(std::span<const TrainConfig> runs);

}  // namespace octet
