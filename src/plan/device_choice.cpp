#include "plan/device_choice.h"

#include <filesystem>

#include "base/log.h"
#include "io/cache_folder.h"
#include "io/env.h"

namespace octet {
namespace {

// GEMM plans found by timing are kept for later runs in the usual cache folder.
std::string tuning_cache_path() {
  const std::string folder = octet_cache_folder();
  if (folder.empty()) return "";
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  return error ? "" : join_path(folder, "gemm_plans.jsonl");
}

}  // namespace

std::unique_ptr<Device> make_device(const TrainConfig& config) {
  const bool wants_cuda = config.device == TrainConfig::Device::Cuda;
  if (config.device != TrainConfig::Device::Cpu) {
    const CudaProbe probe = probe_cuda();
    if (probe.usable) {
      return make_cuda_device({.deterministic = config.deterministic, .tuning_cache = tuning_cache_path()});
    }
    if (wants_cuda) fail_config("device is cuda, but {}; use device cpu or auto", probe.reason);
    // If a driver is installed, the user probably expects the GPU to be used.
    if (probe.driver.starts_with("driver"))
      log_warning("the GPU is not used: {}; running on the CPU", probe.reason);
  }
  return make_cpu_device(static_cast<int>(config.num_threads));
}

bool runs_on_gpu(const TrainConfig& config) {
  if (config.device == TrainConfig::Device::Auto) return probe_cuda().usable;
  return config.device == TrainConfig::Device::Cuda;
}

}  // namespace octet
