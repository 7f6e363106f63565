#include "backend/cuda/norm_strip.cuh"

#include <algorithm>
#include <limits>

#include "backend/cuda/norm.cuh"
#include "backend/cuda_workspace.h"

namespace octet::device {
namespace {

// ---- forward ----

// Rounded once. The bits equal those of an fp32 sum rounded to bf16: the fp32 sum is inexact only if the smaller
// number is too small to decide a tie.
__device__ __forceinline__ Pack8<Bf16> add(const Pack8<Bf16>& a, const Pack8<Bf16>& b) {
  const auto add2 = [](uint32_t x, uint32_t y) {
    const __nv_bfloat162 sum =
        __hadd2(*reinterpret_cast<__nv_bfloat162*>(&x), *reinterpret_cast<__nv_bfloat162*>(&y));
    return *reinterpret_cast<const uint32_t*>(&sum);
  };
  return {make_uint4(add2(a.raw.x, b.raw.x), add2(a.raw.y, b.raw.y), add2(a.raw.z, b.raw.z),
                     add2(a.raw.w, b.raw.w))};
}

template <bool layer_norm, int step_rows>
__global__ void __launch_bounds__(kStripThreads<step_rows>, 1)
    norm_forward_strip_kernel(const __grid_constant__ NormForwardArgs<Bf16> args) {
  Strip<step_rows> strip(args.rows, args.width, args.delta ? 2 : 1, args.cast.colwise);
  StripOutput<step_rows> output(strip, args.cast, args.y);
  const auto width = static_cast<float>(args.width);
  float gain[8] = {}, bias[8] = {};
  if (strip.column_inside) {
    Pack8<Bf16>::load(args.gain + strip.col).unpack(gain);
    if (layer_norm && args.bias) Pack8<Bf16>::load(args.bias + strip.col).unpack(bias);
  }
  const auto fetch = [&](const StripStep& step) {
    if (step.row >= strip.rows) return;
#pragma unroll
    for (int r = 0; r < step_rows; ++r) strip.fetch(0, r, args.x, step);
    if (args.delta) {
#pragma unroll
      for (int r = 0; r < step_rows; ++r) strip.fetch(1, r, args.delta, step);
    }
  };

  StripStep next = strip.first();
  fetch(next);
  while (next.row < strip.rows) {
    const StripStep step = next;
    next = strip.after(step);
    copy_async_wait_all();
    Pack8<Bf16> values[step_rows];
#pragma unroll
    for (int r = 0; r < step_rows; ++r) values[r] = strip.fetched(0, r);
    if (args.delta) {
#pragma unroll
      for (int r = 0; r < step_rows; ++r) values[r] = add(values[r], strip.fetched(1, r));
    }
    fetch(next);
    if (args.delta) {
#pragma unroll
      for (int r = 0; r < step_rows; ++r) {
        if (r < step.valid) values[r].store(args.residual + strip.place(step, r));
      }
    }

    float v[step_rows][8];
    float sums[step_rows] = {};  // of the values for LayerNorm, of their squares for RmsNorm
#pragma unroll
    for (int r = 0; r < step_rows; ++r) {
      values[r].unpack(v[r]);
#pragma unroll
      for (int j = 0; j < 8; ++j) sums[r] += layer_norm ? v[r][j] : v[r][j] * v[r][j];
    }
    // Each lane has the statistics of one row.
    float variance = strip.block_sum(sums) / width;
    const int stat_row = step.row + strip.lane / (32 / step_rows);
    const bool stores_stats = strip.warp == 0 && strip.lane % (32 / step_rows) == 0 && stat_row < strip.rows;
    if constexpr (layer_norm) {
      const float mean = variance;
      if (stores_stats) args.mean[stat_row] = mean;
      float squares[step_rows] = {};
#pragma unroll
      for (int r = 0; r < step_rows; ++r) {
        const float row_mean = strip.template value_of<step_rows>(mean, r);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          v[r][j] -= row_mean;
          squares[r] += v[r][j] * v[r][j];
        }
        if (!strip.column_inside) squares[r] = 0.0f;
      }
      variance = strip.block_sum(squares) / width;
    }
    const float inv = 1.0f / sqrtf(variance + args.epsilon);
    if (stores_stats) args.inv[stat_row] = inv;

#pragma unroll
    for (int r = 0; r < step_rows; ++r) {
      const float row_inv = strip.template value_of<step_rows>(inv, r);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        v[r][j] = normed_value<layer_norm>(v[r][j], row_inv, gain[j], bias[j]);
      }
      values[r] = Pack8<Bf16>::pack(v[r]);
    }
    output.write(values, step);
  }
  if (args.cast.record) record_amax(output.amax(), args.cast, gridDim.x);
}

// ---- backward ----

