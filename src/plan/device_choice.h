#pragma once

#include <memory>

#include "config/config.h"
#include "ops/device.h"

namespace octet {

// The device that a configuration asks for; ConfigError where it is not there. Several ranks of a node use one GPU each,
// by `local_rank`, or the only one that the process can see.
std::unique_ptr<Device> make_device(const TrainConfig& config, int local_rank = 0);
// ConfigError if the configuration insists on a GPU that cannot be used.
void require_device(const TrainConfig& config, const CudaProbe& probe);
// What makes octet use the GPU of this machine, or that nothing does. `probe` has found no usable one.
std::string gpu_remedy(const CudaProbe& probe);
// What tells the GPU of a rank from those of others; empty without a GPU.
std::string gpu_of_rank(const TrainConfig& config, int local_rank);
// Whether make_device makes a GPU device, or fails because there is no GPU.
bool runs_on_gpu(const TrainConfig& config);

}  // namespace octet
