#pragma once

#include <memory>

#include "config/config.h"
#include "ops/device.h"

namespace octet {

// The device that a configuration asks for; ConfigError where it is not there.
std::unique_ptr<Device> make_device(const TrainConfig& config);
// Whether make_device makes a GPU device, or fails because there is no GPU.
bool runs_on_gpu(const TrainConfig& config);

}  // namespace octet
