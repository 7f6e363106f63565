#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace octet {

enum class ScheduleType { Cosine, Linear, Constant, Wsd };

// cosine | linear | constant | wsd, and the Hugging Face names cosine_with_min_lr, constant_with_warmup and
// warmup_stable_decay for the same.
std::string_view to_string(ScheduleType type);

struct ScheduleConfig {
  ScheduleType type = ScheduleType::Cosine;
  double peak_lr = 0;
  int64_t warmup_steps = 0;
  int64_t max_steps = 0;
  double min_lr_ratio = 0;  // the rate at the last step, as a share of the peak; not of constant
  int64_t decay_steps = 0;  // wsd only: how many steps the decay takes, at the end of the run

  void validate() const;  // ConfigError naming the key, its value and what was expected
  // A warning if the phases do not fit into the run. That is allowed (a short trial with the settings of a long run) but
  // rarely intended.
  std::optional<std::string> remark() const;
};

// The learning rate of step `step` (0-based), a pure function of a valid config:
//   warm-up   step s < warmup_steps: peak * (s + 1) / warmup_steps
//   cosine    from step warmup_steps: a half cosine from peak down to exactly peak * min_lr_ratio at step max_steps - 1
//   linear    the same in a straight line
//   constant  peak
//   wsd       peak, then a straight line over the last decay_steps to exactly peak * min_lr_ratio at the last step
// Steps after the last have the rate of the last. A run of one single step has the peak: it is the first as well as the
// last, and a rate of zero would train nothing.
double learning_rate(const ScheduleConfig& config, int64_t step);

}  // namespace octet
