#include "base/error.h"
#include "ops/backend.h"

// Stands in for backend/cuda in a build without CUDA, so that callers need no preprocessor.

namespace octet {

std::unique_ptr<Backend> make_cuda_backend(const CudaOptions&) {
  fail("[cuda] this program was built without CUDA: {}; the CPU backend is available", OCTET_NO_CUDA_REASON);
}

bool cuda_backend_built() {
  return false;
}

CudaProbe probe_cuda(int) {
  CudaProbe probe;
  probe.reason = "built without CUDA: " OCTET_NO_CUDA_REASON;
  return probe;
}

}  // namespace octet