template <bool layer_norm, int step_rows>
__global__ void __launch_bounds__(kStripThreads<step_rows>, 1)
    norm_backward_strip_kernel(const __grid_constant__ NormBackwardArgs<Bf16> args) {
  constexpr int kDy = 0, kX = 1, kBefore = 2;  // in shared memory
  constexpr int kSums = layer_norm ? 2 * step_rows : step_rows;
  Strip<step_rows> strip(args.rows, args.width, 3, args.cast.colwise);
  StripOutput<step_rows> output(strip, args.cast, args.store ? args.dresidual : nullptr);
  const auto width = static_cast<float>(args.width);
  float gain[8] = {};
  if (strip.column_inside) Pack8<Bf16>::load(args.gain + strip.col).unpack(gain);
  float gain_sums[8] = {}, bias_sums[8] = {}, column_sums[8] = {};

  float next_inv = 0.0f, next_mean = 0.0f;  // of the row lane % step_rows
  const auto fetch = [&](const StripStep& step) {
    if (step.row >= strip.rows) return;
#pragma unroll
    for (int r = 0; r < step_rows; ++r) {
      strip.fetch(kDy, r, args.dy, step);
      strip.fetch(kX, r, args.residual, step);
    }
    const int row = step.row + strip.lane % step_rows;
    next_inv = row < strip.rows ? args.inv[row] : 0.0f;
    if (layer_norm) next_mean = row < strip.rows ? args.mean[row] : 0.0f;
  };

  // Row by row and later than the others, because there are no registers for it during the reduction.
  const auto fetch_before = [&](int r, const StripStep& step) {
    if (step.row < strip.rows) strip.fetch(kBefore, r, args.dresidual, step);
  };

  StripStep next = strip.first();
  fetch(next);
#pragma unroll
  for (int r = 0; r < step_rows; ++r) fetch_before(r, next);
  while (next.row < strip.rows) {
    const StripStep step = next;
    next = strip.after(step);
    copy_async_wait_all();
    Pack8<Bf16> dys[step_rows], xs[step_rows];
    float invs[step_rows], means[step_rows];
#pragma unroll
    for (int r = 0; r < step_rows; ++r) {
      dys[r] = strip.fetched(kDy, r);
      xs[r] = strip.fetched(kX, r);
      invs[r] = __shfl_sync(0xFFFFFFFFu, next_inv, r);
      means[r] = layer_norm ? __shfl_sync(0xFFFFFFFFu, next_mean, r) : 0.0f;
    }
    fetch(next);

    // Sums of g * (x - mean) and, for LayerNorm, of g = dy * gain.
    float sums[kSums] = {};
#pragma unroll
    for (int r = 0; r < step_rows; ++r) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float dy = dys[r].at(j);
        const float product = dy * (layer_norm ? xs[r].at(j) - means[r] : xs[r].at(j));
        gain_sums[j] += product * invs[r];
        sums[r] += product * gain[j];
        if constexpr (layer_norm) {
          bias_sums[j] += dy;
          sums[step_rows + r] += dy * gain[j];
        }
      }
    }
    const float row_means = strip.block_sum(sums) / width;

    Pack8<Bf16> values[step_rows];
#pragma unroll
    for (int r = 0; r < step_rows; ++r) {
      const float inv = invs[r];
      const float slope = inv * inv * strip.template value_of<kSums>(row_means, r);
      const float mean_g = layer_norm ? strip.template value_of<kSums>(row_means, step_rows + r) : 0.0f;
      float v[8];
      strip.fetched(kBefore, r).unpack(v);
      fetch_before(r, next);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float g = dys[r].at(j) * gain[j];
        const float centred = layer_norm ? xs[r].at(j) - means[r] : xs[r].at(j);
        v[j] += inv * ((layer_norm ? g - mean_g : g) - centred * slope);
      }
      values[r] = Pack8<Bf16>::pack(v);
    }
    if (args.column_sums) {
#pragma unroll
      for (int r = 0; r < step_rows; ++r) {
#pragma unroll
        for (int j = 0; j < 8; ++j) column_sums[j] += values[r].at(j);
      }
    }
    output.write(values, step);
  }

  const auto write_sums = [&](float* sums, const float(&values)[8]) {
    if (sums && strip.column_inside) {
      Pack8<float>::pack(values).store(sums + blockIdx.x * args.width + strip.col);
    }
  };
  write_sums(args.gain_sums, gain_sums);
  write_sums(args.bias_sums, bias_sums);
  write_sums(args.column_sums, column_sums);
  if (args.cast.record) record_amax(output.amax(), args.cast, gridDim.x);
}

// ---- launch ----

using ForwardKernel = void (*)(NormForwardArgs<Bf16>);
using BackwardKernel = void (*)(NormBackwardArgs<Bf16>);

