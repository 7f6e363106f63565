#include "plan/device_choice.h"

#include <fmt/format.h>

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

std::string gpu_of_rank(DeviceKey key, int local_rank) {
  // For tests of several ranks on one GPU, which NCCL otherwise refuses, too.
  if (std::getenv("OCTET_SHARE_GPU")) return "";
  return runs_on_gpu(key) ? probe_cuda(gpu_index(local_rank)).uuid : "";
}

std::unique_ptr<Device> make_device(const DeviceSpec& spec, int local_rank) {
  if (spec.key != DeviceKey::Cpu) {
    const int gpu = gpu_index(local_rank);
    const CudaProbe probe = probe_cuda(gpu);
    if (probe.usable) {
      return make_cuda_device(
          {.device = gpu, .deterministic = spec.deterministic, .tuning_cache = tuning_cache_path()});
    }
    require_device(spec.key, probe);
    // If a driver is installed, the user probably expects the GPU to be used.
    if (probe.driver.starts_with("driver"))
      log_warning("the GPU is not used, the run is on the CPU: {}; {}", probe.reason, gpu_remedy(probe));
  }
  return make_cpu_device(spec.threads);
}

void require_device(DeviceKey key, const CudaProbe& probe) {
  if (key != DeviceKey::Cuda || probe.usable) return;
  fail_config("device is cuda, but {}; {}; use device cpu or auto", probe.reason, gpu_remedy(probe));
}

std::string gpu_remedy(const CudaProbe& probe) {
  const bool is_hopper = probe.major == 9 && probe.minor == 0;
  if (probe.major == 10 && probe.minor == 0)
    return "a build with -DOCTET_CUDA=ON -DOCTET_CUDA_BLACKWELL=ON has kernels for this GPU, which nobody has run yet";
  if (probe.major > 0 && !is_hopper)
    return fmt::format(
        "octet has no kernels for {} (compute capability {}.{}): it needs 9.0 (H100, H200, GH200)",
        probe.name, probe.major, probe.minor);
  if (!cuda_backend_built())
    return "to use an H100, H200 or GH200, build it with 'make build CUDA=ON', which needs the CUDA toolkit";
  return "it needs an NVIDIA GPU of compute capability 9.0 (H100, H200, GH200) and a driver for CUDA 13 (580 or later)";
}

bool runs_on_gpu(DeviceKey key) {
  if (key == DeviceKey::Auto) return probe_cuda().usable;
  return key == DeviceKey::Cuda;
}

}  // namespace octet
