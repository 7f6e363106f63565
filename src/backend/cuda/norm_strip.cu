#include <algorithm>

#include "backend/cuda/device/copy_async.cuh"
#include "backend/cuda/norm.cuh"
#include "backend/cuda_workspace.h"

// Norms of bf16 rows at the speed of memory: every tensor is read once, and transposed codes are written in whole
// sectors. A block takes whole rows, each thread 8 columns of them. It walks down groups of 32 rows in steps of 4 (2
// where rows are wide); the values of a step stay in registers from the statistics to the results, while the rows of
// the next step are on their way to shared memory.

namespace octet::device {
namespace {

constexpr int kGroupRows = 32;  // so many codes of a column are a sector

constexpr int64_t kMostElements = 1ll << 30;  // they are counted in 32 bits

template <int step_rows>
constexpr int kMaxThreads = step_rows == 4 ? 512 : 640;

// Shared memory: each warp has the rows on their way to it and its codes of a group (where they are wanted transposed);
// behind them all lie sums.
constexpr int kSlotBytes = 32 * 16;  // a row of a warp
constexpr int kCodeBytes = kGroupRows * 256;
constexpr int warp_bytes(int tensors, int step_rows, bool transposed) {
  return tensors * step_rows * kSlotBytes + (transposed ? kCodeBytes : 0);
}
constexpr int sum_bytes(int step_rows, int warps) {
  return 2 * 2 * step_rows * warps * 4;  // for two reductions of two sums a row
}

// Rows that are handled together, seen by one thread.
struct Step {
  int row;    // the first
  int valid;  // so many rows are inside the matrix; none where the thread's columns are not
};

// The place of a thread in its block's strip of rows, and the way down.
template <int step_rows>
struct Strip {
  int rows, width;
  int lane = static_cast<int>(threadIdx.x % 32);
  int warp = static_cast<int>(threadIdx.x / 32);
  int warps = static_cast<int>(blockDim.x / 32);
  int col = static_cast<int>(8 * threadIdx.x);
  int group_rows;
  bool column_inside;  // the last warp may reach over the end of the rows
  uint8_t* slots;      // of this thread: (tensors, rows of a step)
  uint32_t* codes;     // of this warp
  float* sums;         // (2, warps, sums of a step)
  int turn = 0;

  __device__ Strip(int64_t rows_, int64_t width_, int tensors, bool transposed)
      : rows(static_cast<int>(rows_)),
        width(static_cast<int>(width_)),
        group_rows(transposed ? kGroupRows : step_rows) {
    extern __shared__ __align__(16) uint8_t shared[];
    const int bytes = warp_bytes(tensors, step_rows, transposed);
    column_inside = col < width;
    slots = shared + warp * bytes + lane * 16;
    codes = reinterpret_cast<uint32_t*>(shared + warp * bytes + tensors * step_rows * kSlotBytes);
    sums = reinterpret_cast<float*>(shared + warps * bytes);
  }

  __device__ Step step_at(int row) const { return {.row = row, .valid = column_inside ? rows - row : 0}; }
  __device__ Step first() const { return step_at(static_cast<int>(blockIdx.x) * group_rows); }
  __device__ Step after(const Step& step) const {
    return step_at(ends_group(step) ? step.row - line(step) + static_cast<int>(gridDim.x) * group_rows
                                    : step.row + step_rows);
  }
  __device__ int line(const Step& step) const { return step.row & (group_rows - 1); }  // in its group
  __device__ bool ends_group(const Step& step) const {
    return line(step) + step_rows == group_rows || step.row + step_rows >= rows;
  }
  __device__ uint32_t place(const Step& step, int r) const {
    return static_cast<uint32_t>((step.row + r) * width + col);
  }

  // A thread copies what it will read itself, so that no barrier is needed. Outside the matrix everything is zero.
  __device__ __forceinline__ void fetch(int tensor, int r, const Bf16* from, const Step& step) const {
    copy_async16(slot(tensor, r), from + place(step, r), r < step.valid);
  }
  __device__ __forceinline__ Pack8<Bf16> fetched(int tensor, int r) const {
    return {*reinterpret_cast<const uint4*>(slot(tensor, r))};
  }
  __device__ __forceinline__ uint8_t* slot(int tensor, int r) const {
    return slots + (tensor * step_rows + r) * kSlotBytes;
  }

