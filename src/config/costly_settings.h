#pragma once

#include <string>
#include <vector>

#include "config/config.h"

namespace octet {

// Settings of a run that are known to cost accuracy, one message each, with what to set instead. Their figures are in
// bench/RESULTS.md.
std::vector<std::string> costly_settings(const TrainConfig& config);

}  // namespace octet
