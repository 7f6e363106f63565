#include <memory>
#include <vector>

#include "backend/cuda/device/tile_kernel.cuh"

namespace octet {
namespace device {
namespace {

// ---- sums and the gradient norm ----

constexpr int kSumThreads = 512;
constexpr int kSumBlocks = 1024;     // of one launch; each leaves one partial
constexpr int64_t kChunk = 1 << 15;  // elements, of one tensor
constexpr int kTensorsPerLaunch = 512;

struct SumTable {
  struct Entry {
    const void* data;
    int64_t count;
    int64_t first_chunk;
  };
  Entry entries[kTensorsPerLaunch];
  int tensors;
  int64_t chunks;
};

__device__ inline double block_sum(double x) {
  __shared__ double shared[kSumThreads];
  shared[threadIdx.x] = x;
  __syncthreads();
  for (int half = kSumThreads / 2; half > 0; half /= 2) {
    if (static_cast<int>(threadIdx.x) < half) shared[threadIdx.x] += shared[threadIdx.x + half];
    __syncthreads();
  }
  return shared[0];
}

// One partial sum per block: of its chunks' elements, or of their squares.
template <class T, bool squares>
__global__ void __launch_bounds__(kSumThreads)
    sum_kernel(const __grid_constant__ SumTable table, double* partials) {
  double total = 0.0;
  const auto add = [&](float x) {
    const double value = static_cast<double>(x);
    total += squares ? value * value : value;
  };
  int tensor = 0;
  for (int64_t chunk = blockIdx.x; chunk < table.chunks; chunk += gridDim.x) {
    while (tensor + 1 < table.tensors && table.entries[tensor + 1].first_chunk <= chunk) ++tensor;
    const auto& entry = table.entries[tensor];
    const int64_t begin = (chunk - entry.first_chunk) * kChunk;
    const int64_t end = min(entry.count, begin + kChunk);
    const T* x = static_cast<const T*>(entry.data);
    if (reinterpret_cast<uintptr_t>(x) % 16 == 0 && end - begin == kChunk) {
      for (int64_t i = begin + 8 * static_cast<int64_t>(threadIdx.x); i < end; i += 8 * kSumThreads) {
        const Pack8<T> pack = Pack8<T>::load(x + i);
#pragma unroll
        for (int j = 0; j < 8; ++j) add(pack.at(j));
      }
    } else {
      for (int64_t i = begin + threadIdx.x; i < end; i += kSumThreads) add(to_float(x[i]));
    }
  }
  total = block_sum(total);
  if (threadIdx.x == 0) partials[blockIdx.x] = total;
}

enum class Finish { Sum, Norm };

__global__ void __launch_bounds__(kSumThreads)
    finish_sum_kernel(float* result, const double* partials, int64_t count, Finish finish, float max_norm,
                      const float* guard, int64_t guards) {
  double total = 0.0;
  for (int64_t i = threadIdx.x; i < count; i += kSumThreads) total += partials[i];
  total = block_sum(total);
  if (threadIdx.x != 0) return;
  if (finish == Finish::Sum) {
    result[0] = static_cast<float>(total);
    return;
  }
  float norm = static_cast<float>(sqrt(total));
  for (int64_t i = 0; i < guards; ++i) {
    if (!isfinite(guard[i])) norm = nanf("");
  }
  result[0] = norm;
  result[1] = max_norm > 0.0f && norm > max_norm ? max_norm / norm : 1.0f;
}

}  // namespace
}  // namespace device

namespace {

// Sums of all tensors of one dtype into `partials`; returns how many partials were written.
template <bool squares>
int64_t launch_sums(CudaOps& ops, const char* op, std::span<const Tensor> tensors, DType dtype,
                    double* partials) {
  using namespace device;
  int64_t written = 0;
  auto table = std::make_unique<SumTable>();
  table->tensors = 0;
  table->chunks = 0;
  const auto flush = [&] {
    if (table->tensors == 0) return;
    const auto blocks = static_cast<unsigned>(std::min<int64_t>(table->chunks, kSumBlocks));
    dispatch_real(op, dtype, [&]<class T>(T) {
      sum_kernel<T, squares><<<blocks, kSumThreads, 0, ops.stream()>>>(*table, partials + written);
    });
    check_launch(op);
    written += blocks;
    table->tensors = 0;
    table->chunks = 0;
  };
  for (const Tensor& tensor : tensors) {
    if (tensor.dtype != dtype || tensor.numel() == 0) continue;
    table->entries[table->tensors++] = {tensor.data, tensor.numel(), table->chunks};
    table->chunks += div_up(tensor.numel(), kChunk);
    if (table->tensors == kTensorsPerLaunch) flush();
  }
  flush();
  return written;
}

template <bool squares>
void sum_all(CudaOps& ops, const char* op, Tensor result, std::span<const Tensor> tensors, float max_norm,
             Tensor guard) {
  for (const Tensor& tensor : tensors) {
    require(tensor.dtype == DType::F32 || tensor.dtype == DType::BF16,
            "[cuda] {}: a tensor is {}, expected fp32 or bf16", op, name_of(tensor.dtype));
  }
  Scratch space = ops.scratch(op);
  const int64_t launches = div_up(static_cast<int64_t>(tensors.size()), device::kTensorsPerLaunch) + 1;
  auto* partials = space.take<double>(2 * launches * device::kSumBlocks);
  int64_t count = launch_sums<squares>(ops, op, tensors, DType::F32, partials);
  count += launch_sums<squares>(ops, op, tensors, DType::BF16, partials + count);
  device::finish_sum_kernel<<<1, device::kSumThreads, 0, ops.stream()>>>(
      static_cast<float*>(result.data), partials, count, squares ? device::Finish::Norm : device::Finish::Sum,
      max_norm, static_cast<const float*>(guard.data), guard ? guard.numel() : 0);
  check_launch(op);
}

}  // namespace

void CudaOps::sum(Tensor total, Tensor x) {
  const OpScope scope(profiler_, OpKind::Other, "sum", bytes_of(x));
  sum_all<false>(*this, "sum", total, std::span(&x, 1), 0.0f, {});
}

void CudaOps::grad_norm(Tensor result, std::span<const Tensor> gradients, float max_norm, Tensor guard) {
  double bytes = 0;
  for (const Tensor& gradient : gradients) bytes += bytes_of(gradient);
  const OpScope scope(profiler_, OpKind::GradNorm, "grad_norm", bytes);
  sum_all<true>(*this, "grad_norm", result, gradients, max_norm, guard);
}

}  // namespace octet
