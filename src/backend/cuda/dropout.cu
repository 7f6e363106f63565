#include "backend/cuda/device/tile_kernel.cuh"
#include "backend/op_checks.h"
#include "base/philox.h"

namespace octet {
namespace device {
namespace {

constexpr int kThreads = 256;

template <class T, bool vector>
__global__ void __launch_bounds__(kThreads)
    dropout_kernel(T* y, const T* x, int64_t count, float probability, const uint32_t* seed, uint64_t stream,
                   bool accumulate) {
  const Philox random(static_cast<uint64_t>(seed[1]) << 32 | seed[0], stream);
  const float kept = 1.0f - probability;
  for (int64_t i = 8 * (blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x); i < count;
       i += 8 * static_cast<int64_t>(gridDim.x) * kThreads) {
    float values[8], before[8] = {};
    load8<vector>(x + i, count - i).unpack(values);
    if (accumulate) load8<vector>(static_cast<const T*>(y + i), count - i).unpack(before);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const bool keep = random.uniform(static_cast<uint64_t>(i + j)) >= probability;
      const float value = keep ? __fdiv_rn(values[j], kept) : 0.0f;
      values[j] = accumulate ? __fadd_rn(before[j], value) : value;
    }
    store8<vector>(y + i, Pack8<T>::pack(values), count - i);
  }
}

}  // namespace
}  // namespace device

void CudaOps::dropout(Tensor y, Tensor x, float probability, Tensor seed, uint64_t stream, bool accumulate) {
  constexpr const char* op = "dropout";
  check_dropout(y, x, probability, seed, accumulate);
  const OpScope scope(profiler_, OpKind::Adapters, op, bytes_of(x, y));
  const int64_t count = x.numel();
  if (count == 0) return;
  const int64_t blocks = std::min<int64_t>(div_up(count, 8 * device::kThreads), 16 * sm_count());
  dispatch_real(op, x.dtype, [&]<class T>(T) {
    const bool vector = count % 8 == 0 && aligned16(x.data) && aligned16(y.data);
    const auto kernel = vector ? device::dropout_kernel<T, true> : device::dropout_kernel<T, false>;
    kernel<<<narrow<unsigned>(blocks), device::kThreads, 0, this->stream()>>>(
        static_cast<T*>(y.data), static_cast<const T*>(x.data), count, probability,
        static_cast<const uint32_t*>(seed.data), stream, accumulate);
  });
  check_launch(op);
}

}  // namespace octet
