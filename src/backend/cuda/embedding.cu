#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "backend/cuda/device/tile_kernel.cuh"

namespace octet {
namespace device {
namespace {

constexpr int kEmbeddingThreads = 256;

template <class T, bool vector>
__global__ void embedding_forward_kernel(T* x, const int32_t* tokens, const int32_t* positions, const T* wte,
                                         const T* wpe, int64_t rows, int64_t width) {
  const int64_t packs = (width + 7) / 8;
  for (int64_t i = blockIdx.x * static_cast<int64_t>(kEmbeddingThreads) + threadIdx.x; i < rows * packs;
       i += static_cast<int64_t>(gridDim.x) * kEmbeddingThreads) {
    const int64_t row = i / packs, col = i % packs * 8, count = width - col;
    Pack8<T> value = load8<vector>(wte + tokens[row] * width + col, count);
    if (wpe) {
      const Pack8<T> place = load8<vector>(wpe + positions[row] * width + col, count);
      float v[8];
      value.unpack(v);
#pragma unroll
      for (int j = 0; j < 8; ++j) v[j] += place.at(j);
      value = Pack8<T>::pack(v);
    }
    store8<vector>(x + row * width + col, value, count);
  }
}

__global__ void number_rows_kernel(int32_t* rows, int64_t count) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i < count) rows[i] = static_cast<int32_t>(i);
}

// One block per place in the sorted ids. A block at the beginning of a run of equal ids sums the run's rows, in row
// order.
template <class G, class T, bool vector>
__global__ void scatter_add_kernel(G* table, const T* dx, const int32_t* ids, const int32_t* origins,
                                   int64_t count, int64_t width) {
  const int64_t first = blockIdx.x;
  const int32_t id = ids[first];
  if (first > 0 && ids[first - 1] == id) return;
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
      const Pack8<T> row = load8<vector>(dx + origins[i] * width + col, left);
#pragma unroll
      for (int j = 0; j < 8; ++j) sum[j] += row.at(j);
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

void CudaOps::embedding_forward(Tensor x, Tensor tokens, Tensor positions, Tensor wte, Tensor wpe) {
  constexpr const char* op = "embedding_forward";
  const OpScope scope(profiler_, OpKind::Embedding, op, 2 * bytes_of(x));
  const int64_t rows = x.rows(), width = x.cols();
  require(tokens.numel() == rows && tokens.dtype == DType::I32, "[cuda] {}: {} tokens for {} rows", op,
          tokens.numel(), rows);
  require(
      wte.cols() == width && wte.dtype == x.dtype && (!wpe || (wpe.cols() == width && wpe.dtype == x.dtype)),
      "[cuda] {}: tables {} and {}, expected width {} in {}", op, wte.shape.to_string(),
      wpe.shape.to_string(), width, name_of(x.dtype));
  require(!wpe || (positions.numel() == rows && positions.dtype == DType::I32),
          "[cuda] {}: {} positions for {} rows", op, positions.numel(), rows);
  if (x.numel() == 0) return;
  dispatch_real(op, x.dtype, [&]<class T>(T) {
    const bool vector = width % 8 == 0 && aligned16(x.data) && aligned16(wte.data) && aligned16(wpe.data);
    const auto kernel =
        vector ? device::embedding_forward_kernel<T, true> : device::embedding_forward_kernel<T, false>;
    const int64_t blocks =
        std::min<int64_t>(div_up(rows * div_up(width, 8), device::kEmbeddingThreads), 32 * sm_count());
    kernel<<<narrow<unsigned>(blocks), device::kEmbeddingThreads, 0, stream()>>>(
        static_cast<T*>(x.data), static_cast<const int32_t*>(tokens.data),
        static_cast<const int32_t*>(positions.data), static_cast<const T*>(wte.data),
        static_cast<const T*>(wpe.data), rows, width);
    check_launch(op);
  });
}

void CudaOps::embedding_backward(Tensor dwte, Tensor dwpe, Tensor dx, Tensor tokens, Tensor positions) {
  constexpr const char* op = "embedding_backward";
  const OpScope scope(profiler_, OpKind::Embedding, op, bytes_of(dx));
  const int64_t rows = dx.rows(), width = dx.cols();
  if (dx.numel() == 0) return;
  const auto add = [&](const Tensor& table, const Tensor& ids) {
    require(ids.numel() == rows && ids.dtype == DType::I32 && table.cols() == width,
            "[cuda] {}: {} ids for {} rows, table {}", op, ids.numel(), rows, table.shape.to_string());
    const int count = narrow<int>(rows);
    Scratch space = scratch(op);
    auto* numbers = space.take<int32_t>(rows);
    auto* sorted = space.take<int32_t>(rows);
    auto* origins = space.take<int32_t>(rows);
    const auto* keys = static_cast<const int32_t*>(ids.data);
    const int bits = std::bit_width(static_cast<uint64_t>(std::max<int64_t>(table.rows() - 1, 1)));
    size_t bytes = 0;
    cuda_check(cub::DeviceRadixSort::SortPairs(nullptr, bytes, keys, sorted, numbers, origins, count, 0, bits,
                                               stream()),
               op);
    void* memory = space.take<std::byte>(static_cast<int64_t>(bytes));
    device::number_rows_kernel<<<narrow<unsigned>(div_up(rows, 256)), 256, 0, stream()>>>(numbers, rows);
    check_launch(op);
    cuda_check(cub::DeviceRadixSort::SortPairs(memory, bytes, keys, sorted, numbers, origins, count, 0, bits,
                                               stream()),
               op);
    const bool vector = width % 8 == 0 && aligned16(dx.data) && aligned16(table.data);
    const auto threads = narrow<unsigned>(std::clamp<int64_t>(round_up(div_up(width, 8), 32), 32, 512));
    dispatch_real(op, table.dtype, [&]<class G>(G) {
      dispatch_real(op, dx.dtype, [&]<class T>(T) {
        const auto kernel =
            vector ? device::scatter_add_kernel<G, T, true> : device::scatter_add_kernel<G, T, false>;
        kernel<<<narrow<unsigned>(rows), threads, 0, stream()>>>(
            static_cast<G*>(table.data), static_cast<const T*>(dx.data), sorted, origins, rows, width);
      });
    });
    check_launch(op);
  };
  if (dwte) add(dwte, tokens);
  if (dwpe) add(dwpe, positions);
}

}  // namespace octet
