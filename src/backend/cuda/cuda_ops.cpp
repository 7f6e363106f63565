#include "backend/cuda/cuda_ops.h"

#include "backend/cuda/cuda_device.h"

namespace octet {

CudaOps::CudaOps(CudaDevice& device, CudaQueue& queue)
    : device_(device),
      stream_(queue.stream()),
      profiler_(queue.profiler()),
      sm_count_(device.sm_count()),
      planner_(std::make_unique<GemmPlanner>(stream_, device.gpu_name(), device.options().tuning_cache,
                                             !device.options().deterministic)) {}

CudaOps::~CudaOps() {
  cudaStreamSynchronize(stream_);
}

Device& CudaOps::device() {
  return device_;
}
const CudaOptions& CudaOps::options() const {
  return device_.options();
}
const std::string& CudaOps::gpu_name() const {
  return device_.gpu_name();
}

void CudaOps::set_workspace(Tensor workspace) {
  require(workspace.bytes() > kGemmWorkspace, "[cuda] the workspace has {} bytes, more than {} are needed",
          workspace.bytes(), kGemmWorkspace);
  require(alignment_of(workspace.data) == 256, "[cuda] the workspace is not 256-byte aligned");
  workspace_ = static_cast<std::byte*>(workspace.data);
  workspace_bytes_ = workspace.bytes();
  if (own_workspace_) {
    cuda_check(cudaStreamSynchronize(stream()), "set_workspace");
    own_workspace_.reset();
  }
}

void CudaOps::make_workspace(int64_t bytes) {
  own_workspace_ = allocate_device(static_cast<size_t>(bytes), "workspace");
  workspace_ = static_cast<std::byte*>(own_workspace_.get());
  workspace_bytes_ = bytes;
}

Scratch CudaOps::scratch(const char* op) {
  // Single ops may run without a plan; then this object has its own workspace.
  if (workspace_ == nullptr) make_workspace(kGemmWorkspace + kEmulationScratch);
  return {workspace_ + kGemmWorkspace, workspace_bytes_ - kGemmWorkspace, op};
}

}  // namespace octet
