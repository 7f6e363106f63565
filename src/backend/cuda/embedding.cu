#include "backend/cuda/device/tile_kernel.cuh"
#include "backend/cuda/scatter_add.h"

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
    scatter_add(*this, op, table, dx, ids, {});
  };
  if (dwte) add(dwte, tokens);
  if (dwpe) add(dwpe, positions);
}

}  // namespace octet
