#pragma once

#include <cstdint>
#include <string>

#include "config/data_keys.h"
#include "precision/fp8_config.h"

namespace octet {

// How a run was trained, as far as those ask who read its model: its data, to evaluate on them, and what its model is
// called and built from.
struct TrainedRun : DataKeys {
  Precision mixed_precision = Precision::Fp8;
  int64_t per_device_train_batch_size = 0;
  int64_t eval_batches = 0;
};

// From a configuration that octet wrote. Error or ConfigError if it cannot be read, for example because a newer octet wrote
// it.
TrainedRun load_trained_run(const std::string& path);

}  // namespace octet