  // Sums over all threads of the block, added in fixed order: lane l gets that of values[l / (32 / count)].
  template <int count>
  __device__ __forceinline__ float block_sum(float (&values)[count]) {
    constexpr int kSpan = 32 / count;
    // With every exchange a lane is in charge of half as many values.
#pragma unroll
    for (int half = count / 2; half > 0; half /= 2) {
      const bool upper = (lane & (half * kSpan)) != 0;
#pragma unroll
      for (int i = 0; i < half; ++i) {
        const float given = upper ? values[i] : values[i + half];
        const float kept = upper ? values[i + half] : values[i];
        values[i] = kept + __shfl_xor_sync(0xFFFFFFFFu, given, half * kSpan);
      }
    }
    const auto sum_over_span = [](float x) {
#pragma unroll
      for (int offset = kSpan / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, offset);
      return x;
    };
    const float warp_total = sum_over_span(values[0]);
    // Two places take turns: when one is written again, all have passed the barrier of the other and so have read it.
    float* const place = sums + turn * warps * count + lane / kSpan;
    turn ^= 1;
    if (lane % kSpan == 0) place[warp * count] = warp_total;
    __syncthreads();
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < kMaxThreads<step_rows> / 32; i += kSpan) {
      const int w = i + lane % kSpan;
      if (w < warps) total += place[w * count];
    }
    return sum_over_span(total);
  }
  // What block_sum left for value `index` of `count`, or what was made of it.
  template <int count>
  __device__ __forceinline__ static float value_of(float lanes, int index) {
    return __shfl_sync(0xFFFFFFFFu, lanes, index * (32 / count));
  }
};

// Writes the results of steps in all their forms.
template <int step_rows>
class StripOutput {
 public:
  __device__ StripOutput(const Strip<step_rows>& strip, const CastTarget& cast, Bf16* dense)
      : strip_(strip), cast_(cast), dense_(dense) {
    if (cast.rowwise) row_scale_ = cast.slot->scale_rowwise;
    if (cast.colwise) col_scale_ = cast.slot->scale_colwise;
    same_codes_ = cast.rowwise && row_scale_ == col_scale_ && cast.row_e5m2 == cast.col_e5m2;
  }

  // What `values` hold outside the matrix does not matter.
  __device__ __forceinline__ void write(const Pack8<Bf16> (&values)[step_rows], const Step& step) {
#pragma unroll
    for (int r = 0; r < step_rows; ++r) {
      if (r < step.valid) amax_.add(values[r]);
    }
    if (dense_) {
#pragma unroll
      for (int r = 0; r < step_rows; ++r) {
        if (r < step.valid) values[r].store(dense_ + strip_.place(step, r));
      }
    }
    uint2 codes[step_rows] = {};
    if (cast_.rowwise) {
      encode(codes, values, row_scale_, cast_.row_e5m2);
#pragma unroll
      for (int r = 0; r < step_rows; ++r) {
        if (r < step.valid) store_codes<true>(cast_.rowwise + strip_.place(step, r), codes[r], 8);
      }
    }
    if (!cast_.colwise) return;
    if (!same_codes_) encode(codes, values, col_scale_, cast_.col_e5m2);
    const int line = strip_.line(step), quad = line / 4;
    const bool ends = strip_.ends_group(step);
    if constexpr (step_rows == 4) {
      stage(quad, codes[0], codes[1], codes[2], codes[3]);
    } else if (line % 4 != 0) {
      stage(quad, waiting_[0], waiting_[1], codes[0], codes[1]);
    } else if (ends) {
      stage(quad, codes[0], codes[1], uint2{}, uint2{});
    } else {
      waiting_[0] = codes[0];
      waiting_[1] = codes[1];
    }
    if (ends) write_columns(step.row - line);
  }

  __device__ uint32_t amax() const {
    return amax_.bits();
  }

