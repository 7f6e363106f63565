#pragma once

#include "config/config.h"

// The parts of train_keys(), which stands in config_keys.cpp.

namespace octet {

inline constexpr double kMaxCount = 1e12;  // of steps and the like: room to multiply in 64 bits

void add_precision_keys(KeyTable<TrainConfig>& keys);  // precision, memory
void add_run_keys(KeyTable<TrainConfig>& keys);        // ranks, run, checkpoints, reports

}  // namespace octet
