#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace octet {

// When something happens that a run does again and again: evaluations and checkpoints.
struct Interval {
  int64_t steps = 0;       // between two; 0: never
  double epoch_steps = 0;  // not 0: between two, instead of `steps`; need not be a whole number

  // After step number `step`, counted from 0.
  bool is_due(int64_t step) const {
    if (epoch_steps <= 0) return steps > 0 && (step + 1) % steps == 0;
    return count(step + 1) > count(step);
  }
  // How often it is due in this many steps.
  int64_t count(int64_t done) const {
    if (epoch_steps <= 0) return steps > 0 ? done / steps : 0;
    return static_cast<int64_t>(std::floor(static_cast<double>(done) / epoch_steps));
  }
};

// How users say it.
enum class Strategy { Steps, Epoch, No };

// `steps_per_epoch`: of one pass over the training data.
inline Interval make_interval(Strategy strategy, int64_t steps, int64_t per_epoch, double steps_per_epoch) {
  if (strategy == Strategy::No) return {};
  if (strategy == Strategy::Steps) return {.steps = steps};
  // An interval is at least a step.
  return {.epoch_steps = std::max(1.0, steps_per_epoch / static_cast<double>(per_epoch))};
}

}  // namespace octet