 private:
  __device__ __forceinline__ static void encode(uint2 (&codes)[step_rows],
                                                const Pack8<Bf16> (&values)[step_rows], float scale,
                                                bool e5m2) {
    with_format(e5m2, [&]<bool as_e5m2>() {
#pragma unroll
      for (int r = 0; r < step_rows; ++r) codes[r] = encode8(values[r], scale, as_e5m2);
    });
  }

  // Words of 4 rows of a column lie as (row / 4, upper columns or lower, lane, column % 4) in the warp's part. Lanes are
  // swapped in fours for the lower 16 rows, so that write_columns meets each bank once.
  __device__ __forceinline__ void stage(int quad, uint2 a, uint2 b, uint2 c, uint2 d) const {
    uint32_t low[4] = {a.x, b.x, c.x, d.x}, high[4] = {a.y, b.y, c.y, d.y};
    transpose_bytes(low);
    transpose_bytes(high);
    uint4* const to = reinterpret_cast<uint4*>(strip_.codes) + 64 * quad + (strip_.lane ^ (quad & 4));
    to[0] = make_uint4(low[0], low[1], low[2], low[3]);
    to[32] = make_uint4(high[0], high[1], high[2], high[3]);
  }

  // Two neighbouring lanes write 32 rows of a column, and a warp 16 columns at a time: 4 of each of 4 lanes.
  __device__ __forceinline__ void write_columns(int group_row) const {
    __syncwarp();
    const int part = strip_.lane % 2, column_of_four = strip_.lane / 2 % 4, owner = strip_.lane / 8;
    const int left = strip_.rows - group_row - 16 * part;
    const int first_column = 256 * strip_.warp + 8 * owner + column_of_four;
    const int columns = left > 0 ? strip_.width - first_column : 0;
    uint8_t* const to = cast_.colwise + (first_column * strip_.rows + group_row + 16 * part);
    const uint32_t* const from = strip_.codes + 4 * (256 * part + owner) + column_of_four;
    const auto for_round = [&](int round, const auto& store) {
      const int column = 32 * (round / 2) + 4 * (round % 2);
      if (column >= columns) return;
      const uint32_t* const words = from + 4 * (32 * (round % 2) + ((4 * (round / 2)) ^ (4 * part)));
      store(to + column * strip_.rows, make_uint4(words[0], words[256], words[512], words[768]));
    };
    if (strip_.rows % 16 == 0) {
#pragma unroll 4
      for (int round = 0; round < 16; ++round) {
        for_round(round, [](uint8_t* place, uint4 codes) { store16(place, codes); });
      }
    } else {
#pragma unroll 1
      for (int round = 0; round < 16; ++round) {
        for_round(round, [&](uint8_t* place, uint4 codes) { store_some_codes(place, codes, left); });
      }
    }
    __syncwarp();
  }

  const Strip<step_rows>& strip_;
  const CastTarget& cast_;
  Bf16* dense_;
  float row_scale_ = 1.0f, col_scale_ = 1.0f;
  bool same_codes_;
  uint2 waiting_[2];  // of a step of two rows, for the next
  MagnitudeMax<Bf16> amax_;
};

// ---- forward ----

// Rounded once, to the bits of a sum in fp32 that is rounded to bf16: that sum is inexact only where the smaller number
// is too small to decide about a tie.
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
__global__ void __launch_bounds__(kMaxThreads<step_rows>, 1)
    norm_forward_strip_kernel(const __grid_constant__ NormForwardArgs<Bf16> args) {
  Strip<step_rows> strip(args.rows, args.width, args.delta ? 2 : 1, args.cast.colwise);
  StripOutput<step_rows> output(strip, args.cast, args.y);
  const auto width = static_cast<float>(args.width);
  float gain[8] = {}, bias[8] = {};
  if (strip.column_inside) {
    Pack8<Bf16>::load(args.gain + strip.col).unpack(gain);
    if (layer_norm && args.bias) Pack8<Bf16>::load(args.bias + strip.col).unpack(bias);
  }
  const auto fetch = [&](const Step& step) {
    if (step.row >= strip.rows) return;
#pragma unroll
    for (int r = 0; r < step_rows; ++r) strip.fetch(0, r, args.x, step);
    if (args.delta) {
#pragma unroll
      for (int r = 0; r < step_rows; ++r) strip.fetch(1, r, args.delta, step);
    }
  };

  Step next = strip.first();
  fetch(next);
  while (next.row < strip.rows) {
    const Step step = next;
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
        v[r][j] = v[r][j] * row_inv * gain[j];
        if (layer_norm) v[r][j] += bias[j];
      }
      values[r] = Pack8<Bf16>::pack(v[r]);
    }
    output.write(values, step);
  }
  if (args.cast.record) record_amax(output.amax(), args.cast, gridDim.x);
}

