#pragma once

#include <string>

#include "config/config.h"

namespace octet {

// What the name that a run gets says of its precision. `fp8`: whether it runs in FP8, if that was asked for; a run that
// cannot is one in BF16.
inline std::string precision_of_name(const TrainConfig& config, bool fp8 = true) {
  const bool falls_back = config.mixed_precision == Precision::Fp8 && !fp8;
  return falls_back ? "bf16" : config_text(config, "mixed_precision");
}

}  // namespace octet
