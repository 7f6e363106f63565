#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <type_traits>
#include <utility>

#include "base/error.h"

namespace octet {

// Throws Error naming the op and what CUDA said.
inline void cuda_check(cudaError_t status, const char* op) {
  if (status != cudaSuccess) {
    fail("[cuda] {}: {} ({})", op, cudaGetErrorString(status), cudaGetErrorName(status));
  }
}

// After a kernel launch: reports a launch that was refused (bad configuration, missing image for the GPU).
inline void check_launch(const char* op) {
  cuda_check(cudaGetLastError(), op);
}

inline bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(stream, &status) == cudaSuccess && status != cudaStreamCaptureStatusNone;
}

class CudaStream {
 public:
  CudaStream() { cuda_check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream"); }
  ~CudaStream() {
    if (stream_) cudaStreamDestroy(stream_);
  }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class CudaEvent {
 public:
  CudaEvent() { cuda_check(cudaEventCreate(&event_), "event"); }
  ~CudaEvent() {
    if (event_) cudaEventDestroy(event_);
  }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

struct CudaFree {
  void operator()(void* memory) const { cudaFree(memory); }
};
using DeviceMemory = std::unique_ptr<void, CudaFree>;

inline DeviceMemory allocate_device(size_t bytes, const char* op) {
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, bytes > 0 ? bytes : 1);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // the error is not sticky: clear it, so that a later check does not trip over it
    size_t free_bytes = 0, total_bytes = 0;
    cudaMemGetInfo(&free_bytes, &total_bytes);
    fail("[cuda] {}: out of device memory, {:.2f} GiB asked for, {:.2f} of {:.2f} GiB free", op,
         static_cast<double>(bytes) / (1 << 30), static_cast<double>(free_bytes) / (1 << 30),
         static_cast<double>(total_bytes) / (1 << 30));
  }
  cuda_check(status, op);
  return DeviceMemory(memory);
}

struct HostFree {
  void operator()(void* memory) const { cudaFreeHost(memory); }
};
using PinnedMemory = std::unique_ptr<void, HostFree>;

inline PinnedMemory allocate_pinned(size_t bytes, const char* op) {
  void* memory = nullptr;
  cuda_check(cudaMallocHost(&memory, bytes), op);
  return PinnedMemory(memory);
}

}  // namespace octet
