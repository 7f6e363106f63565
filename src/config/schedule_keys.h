#pragma once

#include <cstdint>

#include "step/schedule.h"

namespace octet {

// How long a run is, and its learning rates.
struct ScheduleKeys {
  // After resolving exactly one of the two is not 0.
  int64_t max_steps = 0;
  double num_train_epochs = 0;

  double learning_rate = 6e-4;  // resolved, see default_learning_rate
  ScheduleType lr_scheduler_type = ScheduleType::Cosine;
  int64_t warmup_steps = 0;
  double warmup_ratio = 0;  // 0.03 with LoRA and from given weights, unless the warm-up is set
  double min_lr_ratio = 0.1;
  double min_lr = -1;        // below 0: min_lr_ratio decides. Otherwise it decides min_lr_ratio.
  double decay_ratio = 0.2;  // wsd
};

}  // namespace octet
