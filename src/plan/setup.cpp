#include "plan/setup.h"

#include <cstdlib>
#include <filesystem>

#include "base/log.h"

namespace octet {
namespace {

// Plans found by timing are kept for later runs, where other programs keep such things.
std::string tuning_cache_path() {
  namespace fs = std::filesystem;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  if (!cache && !home) return "";
  const fs::path folder = (cache ? fs::path(cache) : fs::path(home) / ".cache") / "octet";
  std::error_code error;
  fs::create_directories(folder, error);
  return error ? "" : (folder / "gemm_plans.jsonl").string();
}

}  // namespace

std::unique_ptr<Device> make_device(const TrainConfig& config) {
  const bool wants_cuda = config.device == TrainConfig::Device::Cuda;
  if (config.device != TrainConfig::Device::Cpu) {
    const CudaProbe probe = probe_cuda();
    if (probe.usable) {
      return make_cuda_device({.deterministic = config.deterministic, .tuning_cache = tuning_cache_path()});
    }
    if (wants_cuda) fail_config("device: cuda was asked for, but {}; use device: cpu or auto", probe.reason);
    // Where a driver is installed, a GPU that stands idle is not what its owner meant.
    if (probe.driver.starts_with("driver"))
      log_warning("the GPU is not used: {}; the run goes on the CPU", probe.reason);
  }
  return make_cpu_device(static_cast<int>(config.num_threads));
}

bool runs_on_gpu(const TrainConfig& config) {
  if (config.device == TrainConfig::Device::Auto) return probe_cuda().usable;
  return config.device == TrainConfig::Device::Cuda;
}

}  // namespace octet
