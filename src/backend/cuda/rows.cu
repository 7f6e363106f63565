#include "backend/cuda/device/tile_kernel.cuh"
#include "backend/cuda/scatter_add.h"
#include "backend/op_checks.h"
#include "ops/stochastic.h"

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

// to[i] += column[i] * (factor * row). A thread keeps eight columns of the row and walks down, four rows at a time.
template <class To, bool vector>
__global__ void __launch_bounds__(kThreads)
    add_outer_kernel(To* __restrict__ to, const float* __restrict__ column, const float* __restrict__ row,
                     float factor, int64_t count, int64_t width) {
  constexpr int kWarps = kThreads / 32, kAhead = 4;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t col = 8 * (32ll * blockIdx.x + lane), left = width - col;
  if (left <= 0) return;
  float scaled[8];
  load8<vector>(row + col, left).unpack(scaled);
#pragma unroll
  for (int j = 0; j < 8; ++j) scaled[j] *= factor;
  const int64_t step = static_cast<int64_t>(gridDim.y) * kWarps;
  for (int64_t first = static_cast<int64_t>(blockIdx.y) * kWarps + warp; first < count;
       first += kAhead * step) {
    Pack8<To> values[kAhead];
    float scales[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int64_t i = first + a * step;
      if (i >= count) break;
      values[a] = load8<vector>(static_cast<const To*>(to + i * width + col), left);
      scales[a] = column ? column[i] : 1.0f;
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int64_t i = first + a * step;
      if (i >= count) break;
      float v[8];
      values[a].unpack(v);
#pragma unroll
      for (int j = 0; j < 8; ++j) v[j] = fmaf(scales[a], scaled[j], v[j]);
      store8<vector>(to + i * width + col, Pack8<To>::pack(v), left);
    }
  }
}

// partials[y] = factor * (sum over the rows of block y of factors[i] * from[i]). A thread adds up eight columns, and the
// warps of a block take turns.
template <class From, bool vector>
__global__ void __launch_bounds__(kThreads)
    column_sum_kernel(float* partials, const From* __restrict__ from, const float* __restrict__ factors,
                      float factor, int64_t count, int64_t width) {
  constexpr int kWarps = kThreads / 32, kAhead = 4;
  static_assert(kThreads == 8 * 32, "at the end a thread has one column");
  __shared__ float sums[kWarps][8 * 32];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t col = 8 * (32ll * blockIdx.x + lane), left = width - col;
  float total[8] = {};
  if (left > 0) {
    const int64_t step = static_cast<int64_t>(gridDim.y) * kWarps;
    for (int64_t first = static_cast<int64_t>(blockIdx.y) * kWarps + warp; first < count;
         first += kAhead * step) {
      Pack8<From> values[kAhead];
      float scales[kAhead];
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        const int64_t i = first + a * step;
        if (i >= count) break;
        values[a] = load8<vector>(from + i * width + col, left);
        scales[a] = factors ? factors[i] : 1.0f;
      }
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        if (first + a * step >= count) break;
        float v[8];
        values[a].unpack(v);
#pragma unroll
        for (int j = 0; j < 8; ++j) total[j] = fmaf(scales[a], v[j], total[j]);
      }
    }
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) sums[warp][8 * lane + j] = total[j];
  __syncthreads();
  float sum = 0.0f;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sum += sums[w][threadIdx.x];
  const int64_t column = 8 * 32ll * blockIdx.x + threadIdx.x;
  if (column < width) partials[blockIdx.y * width + column] = factor * sum;
}

