#pragma once

#include <optional>

#include "checkpoint/model_folder.h"
#include "config/config.h"
#include "model/config.h"

namespace octet {

struct ModelChoice {
  ModelConfig model;
  std::optional<ModelFolder> start;  // what model_name_or_path names, where it is given and needed
};

// The model of a run: a preset or family with the sizes given, what model_name_or_path names, or that of the checkpoint
// which is resumed. Fills in the keys that follow from it: all sizes where one is given, and the default of
// max_seq_length. ConfigError where the keys do not fit the model or each other.
ModelChoice choose_model(TrainConfig& config, const Checkpoint* resumed);

}  // namespace octet
