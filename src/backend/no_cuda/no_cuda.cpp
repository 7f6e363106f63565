#include "backend/cuda_libraries.h"
#include "base/error.h"
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

CudaProbe probe_cuda(int) {
  CudaProbe probe;
  probe.reason = "built without CUDA: " OCTET_NO_CUDA_REASON;
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