// to[i] += factor * row where there is a target. A thread keeps eight columns of the row and walks down. Nothing is
// contracted, so that the results have the bits of the CPU's.
template <class To, bool vector>
__global__ void __launch_bounds__(kThreads)
    shift_rows_kernel(To* __restrict__ to, const float* __restrict__ row, const int32_t* __restrict__ targets,
                      float factor, int64_t count, int64_t width) {
  constexpr int kWarps = kThreads / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t group = 32ll * blockIdx.x + lane, groups = (width + 7) / 8;
  const int64_t col = 8 * group, left = width - col;
  if (left <= 0) return;
  float shift[8];
  load8<vector>(row + col, left).unpack(shift);
#pragma unroll
  for (int j = 0; j < 8; ++j) shift[j] = __fmul_rn(factor, shift[j]);
#pragma unroll 2
  for (int64_t i = static_cast<int64_t>(blockIdx.y) * kWarps + warp; i < count;
       i += static_cast<int64_t>(gridDim.y) * kWarps) {
    if (targets[i] < 0) continue;
    To* out = to + i * width + col;
    float v[8];
    load8<vector>(static_cast<const To*>(out), left).unpack(v);
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = __fadd_rn(v[j], shift[j]);
    if constexpr (sizeof(To) == 2) {
      const RoundingBits noise = shift_noise(i, groups, group);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const uint32_t rounded = uint32_t{to_bf16_stochastic(v[j], noise.weight(j))} << 16;
        if (isfinite(v[j])) v[j] = __uint_as_float(rounded);
      }
    }
    store8<vector>(out, Pack8<To>::pack(v), left);
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

// For kernels whose threads keep eight columns and walk down: about `blocks` blocks, or fewer, so that a warp has four
// rows.
dim3 walking_grid(const Tensor& x, int64_t blocks) {
  const int64_t across = div_up(x.cols(), 8 * 32);
  const int64_t down = std::clamp<int64_t>(blocks / across, 1, div_up(x.rows(), 4 * device::kThreads / 32));
  return {narrow<unsigned>(across), narrow<unsigned>(down)};
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
  const dim3 grid = walking_grid(to, 16 * sm_count());
  dispatch_real(op, to.dtype, [&]<class To>(To) {
    const auto kernel = vector ? device::add_outer_kernel<To, true> : device::add_outer_kernel<To, false>;
    kernel<<<grid, device::kThreads, 0, stream()>>>(
        static_cast<To*>(to.data), static_cast<const float*>(column.data),
        static_cast<const float*>(row.data), factor, to.rows(), width);
  });
  check_launch(op);
}

void CudaOps::add_column_sum(Tensor column_sum, Tensor x, Tensor factors, float factor) {
  constexpr const char* op = "add_column_sum";
  check_column_sum(column_sum, x, factors);
  const OpScope scope(profiler_, OpKind::Other, op, bytes_of(x));
  if (x.numel() == 0) return;
  const int64_t width = x.cols();
  const bool vector = width % 8 == 0 && aligned16(x.data);
  const dim3 grid = walking_grid(x, 8 * sm_count());
  Scratch space = scratch(op);
  auto* partials = space.take<float>(grid.y * width);
  dispatch_real(op, x.dtype, [&]<class T>(T) {
    const auto kernel = vector ? device::column_sum_kernel<T, true> : device::column_sum_kernel<T, false>;
    kernel<<<grid, device::kThreads, 0, stream()>>>(partials, static_cast<const T*>(x.data),
                                                    static_cast<const float*>(factors.data), factor, x.rows(),
                                                    width);
  });
  check_launch(op);
  add_partials(*this, {{column_sum, partials}}, grid.y, width, op);
}

void CudaOps::shift_rows(Tensor to, Tensor row, Tensor targets, float factor) {
  constexpr const char* op = "shift_rows";
  check_shift_rows(to, row, targets);
  const OpScope scope(profiler_, OpKind::Loss, op, 2 * bytes_of(to));
  if (to.numel() == 0) return;
  const int64_t width = to.cols();
  const bool vector = width % 8 == 0 && aligned16(to.data) && aligned16(row.data);
  const dim3 grid = walking_grid(to, 16 * sm_count());
  dispatch_real(op, to.dtype, [&]<class To>(To) {
    const auto kernel = vector ? device::shift_rows_kernel<To, true> : device::shift_rows_kernel<To, false>;
    kernel<<<grid, device::kThreads, 0, stream()>>>(
        static_cast<To*>(to.data), static_cast<const float*>(row.data),
        static_cast<const int32_t*>(targets.data), factor, to.rows(), width);
  });
  check_launch(op);
}

}  // namespace octet