// ---- backward ----

template <bool layer_norm, int step_rows>
__global__ void __launch_bounds__(kMaxThreads<step_rows>, 1)
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
  const auto fetch = [&](const Step& step) {
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

  // Row by row and later than the others, since there are no registers for it during the reduction.
  const auto fetch_before = [&](int r, const Step& step) {
    if (step.row < strip.rows) strip.fetch(kBefore, r, args.dresidual, step);
  };

  Step next = strip.first();
  fetch(next);
#pragma unroll
  for (int r = 0; r < step_rows; ++r) fetch_before(r, next);
  while (next.row < strip.rows) {
    const Step step = next;
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

    // Of g * (x - mean) and, for LayerNorm, of g = dy * gain.
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
  return threads_for(width) <= kMaxThreads<4> ? 4 : 2;
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

// How many blocks of each multiprocessor share the groups of rows. The time is that of the groups of one
// multiprocessor, one after the other; but a round that few blocks are left for takes as long as one block needs by
// itself, which waits for memory most of the time where rows are short.
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
std::optional<StripLaunch> plan_strips(const CudaBackend& backend, const char* op, Kernel kernel,
                                       int64_t rows, int64_t width, int tensors, bool colwise) {
  const int threads = threads_for(width), step_rows = step_rows_for(width);
  if (threads > kMaxThreads<2> || rows * width > kMostElements) return {};
  const int shared =
      threads / 32 * warp_bytes(tensors, step_rows, colwise) + sum_bytes(step_rows, threads / 32);
  constexpr int kFixedShared = 1024;  // more than the kernels' variables of fixed size
  int device = 0, limit = 0;
  cuda_check(cudaGetDevice(&device), op);
  cuda_check(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), op);
  if (shared + kFixedShared > limit) return {};
  // Always the same: a recorded graph may hold launches that need more than this one.
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, limit - kFixedShared),
             op);
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                  cudaSharedmemCarveoutMaxShared),
             op);
  int resident = 0;
  cuda_check(
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, threads, static_cast<size_t>(shared)),
      op);
  const int64_t groups = div_up(rows, colwise ? kGroupRows : step_rows);
  const int64_t most = std::min<int64_t>(resident, std::max<int64_t>(kNormStripColumns / width, 1));
  const int64_t blocks = backend.sm_count() * best_residency(groups, width, backend.sm_count(), most);
  return StripLaunch{.blocks = narrow<unsigned>(std::min(blocks, groups)),
                     .threads = static_cast<unsigned>(threads),
                     .shared = shared};
}

}  // namespace

std::optional<StripLaunch> plan_forward_strips(const CudaBackend& backend, NormKind kind,
                                               const NormForwardArgs<Bf16>& args) {
  return plan_strips(backend, "norm_forward", forward_kernel(kind, args.width), args.rows, args.width,
                     args.delta ? 2 : 1, args.cast.colwise != nullptr);
}

std::optional<StripLaunch> plan_backward_strips(const CudaBackend& backend, NormKind kind, int64_t rows,
                                                int64_t width, bool colwise) {
  return plan_strips(backend, "norm_backward", backward_kernel(kind, width), rows, width, 3, colwise);
}

void launch_forward_strips(CudaBackend& backend, NormKind kind, const NormForwardArgs<Bf16>& args,
                           const StripLaunch& launch) {
  forward_kernel(kind, args.width)<<<launch.blocks, launch.threads, launch.shared, backend.stream()>>>(args);
}

void launch_backward_strips(CudaBackend& backend, NormKind kind, const NormBackwardArgs<Bf16>& args,
                            const StripLaunch& launch) {
  backward_kernel(kind, args.width)<<<launch.blocks, launch.threads, launch.shared, backend.stream()>>>(args);
}

}  // namespace octet::device
