#include "backend/cuda_libraries.h"

#include "backend/cuda/cublaslt.h"
#include "backend/cuda/cudnn_library.h"
#include "backend/cuda/nccl_library.h"
#include "base/error.h"

namespace octet {
namespace {

template <class Version>
CudaLibrary look_at(std::string name, Version version) {
  try {
    return {std::move(name), version(), ""};
  } catch (const Error& error) {
    return {std::move(name), "", error.what()};
  }
}

// 130002 is 13.0.2.
std::string dotted(size_t version, size_t major, size_t minor) {
  return fmt::format("{}.{}.{}", version / major, version % major / minor, version % minor);
}

std::string cudnn_text() {
#ifdef OCTET_WITH_CUDNN
  const std::string problem = open_cudnn();
  require(problem.empty(), "{}", problem);
  return dotted(cudnn_version(), 10000, 100);
#else
  fail("the program was built without cuDNN (see OCTET_CUDNN_FRONTEND)");
#endif
}

}  // namespace

std::vector<CudaLibrary> cuda_libraries() {
  return {look_at("cuBLASLt", [] { return dotted(CublasLt::get().GetVersion(), 10000, 100); }),
          look_at("cuDNN", cudnn_text), look_at("NCCL", [] { return Nccl::get().version; })};
}

}  // namespace octet
