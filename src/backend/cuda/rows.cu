#include "backend/cuda/device/tile_kernel.cuh"
#include "backend/cuda/scatter_add.h"
#include "backend/op_checks.h"

namespace octet {
namespace device {
namespace {

constexpr int kThreads = 256;

// to[i] = from[rows[i]], or zeros where there is no such row. A row is `words` of V, and a warp copies one row at a
// time.
template <class V>
__global__ void __launch_bounds__(kThreads)
    copy_rows_kernel(V* to, const V* from, const int32_t* rows, int64_t count, int words) {
  constexpr int kWarps = kThreads / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  for (int64_t i = blockIdx.x * static_cast<int64_t>(kWarps) + warp; i < count;
       i += static_cast<int64_t>(gridDim.x) * kWarps) {
    const int64_t row = rows[i];
    const V* source = from + (row >= 0 ? row : 0) * words;
    V* target = to + i * words;
#pragma unroll 4
    for (int word = lane; word < words; word += 32) target[word] = row >= 0 ? source[word] : V{};
  }
}

// to[i] += factors[i] * from[rows[i]]. A warp adds one row at a time.
template <class To, class From, bool vector>
__global__ void __launch_bounds__(kThreads)
    add_scaled_rows_kernel(To* to, const From* from, const int32_t* rows, const float* factors, int64_t count,
                           int64_t width) {
  constexpr int kWarps = kThreads / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  for (int64_t i = blockIdx.x * static_cast<int64_t>(kWarps) + warp; i < count;
       i += static_cast<int64_t>(gridDim.x) * kWarps) {
    const int64_t row = rows[i];
    if (row < 0) continue;
    const float factor = factors[i];
    for (int64_t col = 8 * lane; col < width; col += 8 * 32) {
      const int64_t left = width - col;
      To* out = to + i * width + col;
      const Pack8<From> in = load8<vector>(from + row * width + col, left);
      float v[8];
      load8<vector>(static_cast<const To*>(out), left).unpack(v);
#pragma unroll
      for (int j = 0; j < 8; ++j) v[j] = fmaf(factor, in.at(j), v[j]);
      store8<vector>(out, Pack8<To>::pack(v), left);
    }
  }
}

// to[i] += column[i] * (factor * row). A warp adds to one row at a time.
template <class To, bool vector>
__global__ void __launch_bounds__(kThreads) add_outer_kernel(To* to, const float* column, const float* row,
                                                             float factor, int64_t count, int64_t width) {
  constexpr int kWarps = kThreads / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  for (int64_t i = blockIdx.x * static_cast<int64_t>(kWarps) + warp; i < count;
       i += static_cast<int64_t>(gridDim.x) * kWarps) {
    const float scale = column ? column[i] : 1.0f;
    for (int64_t col = 8 * lane; col < width; col += 8 * 32) {
      const int64_t left = width - col;
      To* out = to + i * width + col;
      const Pack8<float> in = load8<vector>(row + col, left);
      float v[8];
      load8<vector>(static_cast<const To*>(out), left).unpack(v);
#pragma unroll
      for (int j = 0; j < 8; ++j) v[j] = fmaf(scale, factor * in.at(j), v[j]);
      store8<vector>(out, Pack8<To>::pack(v), left);
    }
  }
}

// places[rows[i]] = i.
__global__ void invert_rows_kernel(int32_t* places, const int32_t* rows, int64_t count) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  if (i < count && rows[i] >= 0) places[rows[i]] = static_cast<int32_t>(i);
}

}  // namespace
}  // namespace device

namespace {

void copy_rows(CudaOps& ops, const char* op, const Tensor& to, const Tensor& from, const int32_t* rows) {
  const int64_t row_bytes = to.cols() * static_cast<int64_t>(size_of(to.dtype));
  const auto launch = [&]<class V>(V) {
    const int64_t words = row_bytes / static_cast<int64_t>(sizeof(V));
    const int64_t blocks = std::min<int64_t>(div_up(to.rows(), device::kThreads / 32), 32 * ops.sm_count());
    device::copy_rows_kernel<<<narrow<unsigned>(blocks), device::kThreads, 0, ops.stream()>>>(
        static_cast<V*>(to.data), static_cast<const V*>(from.data), rows, to.rows(), narrow<int>(words));
  };
  if (row_bytes % 16 == 0 && aligned16(to.data) && aligned16(from.data)) {
    launch(uint4{});
  } else if (size_of(to.dtype) == 4) {
    launch(uint32_t{});
  } else {
    launch(uint16_t{});
  }
  check_launch(op);
}

}  // namespace

