#include "plan/device_choice.h"

#include <cstdlib>
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
  if (error) {
    log_warning("[{}] the folder cannot be made: {}{}; tuning results are not kept", folder, error.message(),
                cache_note(folder));
    return "";
  }
  return join_path(folder, "gemm_plans.jsonl");
}

// A launcher may show every process one GPU only.
int gpu_index(int local_rank) {
  return probe_cuda().devices > 1 ? local_rank : 0;
}

}  // namespace

std::string gpu_of_rank(const TrainConfig& config, int local_rank) {
  // For tests of several ranks on one GPU, which NCCL otherwise refuses, too.
  if (std::getenv("OCTET_SHARE_GPU")) return "";
  return runs_on_gpu(config) ? probe_cuda(gpu_index(local_rank)).uuid : "";
}

std::unique_ptr<Device> make_device(const TrainConfig& config, int local_rank) {
  const bool wants_cuda = config.device == TrainConfig::Device::Cuda;
  if (config.device != TrainConfig::Device::Cpu) {
    const int gpu = gpu_index(local_rank);
    const CudaProbe probe = probe_cuda(gpu);
    if (probe.usable) {
      return make_cuda_device(
          {.device = gpu, .deterministic = config.deterministic, .tuning_cache = tuning_cache_path()});
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
