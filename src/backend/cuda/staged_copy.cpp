#include "backend/cuda/staged_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/checked.h"
#include "base/parallel_for.h"

namespace octet {
namespace {

constexpr size_t kPiece = size_t{32} << 20;
constexpr size_t kSlice = size_t{1} << 20;  // per core at a time

void parallel_copy(void* to, const void* from, size_t bytes) {
  const auto slices = static_cast<int64_t>((bytes + kSlice - 1) / kSlice);
  // One range of neighbouring slices per thread: two threads share a fresh page only where their ranges meet.
  parallel_for(slices, div_up(slices, parallel_threads()), [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const size_t begin = static_cast<size_t>(i) * kSlice;
      std::memcpy(static_cast<std::byte*>(to) + begin, static_cast<const std::byte*>(from) + begin,
                  std::min(kSlice, bytes - begin));
    }
  });
}

}  // namespace

void StagedCopy::prepare() {
  for (Stage& stage : stages_) {
    if (!stage.memory) stage.memory = allocate_pinned(kPiece, "pinned memory for copies");
  }
}

void StagedCopy::to_host(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  prepare();
  const size_t pieces = (bytes + kPiece - 1) / kPiece;
  const auto size_of_piece = [&](size_t i) { return std::min(kPiece, bytes - i * kPiece); };
  const auto fetch = [&](size_t i) {
    Stage& stage = stages_[i % 2];
    cuda_check(cudaMemcpyAsync(stage.memory.get(), static_cast<const std::byte*>(from) + i * kPiece,
                               size_of_piece(i), cudaMemcpyDeviceToHost, stream),
               "copy_to_host");
    cuda_check(cudaEventRecord(stage.done.get(), stream), "copy_to_host");
  };
  fetch(0);
  for (size_t i = 0; i < pieces; ++i) {
    if (i + 1 < pieces) fetch(i + 1);  // its buffer was emptied in the round before
    cuda_check(cudaEventSynchronize(stages_[i % 2].done.get()), "copy_to_host");
    parallel_copy(static_cast<std::byte*>(to) + i * kPiece, stages_[i % 2].memory.get(), size_of_piece(i));
  }
}

void StagedCopy::to_device(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  prepare();
  for (size_t i = 0; i * kPiece < bytes; ++i) {
    Stage& stage = stages_[i % 2];
    const size_t size = std::min(kPiece, bytes - i * kPiece);
    if (i >= 2) cuda_check(cudaEventSynchronize(stage.done.get()), "copy_to_device");
    parallel_copy(stage.memory.get(), static_cast<const std::byte*>(from) + i * kPiece, size);
    cuda_check(cudaMemcpyAsync(static_cast<std::byte*>(to) + i * kPiece, stage.memory.get(), size,
                               cudaMemcpyHostToDevice, stream),
               "copy_to_device");
    cuda_check(cudaEventRecord(stage.done.get(), stream), "copy_to_device");
  }
  cuda_check(cudaStreamSynchronize(stream), "copy_to_device");
}

}  // namespace octet
