#include "backend/cuda/attention_cudnn_memory.h"

#include <algorithm>

namespace octet {
namespace {

constexpr const char* kOp = "attention workspace";

uint64_t recording_of(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long number = 0;
  cuda_check(cudaStreamGetCaptureInfo(stream, &status, &number), kOp);
  return status == cudaStreamCaptureStatusNone ? 0 : uint64_t{number};
}

}  // namespace

void CudnnMemory::reserve(int64_t bytes, int64_t capacity) {
  constexpr int64_t kStep = int64_t{128} << 20, kLeaveFree = int64_t{512} << 20;
  if (bytes <= bytes_) return;
  size_t free_bytes = 0, total_bytes = 0;
  cuda_check(cudaMemGetInfo(&free_bytes, &total_bytes), kOp);
  const auto fits = [&](int64_t wanted) { return wanted + kLeaveFree <= static_cast<int64_t>(free_bytes); };
  int64_t wanted = round_up(std::max(bytes, capacity), kStep);
  if (!fits(wanted)) wanted = round_up(bytes, kStep);
  require(fits(wanted), "{} MiB of workspace do not fit into the {} MiB that are free", wanted >> 20,
          free_bytes >> 20);
  memory_.push_back(allocate_device(static_cast<size_t>(wanted), kOp));
  bytes_ = wanted;
  user_ = nullptr;
}

std::byte* CudnnMemory::take(const void* plan, int64_t bytes) {
  require(bytes <= bytes_, "[cuda] attention: {} bytes were not reserved, {} were", bytes, bytes_);
  user_ = plan;
  return static_cast<std::byte*>(memory_.back().get());
}

std::byte* CudnnMemory::take_clean(const void* plan, int64_t bytes) {
  const uint64_t recording = recording_of(ops_.stream());
  const bool clean = !stale_ && user_ == plan && recording_ == recording;
  std::byte* memory = take(plan, bytes);
  if (!clean) cuda_check(cudaMemsetAsync(memory, 0, static_cast<size_t>(bytes), ops_.stream()), kOp);
  recording_ = recording;
  stale_ = false;
  return memory;
}

void CudnnMemory::begin_forward() {
  // A layer recomputed in backward belongs to the step whose backward is running.
  if (ops_.profiler().phase() != Phase::Backward) stale_ = true;
}

}  // namespace octet
