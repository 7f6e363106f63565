#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "backend/cuda_libraries.h"
#include "base/error.h"
#include "base/nvml.h"
#include "dist/engines.h"
#include "ops/device.h"

// Replaces backend/cuda in a build without CUDA, so that callers need no preprocessor.

namespace octet {

std::unique_ptr<Device> make_cuda_device(const CudaOptions&) {
  fail("[cuda] this program was built without CUDA: {}; use device: cpu", OCTET_NO_CUDA_REASON);
}

bool cuda_backend_built() {
  return false;
}

namespace {

// Only what the driver says, so that a run can tell which GPU it leaves idle. `driver` is empty if there is no GPU.
CudaProbe look_for_gpu() {
  CudaProbe probe;
  probe.reason = "this program was built without CUDA (" OCTET_NO_CUDA_REASON ")";
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible && (std::string_view(visible).empty() || std::string_view(visible) == "-1")) return probe;
  std::string problem;
  std::error_code code;
  if (const std::shared_ptr<const Nvml> nvml = Nvml::open(problem); nvml && nvml->gpus() > 0) {
    const GpuState gpu = nvml->state(0).value_or(GpuState{});
    probe.driver = "driver " + nvml->driver_version();
    probe.name = gpu.name;
    probe.major = gpu.major;
    probe.minor = gpu.minor;
  } else if (std::filesystem::exists("/dev/nvidia0", code)) {
    probe.driver = "driver";
  }
  return probe;
}

}  // namespace

CudaProbe probe_cuda(int) {
  static const CudaProbe probe = look_for_gpu();
  return probe;
}

std::vector<CudaLibrary> cuda_libraries() {
  return {};
}

std::unique_ptr<Communicator> make_nccl_communicator(Device&, const GroupRequest& request) {
  fail("[group {}] NCCL needs CUDA, but this program was built without CUDA: {}", request.name,
       OCTET_NO_CUDA_REASON);
}

std::string nccl_description() {
  return "built without CUDA: " OCTET_NO_CUDA_REASON;
}

}  // namespace octet
