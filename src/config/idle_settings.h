#pragma once

#include <span>
#include <string>
#include <vector>

#include "config/config.h"

namespace octet {

struct IdleSetting {
  std::string key, text;  // "decay_ratio has no effect: lr_scheduler_type is not wsd"
};
// What idle_settings() finds, with the key of each message.
std::vector<IdleSetting> find_idle_settings(std::span<const TrainConfig> runs, bool on_gpu);

}  // namespace octet