void CudaOps::gather_rows(Tensor to, Tensor from, Tensor rows) {
  constexpr const char* op = "gather_rows";
  check_rows(op, to, from, rows);
  const OpScope scope(profiler_, OpKind::Embedding, op, 2 * bytes_of(to));
  if (to.numel() == 0) return;
  copy_rows(*this, op, to, from, static_cast<const int32_t*>(rows.data));
}

// First which row each row of `to` comes from, so that every row is written once.
void CudaOps::scatter_rows(Tensor to, Tensor from, Tensor rows) {
  constexpr const char* op = "scatter_rows";
  check_rows(op, from, to, rows);
  const OpScope scope(profiler_, OpKind::Embedding, op, bytes_of(to, from));
  if (to.numel() == 0) return;
  Scratch space = scratch(op);
  auto* places = space.take<int32_t>(to.rows());
  const auto bytes = static_cast<size_t>(to.rows()) * sizeof(int32_t);
  cuda_check(cudaMemsetAsync(places, 0xFF, bytes, stream()), op);  // -1
  if (from.rows() > 0) {
    const auto blocks = narrow<unsigned>(div_up(from.rows(), device::kThreads));
    device::invert_rows_kernel<<<blocks, device::kThreads, 0, stream()>>>(
        places, static_cast<const int32_t*>(rows.data), from.rows());
    check_launch(op);
  }
  copy_rows(*this, op, to, from, places);
}

void CudaOps::add_scaled_rows(Tensor to, Tensor from, Tensor rows, Tensor factors) {
  constexpr const char* op = "add_scaled_rows";
  check_scaled_rows(op, to, from, rows, factors);
  const OpScope scope(profiler_, OpKind::Loss, op, 3 * bytes_of(to));
  if (to.numel() == 0) return;
  const int64_t width = to.cols();
  const bool vector = width % 8 == 0 && aligned16(to.data) && aligned16(from.data);
  const int64_t blocks = std::min<int64_t>(div_up(to.rows(), device::kThreads / 32), 32 * sm_count());
  dispatch_real(op, to.dtype, [&]<class To>(To) {
    dispatch_real(op, from.dtype, [&]<class From>(From) {
      const auto kernel = vector ? device::add_scaled_rows_kernel<To, From, true>
                                 : device::add_scaled_rows_kernel<To, From, false>;
      kernel<<<narrow<unsigned>(blocks), device::kThreads, 0, stream()>>>(
          static_cast<To*>(to.data), static_cast<const From*>(from.data),
          static_cast<const int32_t*>(rows.data), static_cast<const float*>(factors.data), to.rows(), width);
    });
  });
  check_launch(op);
}

void CudaOps::add_to_rows(Tensor to, Tensor from, Tensor rows, Tensor factors) {
  constexpr const char* op = "add_to_rows";
  check_scaled_rows(op, from, to, rows, factors);
  const OpScope scope(profiler_, OpKind::Loss, op, bytes_of(from));
  scatter_add(*this, op, to, from, rows, factors);
}

void CudaOps::add_outer(Tensor to, Tensor column, Tensor row, float factor) {
  constexpr const char* op = "add_outer";
  check_outer(to, column, row);
  const OpScope scope(profiler_, OpKind::Loss, op, 2 * bytes_of(to));
  if (to.numel() == 0) return;
  const int64_t width = to.cols();
  const bool vector = width % 8 == 0 && aligned16(to.data) && aligned16(row.data);
  const int64_t blocks = std::min<int64_t>(div_up(to.rows(), device::kThreads / 32), 32 * sm_count());
  dispatch_real(op, to.dtype, [&]<class To>(To) {
    const auto kernel = vector ? device::add_outer_kernel<To, true> : device::add_outer_kernel<To, false>;
    kernel<<<narrow<unsigned>(blocks), device::kThreads, 0, stream()>>>(
        static_cast<To*>(to.data), static_cast<const float*>(column.data),
        static_cast<const float*>(row.data), factor, to.rows(), width);
  });
  check_launch(op);
}

}  // namespace octet
