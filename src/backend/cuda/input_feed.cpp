#include "backend/cuda/input_feed.h"

#include <bit>
#include <cstring>

namespace octet {
namespace {

constexpr size_t kAlignment = 256;  // of each input in the buffers
constexpr size_t kMostInputs = 16;  // of a micro-batch; reserve() has room for their padding

size_t padded(const InputCopy& input) {
  return static_cast<size_t>(round_up(input.to.bytes(), static_cast<int64_t>(kAlignment)));
}

}  // namespace

void InputFeed::grow(Slot& slot, size_t bytes) {
  cuda_check(cudaEventSynchronize(slot.arrived.get()), "feed");
  cuda_check(cudaEventSynchronize(slot.taken.get()), "feed");
  slot.host = allocate_pinned(bytes, "feed");
  slot.device = allocate_device(bytes, "feed");
  slot.bytes = bytes;
}

void InputFeed::reserve(size_t bytes) {
  bytes += kMostInputs * kAlignment;
  for (Slot& slot : slots_) {
    if (bytes > slot.bytes) grow(slot, bytes);
  }
}

void InputFeed::send(std::span<const InputCopy> inputs, cudaStream_t stream) {
  constexpr const char* op = "feed";
  size_t total = 0;
  for (const InputCopy& input : inputs) total += padded(input);
  if (total == 0) return;

  // Events that were never recorded count as done.
  Slot& slot = slots_[next_];
  next_ = 1 - next_;
  cuda_check(cudaEventSynchronize(slot.arrived.get()), op);
  if (total > slot.bytes) reserve(std::bit_ceil(total));  // the size was not announced: grow in large steps
  auto* host = static_cast<std::byte*>(slot.host.get());
  const auto* device = static_cast<const std::byte*>(slot.device.get());
  size_t begin = 0;
  for (const InputCopy& input : inputs) {
    const auto bytes = static_cast<size_t>(input.to.bytes());
    if (bytes > 0) std::memcpy(host + begin, input.from, bytes);
    begin += padded(input);
  }
  cuda_check(cudaStreamWaitEvent(stream_.get(), slot.taken.get()), op);
  {
    const OpScope scope(profiler_, OpKind::Copy, "inputs to device", static_cast<double>(total));
    cuda_check(cudaMemcpyAsync(slot.device.get(), host, total, cudaMemcpyHostToDevice, stream_.get()), op);
  }
  cuda_check(cudaEventRecord(slot.arrived.get(), stream_.get()), op);

  cuda_check(cudaStreamWaitEvent(stream, slot.arrived.get()), op);
  begin = 0;
  for (const InputCopy& input : inputs) {
    const auto bytes = static_cast<size_t>(input.to.bytes());
    if (bytes > 0) {
      cuda_check(cudaMemcpyAsync(input.to.data, device + begin, bytes, cudaMemcpyDeviceToDevice, stream), op);
    }
    begin += padded(input);
  }
  cuda_check(cudaEventRecord(slot.taken.get(), stream), op);
}

}  // namespace octet