int threads_for(int64_t width) {
  return static_cast<int>(round_up(width / 8, 32));
}
int step_rows_for(int64_t width) {
  return threads_for(width) <= kStripThreads<4> ? 4 : 2;
}

ForwardKernel forward_kernel(NormKind kind, int64_t width) {
  const bool layer_norm = kind == NormKind::LayerNorm;
  if (step_rows_for(width) == 4) {
    return layer_norm ? norm_forward_strip_kernel<true, 4> : norm_forward_strip_kernel<false, 4>;
  }
  return layer_norm ? norm_forward_strip_kernel<true, 2> : norm_forward_strip_kernel<false, 2>;
}

BackwardKernel backward_kernel(NormKind kind, int64_t width) {
  const bool layer_norm = kind == NormKind::LayerNorm;
  if (step_rows_for(width) == 4) {
    return layer_norm ? norm_backward_strip_kernel<true, 4> : norm_backward_strip_kernel<false, 4>;
  }
  return layer_norm ? norm_backward_strip_kernel<true, 2> : norm_backward_strip_kernel<false, 2>;
}

// How many blocks per multiprocessor share the groups of rows. The time is that of the groups of one multiprocessor,
// one after another. But a round with few blocks left takes as long as one block alone, which mostly waits for memory
// if rows are short.
int64_t best_residency(int64_t groups, int64_t width, int64_t multiprocessors, int64_t most) {
  constexpr int64_t kLoneWidth = 2048;
  int64_t best = 1, best_time = std::numeric_limits<int64_t>::max();
  for (int64_t resident = 1; resident <= most; ++resident) {
    const int64_t round = resident * multiprocessors, left = groups % round;
    int64_t time = groups / round * resident * width;
    if (left > 0) time += std::max(div_up(left, multiprocessors) * width, kLoneWidth);
    if (time <= best_time) best = resident, best_time = time;
  }
  return best;
}

template <class Kernel>
std::optional<StripLaunch> plan_strips(const CudaOps& ops, const char* op, Kernel kernel, int64_t rows,
                                       int64_t width, int tensors, bool colwise) {
  const int threads = threads_for(width), step_rows = step_rows_for(width);
  if (threads > kStripThreads<2> || rows * width > kMostStripElements) return {};
  const int shared =
      threads / 32 * strip_warp_bytes(tensors, step_rows, colwise) + strip_sum_bytes(step_rows, threads / 32);
  if (shared > allow_all_shared(reinterpret_cast<const void*>(kernel), op)) return {};
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                  cudaSharedmemCarveoutMaxShared),
             op);
  int resident = 0;
  cuda_check(
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, threads, static_cast<size_t>(shared)),
      op);
  const int64_t groups = div_up(rows, colwise ? kStripGroup : step_rows);
  const int64_t most = std::min<int64_t>(resident, std::max<int64_t>(kNormStripColumns / width, 1));
  const int64_t blocks = ops.sm_count() * best_residency(groups, width, ops.sm_count(), most);
  return StripLaunch{.blocks = narrow<unsigned>(std::min(blocks, groups)),
                     .threads = static_cast<unsigned>(threads),
                     .shared = shared};
}

}  // namespace

int allow_all_shared(const void* kernel, const char* op) {
  int device = 0, limit = 0;
  cuda_check(cudaGetDevice(&device), op);
  cuda_check(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), op);
  cudaFuncAttributes attributes{};
  cuda_check(cudaFuncGetAttributes(&attributes, kernel), op);
  limit -= narrow<int>(attributes.sharedSizeBytes);
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, limit), op);
  return limit;
}

std::optional<StripLaunch> plan_forward_strips(const CudaOps& ops, NormKind kind,
                                               const NormForwardArgs<Bf16>& args) {
  return plan_strips(ops, "norm_forward", forward_kernel(kind, args.width), args.rows, args.width,
                     args.delta ? 2 : 1, args.cast.colwise != nullptr);
}

std::optional<StripLaunch> plan_backward_strips(const CudaOps& ops, NormKind kind, int64_t rows,
                                                int64_t width, bool colwise) {
  return plan_strips(ops, "norm_backward", backward_kernel(kind, width), rows, width, 3, colwise);
}

void launch_forward_strips(CudaOps& ops, NormKind kind, const NormForwardArgs<Bf16>& args,
                           const StripLaunch& launch) {
  forward_kernel(kind, args.width)<<<launch.blocks, launch.threads, launch.shared, ops.stream()>>>(args);
}

void launch_backward_strips(CudaOps& ops, NormKind kind, const NormBackwardArgs<Bf16>& args,
                            const StripLaunch& launch) {
  backward_kernel(kind, args.width)<<<launch.blocks, launch.threads, launch.shared, ops.stream()>>>(args);
}

}  // namespace octet::device
