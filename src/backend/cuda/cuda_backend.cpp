#include "backend/cuda/cuda_backend.h"

#include <algorithm>

namespace octet {
namespace {

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

}  // namespace

bool cuda_backend_built() {
  return true;
}

CudaProbe probe_cuda(int device) {
  CudaProbe probe;
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  probe.driver = driver == 0
                     ? fmt::format("no driver, runtime {}", version_text(runtime))
                     : fmt::format("driver {}, runtime {}", version_text(driver), version_text(runtime));
  cudaError_t status = cudaGetDeviceCount(&probe.devices);
  if (driver == 0) {
    probe.reason = "no NVIDIA driver is installed (libcuda.so.1 was not found)";
  } else if (status != cudaSuccess) {
    probe.reason = cudaGetErrorString(status);
  } else if (device >= probe.devices || device < 0) {
    probe.reason = fmt::format("there is no GPU {}: {} found", device, probe.devices);
  }
  cudaGetLastError();
  if (!probe.reason.empty()) return probe;

  cudaDeviceProp properties;
  status = cudaGetDeviceProperties(&properties, device);
  if (status != cudaSuccess) {
    probe.reason = cudaGetErrorString(status);
    return probe;
  }
  probe.name = properties.name;
  probe.major = properties.major;
  probe.minor = properties.minor;
  probe.memory = static_cast<int64_t>(properties.totalGlobalMem);
#ifdef OCTET_CUDA_HAS_BLACKWELL
  constexpr bool has_blackwell = true;
#else
  constexpr bool has_blackwell = false;
#endif
  const bool hopper = probe.major == 9 && probe.minor == 0;
  const bool blackwell = probe.major == 10 && probe.minor == 0;
  if (!hopper && !(blackwell && has_blackwell)) {
    probe.reason =
        fmt::format("{} has compute capability {}.{}; this program was compiled for 9.0 (Hopper){}",
                    probe.name, probe.major, probe.minor, has_blackwell ? " and 10.0 (Blackwell)" : "");
    return probe;
  }
  size_t free_bytes = 0, total_bytes = 0;
  int current = 0;
  cudaGetDevice(&current);
  cudaSetDevice(device);
  if (cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess)
    probe.memory_free = static_cast<int64_t>(free_bytes);
  cudaSetDevice(current);
  status = cudaGetLastError();
  if (status != cudaSuccess) {
    probe.reason = cudaGetErrorString(status);
    return probe;
  }
  probe.usable = true;
  return probe;
}

std::unique_ptr<Backend> make_cuda_backend(const CudaOptions& options) {
  const CudaProbe probe = probe_cuda(options.device);
  require(probe.usable, "[cuda] GPU {} cannot be used: {}", options.device, probe.reason);
  cuda_check(cudaSetDevice(options.device), "cudaSetDevice");
  return std::make_unique<CudaBackend>(options);
}

CudaBackend::CudaBackend(const CudaOptions& options) : options_(options) {
  cudaDeviceProp properties;
  cuda_check(cudaGetDeviceProperties(&properties, options.device), "cudaGetDeviceProperties");
  sm_count_ = properties.multiProcessorCount;
  description_ = properties.name;
  planner_ =
      std::make_unique<GemmPlanner>(stream(), properties.name, options.tuning_cache, !options.deterministic);
}

CudaBackend::~CudaBackend() {
  cudaStreamSynchronize(stream());
}

int64_t CudaBackend::memory_bytes() const {
  size_t free_bytes = 0, total_bytes = 0;
  cuda_check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
  return std::max<int64_t>(static_cast<int64_t>(free_bytes) - kCudaMemoryReserve, 0);
}

std::shared_ptr<void> CudaBackend::allocate(int64_t bytes) {
  require(bytes >= 0, "[cuda] allocate: {} bytes", bytes);
  return allocate_device(static_cast<size_t>(bytes), "allocate");
}

void CudaBackend::copy_to_device(Tensor to, const void* from) {
  const auto bytes = static_cast<size_t>(to.bytes());
  if (bytes == 0) return;
  const OpScope scope(profiler_, OpKind::Copy, "copy_to_device", bytes_of(to));
  if (bytes >= StagedCopy::kLarge) return staged_copy_.to_device(to.data, from, bytes, stream());
  cuda_check(cudaMemcpyAsync(to.data, from, bytes, cudaMemcpyHostToDevice, stream()), "copy_to_device");
  // Pageable memory is staged before the call returns; pinned memory is read later, so the caller is made to
  // wait.
  cudaPointerAttributes attributes;
  if (cudaPointerGetAttributes(&attributes, from) == cudaSuccess && attributes.type == cudaMemoryTypeHost) {
    cuda_check(cudaStreamSynchronize(stream()), "copy_to_device");
  }
}

void CudaBackend::feed(std::span<const InputCopy> inputs) {
  const OpScope scope(profiler_, OpKind::Copy, "feed");
  input_feed_.send(inputs, stream());
}

void CudaBackend::copy_to_host(void* to, Tensor from) {
  const auto bytes = static_cast<size_t>(from.bytes());
  if (bytes >= StagedCopy::kLarge) return staged_copy_.to_host(to, from.data, bytes, stream());
  if (bytes != 0)
    cuda_check(cudaMemcpyAsync(to, from.data, bytes, cudaMemcpyDeviceToHost, stream()), "copy_to_host");
  cuda_check(cudaStreamSynchronize(stream()), "copy_to_host");
}

void CudaBackend::copy(Tensor to, Tensor from) {
  require(to.bytes() == from.bytes(), "[cuda] copy: {} bytes into {}", from.bytes(), to.bytes());
  if (to.bytes() == 0) return;
  const OpScope scope(profiler_, OpKind::Copy, "copy", bytes_of(to, from));
  cuda_check(cudaMemcpyAsync(to.data, from.data, static_cast<size_t>(to.bytes()), cudaMemcpyDeviceToDevice,
                             stream()),
             "copy");
}

void CudaBackend::zero(Tensor tensor) {
  if (tensor.bytes() == 0) return;
  const OpScope scope(profiler_, OpKind::Copy, "zero", bytes_of(tensor));
  cuda_check(cudaMemsetAsync(tensor.data, 0, static_cast<size_t>(tensor.bytes()), stream()), "zero");
}

void CudaBackend::synchronize() {
  cuda_check(cudaStreamSynchronize(stream()), "synchronize");
}

bool CudaBackend::start_profile() {
  profiler_.start();
  return true;
}

void CudaBackend::repeat(const std::string& signature, const std::function<void()>& work) {
  if (profiler_.active()) return work();  // the ops are to be seen one by one
  graphs_.run(signature, work);
}

int64_t CudaBackend::workspace_bytes(const WorkspaceNeeds& needs) const {
  return cuda_workspace_bytes(needs, sm_count_);
}

void CudaBackend::set_workspace(Tensor workspace) {
  require(workspace.bytes() > kGemmWorkspace, "[cuda] the workspace has {} bytes, more than {} are needed",
          workspace.bytes(), kGemmWorkspace);
  require(alignment_of(workspace.data) == 256, "[cuda] the workspace is not 256-byte aligned");
  workspace_ = static_cast<std::byte*>(workspace.data);
  workspace_bytes_ = workspace.bytes();
  if (own_workspace_) {
    synchronize();
    own_workspace_.reset();
  }
}

void CudaBackend::make_workspace(int64_t bytes) {
  own_workspace_ = allocate_device(static_cast<size_t>(bytes), "workspace");
  workspace_ = static_cast<std::byte*>(own_workspace_.get());
  workspace_bytes_ = bytes;
}

Scratch CudaBackend::scratch(const char* op) {
  // Single ops may be tried without a plan: then the workspace is the backend's own.
  if (workspace_ == nullptr) make_workspace(kGemmWorkspace + kEmulationScratch);
  return {workspace_ + kGemmWorkspace, workspace_bytes_ - kGemmWorkspace, op};
}

}  // namespace octet
