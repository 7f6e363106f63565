#pragma once

#include "step/schedule.h"

namespace octet {

struct OptimizerOptions {
  ScheduleConfig schedule;
  float beta1 = 0.9f, beta2 = 0.95f, epsilon = 1e-8f;
  float weight_decay = 0.1f;
  float max_grad_norm = 1.0f;
  uint64_t seed = 0;         // of stochastic rounding and dropout
  float loraplus_ratio = 1;  // learning rate of the adapters' B over that of their A
};

}  // namespace octet
