#include "backend/cuda/scatter_add.h"

#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "backend/cuda/device/tile_kernel.cuh"

namespace octet {
namespace device {
namespace {

__global__ void number_rows_kernel(int32_t* rows, int64_t count) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i < count) rows[i] = static_cast<int32_t>(i);
}

// One block per place in the sorted ids, of which those without an id (-1) are last. A block at the beginning of a run of
// equal ids sums the run's rows, in row order.
template <class G, class T, bool vector>
__global__ void scatter_add_kernel(G* table, const T* x, const int32_t* ids, const int32_t* origins,
                                   const float* factors, int64_t count, int64_t width) {
  const int64_t first = blockIdx.x;
  const int32_t id = ids[first];
  if (id < 0 || (first > 0 && ids[first - 1] == id)) return;
  int64_t last = first + 1;  // one past the run
  if (last < count && ids[last] == id) {
    int64_t high = count;
    while (last < high) {
      const int64_t middle = (last + high) / 2;
      if (ids[middle] == id) {
        last = middle + 1;
      } else {
        high = middle;
      }
    }
  }
  for (int64_t col = 8 * static_cast<int64_t>(threadIdx.x); col < width;
       col += 8 * static_cast<int64_t>(blockDim.x)) {
    const int64_t left = width - col;
    float sum[8] = {};
#pragma unroll 8
    for (int64_t i = first; i < last; ++i) {
      const int64_t origin = origins[i];
      const Pack8<T> row = load8<vector>(x + origin * width + col, left);
      const float factor = factors ? factors[origin] : 1.0f;
#pragma unroll
      for (int j = 0; j < 8; ++j) sum[j] = fmaf(factor, row.at(j), sum[j]);
    }
    G* out = table + id * width + col;
    float v[8];
    load8<vector>(static_cast<const G*>(out), left).unpack(v);
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] += sum[j];
    store8<vector>(out, Pack8<G>::pack(v), left);
  }
}

}  // namespace
}  // namespace device

void scatter_add(CudaOps& ops, const char* op, const Tensor& table, const Tensor& x, const Tensor& ids,
                 const Tensor& factors) {
  const int64_t rows = x.rows(), width = x.cols();
  if (x.numel() == 0) return;
  const int count = narrow<int>(rows);
  Scratch space = ops.scratch(op);
  auto* numbers = space.take<int32_t>(rows);
  auto* sorted = space.take<int32_t>(rows);
  auto* origins = space.take<int32_t>(rows);
  // Compared as unsigned numbers of one bit more than an id needs, so that -1 comes after all ids.
  const auto* keys = static_cast<const uint32_t*>(ids.data);
  auto* sorted_keys = reinterpret_cast<uint32_t*>(sorted);
  const int bits = std::bit_width(static_cast<uint64_t>(std::max<int64_t>(table.rows() - 1, 1))) + 1;
  const auto sort = [&](void* memory, size_t& bytes) {
    cuda_check(cub::DeviceRadixSort::SortPairs(memory, bytes, keys, sorted_keys, numbers, origins, count, 0,
                                               bits, ops.stream()),
               op);
  };
  size_t bytes = 0;
  sort(nullptr, bytes);
  void* memory = space.take<std::byte>(static_cast<int64_t>(bytes));
  device::number_rows_kernel<<<narrow<unsigned>(div_up(rows, 256)), 256, 0, ops.stream()>>>(numbers, rows);
  check_launch(op);
  sort(memory, bytes);
  const bool vector = width % 8 == 0 && aligned16(x.data) && aligned16(table.data);
  const auto threads = narrow<unsigned>(std::clamp<int64_t>(round_up(div_up(width, 8), 32), 32, 512));
  dispatch_real(op, table.dtype, [&]<class G>(G) {
    dispatch_real(op, x.dtype, [&]<class T>(T) {
      const auto kernel =
          vector ? device::scatter_add_kernel<G, T, true> : device::scatter_add_kernel<G, T, false>;
      kernel<<<narrow<unsigned>(rows), threads, 0, ops.stream()>>>(
          static_cast<G*>(table.data), static_cast<const T*>(x.data), sorted, origins,
          static_cast<const float*>(factors.data), rows, width);
    });
  });
  check_launch(op);
}

}  // namespace octet
