#pragma once

#include <memory>
#include <string>

#include "config/device_key.h"
#include "ops/device.h"

namespace octet {

// The device that a run asks for.
struct DeviceSpec {
  DeviceKey key = DeviceKey::Auto;
  bool deterministic = false;
  int threads = 0;  // of a CPU; 0: the usual number
};

// ConfigError if the device is not there. Several ranks of a node use one GPU each, by `local_rank`, or the only one that
// the process can see.
std::unique_ptr<Device> make_device(const DeviceSpec& spec, int local_rank = 0);
// ConfigError if a run insists on a GPU that cannot be used.
void require_device(DeviceKey key, const CudaProbe& probe);
// What makes octet use the GPU of this machine, or that nothing does. `probe` has found no usable one.
std::string gpu_remedy(const CudaProbe& probe);
// What tells the GPU of a rank from those of others; empty without a GPU.
std::string gpu_of_rank(DeviceKey key, int local_rank);
// Whether make_device makes a GPU device, or fails because there is no GPU.
bool runs_on_gpu(DeviceKey key);

}  // namespace octet
