#include <algorithm>

#include "backend/cuda/cuda_device.h"

// Zeros for many small tensors, such as the gradients of biases and gains, in one launch. One launch per tensor would
// take longer to launch than to run.

namespace octet {
namespace {

constexpr int64_t kSmall = int64_t{1} << 20;  // bytes; CUDA's own memset is as good for larger ones
constexpr int kEntries = 240;
constexpr int kThreads = 256;

struct ClearTable {
  struct Entry {
    uint8_t* data;
    int64_t bytes;
  };
  Entry entries[kEntries];
};
static_assert(sizeof(ClearTable) <= 4096, "the table travels as a kernel argument");

// blockIdx.x: the tensor. Those of the memory plan are 256-byte aligned.
__global__ void clear_kernel(const __grid_constant__ ClearTable table) {
  const ClearTable::Entry entry = table.entries[blockIdx.x];
  const int64_t thread = blockIdx.y * static_cast<int64_t>(kThreads) + threadIdx.x;
  const int64_t threads = gridDim.y * static_cast<int64_t>(kThreads);
  const int64_t vectors = entry.bytes / 16;
  for (int64_t i = thread; i < vectors; i += threads) reinterpret_cast<uint4*>(entry.data)[i] = uint4{};
  for (int64_t i = 16 * vectors + thread; i < entry.bytes; i += threads) entry.data[i] = 0;
}

}  // namespace

void CudaDevice::zero(std::span<const Tensor> tensors) {
  constexpr const char* op = "zero";
  ClearTable table;
  int count = 0;
  int64_t most = 0, bytes = 0;
  const auto launch = [&] {
    if (count == 0) return;
    const OpScope scope(queue_.profiler(), OpKind::Copy, op, static_cast<double>(bytes));
    const dim3 grid(static_cast<unsigned>(count), static_cast<unsigned>(div_up(most, 16 * 4 * kThreads)));
    clear_kernel<<<grid, kThreads, 0, stream()>>>(table);
    check_launch(op);
    count = 0;
    most = bytes = 0;
  };
  for (const Tensor& tensor : tensors) {
    if (tensor.bytes() >= kSmall || reinterpret_cast<uintptr_t>(tensor.data) % 16 != 0) {
      zero(tensor);
    } else if (tensor.bytes() > 0) {
      table.entries[count++] = {static_cast<uint8_t*>(tensor.data), tensor.bytes()};
      most = std::max(most, tensor.bytes());
      bytes += tensor.bytes();
      if (count == kEntries) launch();
    }
  }
  launch();
}

}  // namespace octet
