#include <cfloat>
#include <type_traits>

#include "backend/cuda/device/tile_kernel.cuh"
#include "backend/op_checks.h"

// Two passes over the logits: one for the softmax statistics per row, one for the gradient, which is written as tiles
// in the form that the head's products read.

namespace octet {
namespace device {
namespace {

constexpr int kLossThreads = 256;
constexpr int kLossWarps = kLossThreads / 32;

template <class T>
__device__ __forceinline__ float exp_of(float x) {
  if constexpr (sizeof(T) == 2) return exp2_approx(kLog2E * x);
  return expf(x);
}

__device__ __forceinline__ float log_of(float x) {
  return logf(x);
}
__device__ __forceinline__ double log_of(double x) {
  return log(x);
}

// The terms of the gradient of a row's logits.
struct alignas(16) PlainRowGradient {
  float largest;
  float factor;        // of e^(x - largest)
  float target_share;  // subtracted where the target is
  int32_t target;      // negative: there is no gradient
};
struct PenalisedRowGradient : PlainRowGradient {
  float penalty_share;  // Entropy: see gradient_of. LogitL2: factor of the logit
};
template <bool penalised>
using RowGradient = std::conditional_t<penalised, PenalisedRowGradient, PlainRowGradient>;

template <bool penalised>
struct LossArgs {
  float* loss;
  float* penalty;    // may be absent
  int32_t* correct;  // may be absent
  const int32_t* targets;
  RowGradient<penalised>* gradients;  // may be absent
  int64_t width;
  LossOptions options;
  const float* scale;        // of gradients; may be absent
  const float* row_factors;  // may be absent
};

// Without a penalty and with ZLoss, d loss / d x = factor * e^(x - largest) - target_share where x is the target's.
// Entropy multiplies the first term by penalty_share + weight * (x - largest); LogitL2 adds penalty_share * x.
// Fused operations are written explicitly, so that the bits are the same in every kernel that uses this. `target_share` is
// not subtracted here.
template <class T, bool penalised>
__device__ __forceinline__ float gradient_of(float x, const RowGradient<penalised>& row, float weight,
                                             bool entropy) {
  const float down = x - row.largest, e = exp_of<T>(down), share = __fmul_rn(e, row.factor);
  if constexpr (penalised) {
    if (entropy) return e > 0.0f ? __fmul_rn(share, fmaf(weight, down, row.penalty_share)) : 0.0f;
    return fmaf(row.penalty_share, x, share);
  }
  return share;
}

// The largest element of some packs; NaN only if all elements are NaN.
template <int packs>
__device__ __forceinline__ float largest_of(const Pack8<Bf16> (&batch)[packs]) {
  // Two at a time: even and odd places.
  const auto larger = [](uint32_t a, uint32_t b) {
    const __nv_bfloat162 most =
        __hmax2(*reinterpret_cast<const __nv_bfloat162*>(&a), *reinterpret_cast<const __nv_bfloat162*>(&b));
    return *reinterpret_cast<const uint32_t*>(&most);
  };
  uint32_t pair = batch[0].raw.x;
#pragma unroll
  for (int b = 0; b < packs; ++b) {
    const uint4 raw = batch[b].raw;
    pair = larger(larger(pair, larger(raw.x, raw.y)), larger(raw.z, raw.w));
  }
  return fmaxf(__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000u));
}
template <int packs>
__device__ __forceinline__ float largest_of(const Pack8<float> (&batch)[packs]) {
  float most = batch[0].at(0);
#pragma unroll
  for (int b = 0; b < packs; ++b) {
#pragma unroll
    for (int j = 0; j < 8; ++j) most = fmaxf(most, batch[b].at(j));
  }
  return most;
}

// The softmax of some of a row's logits. Penalties need sums of their own. fp32 logits are those of evaluation: their sum
// keeps the share of unlikely tokens, which fp32 would lose in a large vocabulary.
template <class T, bool penalised>
struct SoftmaxPart {
  using Sum = std::conditional_t<sizeof(T) == 2, float, double>;

  float largest;  // at least -FLT_MAX, so that differences to it are numbers
  Sum sum;        // of e^(x - largest)
  float shifted;  // of e^(x - largest) * (x - largest), for the entropy
  float squares;

  __device__ static SoftmaxPart empty() { return {-FLT_MAX, 0.0f, 0.0f, 0.0f}; }

  // Rescales the sums to another reference, which is not below the largest.
  __device__ __forceinline__ void move_to(float reference) {
    const float down = largest - reference, factor = exp_of<T>(down);
    if constexpr (penalised)
      shifted = factor > 0.0f ? factor * (shifted + static_cast<float>(sum) * down) : 0.0f;
    sum *= static_cast<Sum>(factor);
    largest = reference;
  }

  template <int packs>
  __device__ __forceinline__ void add(const Pack8<T> (&batch)[packs]) {
    move_to(fmaxf(largest, largest_of(batch)));
#pragma unroll
    for (int b = 0; b < packs; ++b) {
      float e[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float down = batch[b].at(j) - largest;
        e[j] = exp_of<T>(down);
        if constexpr (penalised) shifted += e[j] > 0.0f ? e[j] * down : 0.0f;
      }
      sum += static_cast<Sum>(((e[0] + e[1]) + (e[2] + e[3])) + ((e[4] + e[5]) + (e[6] + e[7])));
    }
  }

  __device__ void add_squares(const Pack8<T>& pack, int count) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (j < count) squares += pack.at(j) * pack.at(j);
    }
  }

  // All parts of a warp, in every lane.
  __device__ void join_warp() {
    float reference = largest;
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2)
      reference = fmaxf(reference, __shfl_xor_sync(0xFFFFFFFFu, reference, mask));
    move_to(reference);
    sum = warp_sum(sum);
    if constexpr (penalised) {
      shifted = warp_sum(shifted);
      squares = warp_sum(squares);
    }
  }
};

// Elements from `count` on become -Inf, which has no part in a softmax.
template <class T>
__device__ __forceinline__ Pack8<T> without_padding(const Pack8<T>& pack, int count) {
  T elements[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) elements[j] = j < count ? pack.element(j) : from_float<T>(-INFINITY);
  return Pack8<T>::of(elements);
}

// Whether one of the first `count` logits is `value`; for the whole block.
template <class T, bool vector>
__device__ bool any_is(const T* logits, int count, int width, float value) {
  bool found = false;
  for (int i = 8 * static_cast<int>(threadIdx.x); i < count; i += 8 * kLossThreads) {
    const Pack8<T> pack = load8<vector>(logits + i, width - i);
#pragma unroll
    for (int j = 0; j < 8; ++j) found = found || (i + j < count && pack.at(j) == value);
  }
  return __syncthreads_or(found);
}

// One block per row, which is read once. Six blocks per multiprocessor have enough loads in flight.
template <class T, bool penalised, bool vector>
__global__ void __launch_bounds__(kLossThreads, 6)
    cross_entropy_kernel(const T* all_logits, const LossArgs<penalised> args) {
  const int64_t row = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int width = static_cast<int>(args.width), vocab = static_cast<int>(args.options.vocab);
  const T* logits = all_logits + row * args.width;
  const int32_t target = args.targets[row];
  if (target < 0) {
    if (thread != 0) return;
    args.loss[row] = 0.0f;
    if (args.penalty) args.penalty[row] = 0.0f;
    if (args.correct) args.correct[row] = 0;
    if (args.gradients) {
      RowGradient<penalised> none{};
      none.target = -1;
      args.gradients[row] = none;
    }
    return;
  }

  const float target_logit = to_float(logits[target]);
  using Part = SoftmaxPart<T, penalised>;
  Part part = Part::empty();
  constexpr int kBatch = sizeof(T) == 2 ? 4 : 2;
  constexpr int kStep = 8 * kLossThreads * kBatch;  // logits that the block reads at once
  int first = 8 * thread;
  for (int begin = 0; begin + kStep <= vocab; begin += kStep, first += kStep) {
    Pack8<T> batch[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) batch[b] = load8<vector>(logits + first + 8 * b * kLossThreads, 8);
    part.add(batch);
    if constexpr (penalised) {
#pragma unroll
      for (int b = 0; b < kBatch; ++b) part.add_squares(batch[b], 8);
    }
  }
  if (vocab % kStep != 0) {
    Pack8<T> batch[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int i = first + 8 * b * kLossThreads;
      if (i < vocab) batch[b] = load8<vector>(logits + i, width - i);
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int count = vocab - (first + 8 * b * kLossThreads);
      if (count <= 0) break;
      if constexpr (penalised) part.add_squares(batch[b], count);
      const Pack8<T> one[1] = {count < 8 ? without_padding(batch[b], count) : batch[b]};
      part.add(one);
    }
  }

  __shared__ Part parts[kLossWarps];
  part.join_warp();
  if (lane == 0) parts[thread / 32] = part;
  __syncthreads();
  if (thread >= 32 && !args.correct) return;
  part = lane < kLossWarps ? parts[lane] : Part::empty();
  part.join_warp();

  if (args.correct) {
    const bool largest = target_logit == part.largest;
    const bool correct = largest && !any_is<T, vector>(logits, target, width, target_logit);
    if (thread == 0) args.correct[row] = correct ? 1 : 0;
  }
  if (thread != 0) return;
  using Sum = typename Part::Sum;
  const Sum log_sum = log_of(part.sum);
  const float log_total = static_cast<float>(log_sum), lse = part.largest + log_total;
  const float inverse = 1.0f / static_cast<float>(part.sum);
  const float scale = args.scale ? *args.scale : 0.0f, weight = args.options.penalty_weight;
  const float row_factor = args.row_factors ? args.row_factors[row] : 1.0f;
  args.loss[row] =
      static_cast<float>(log_sum - (static_cast<Sum>(target_logit) - static_cast<Sum>(part.largest)));
  RowGradient<penalised> gradient{};
  gradient.largest = part.largest;
  gradient.factor = __fmul_rn(scale, inverse);
  gradient.target_share = __fmul_rn(scale, row_factor);
  gradient.target = target;
  float penalty = 0.0f;
  if constexpr (penalised) {
    if (args.options.penalty == PenaltyKind::Entropy) {
      const float entropy = log_total - inverse * part.shifted;
      penalty = -weight * entropy;
      gradient.penalty_share = row_factor + weight * (entropy - log_total);
    } else {
      penalty = weight * part.squares / static_cast<float>(vocab);
      gradient.factor *= row_factor;
      gradient.penalty_share = scale * (2.0f * weight / static_cast<float>(vocab));
    }
  } else if (args.options.penalty == PenaltyKind::ZLoss) {
    penalty = weight * lse * lse;
    gradient.factor *= row_factor + 2.0f * weight * lse;
  } else {
    gradient.factor *= row_factor;
  }
  if (args.penalty) args.penalty[row] = penalty;
  if (args.gradients) args.gradients[row] = gradient;
}

// `corrected`: the errors of rows are summed up as well.
template <class T, bool penalised, bool corrected>
struct CrossEntropyGradient {
  using Type = T;
  static constexpr int kOutputs = 1;
  static constexpr int kAhead = 4;
  static constexpr bool kCopies = false;
  static constexpr bool kBlocks = true;
  static constexpr bool kSums = true;
  struct Raw {
    Pack8<T> logits;
    RowGradient<penalised> row;
  };
  const T* logits;
  const RowGradient<penalised>* rows;
  int width;
  int vocab;
  int first;  // column where the op stands
  float weight;
  bool entropy;

  __device__ CrossEntropyGradient at(int64_t row, int64_t col) const {
    CrossEntropyGradient here = *this;
    here.logits += row * width + col;
    here.rows += row;
    here.first = static_cast<int>(col);
    return here;
  }
  template <bool vector>
  __device__ Raw load(int line, int64_t count) const {
    return {load8<vector>(logits + line * width, count), rows[line]};
  }
  __device__ void compute(const Raw& raw, float (&out)[1][8]) const {
    const RowGradient<penalised>& row = raw.row;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      out[0][j] = gradient_of<T, penalised>(raw.logits.at(j), row, weight, entropy);
    }
    const int live = row.target < 0 ? 0 : vocab - first, hit = row.target - first;
    if (live >= 8 && static_cast<unsigned>(hit) >= 8u) return;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (j == hit) out[0][j] = __fsub_rn(out[0][j], row.target_share);
      if (j >= live) out[0][j] = 0.0f;
    }
  }
  __device__ int64_t column(int64_t col, int) const {
    return col;
  }
};

}  // namespace

template <class T, bool penalised, bool corrected>
constexpr bool kHasRowErrors<CrossEntropyGradient<T, penalised, corrected>> = corrected;

namespace {

// The correction of a row after rounding, from its error.
__global__ void correction_kernel(float* correction, const RowError* row_errors, const float* inverse,
                                  float unit, int64_t rows) {
  const int64_t row = blockIdx.x * int64_t{kLossThreads} + threadIdx.x;
  if (row < rows)
    correction[row] = static_cast<float>(-static_cast<int64_t>(row_errors[row])) * unit * *inverse;
}

}  // namespace
}  // namespace device

void CudaOps::cross_entropy(const Operand& gradient, Tensor correction, Tensor loss, Tensor penalty,
                            Tensor correct, Tensor logits, Tensor targets, const LossOptions& options) {
  constexpr const char* op = "cross_entropy";
  check_cross_entropy(gradient, correction, loss, penalty, correct, logits, targets, options);
  const int64_t rows = logits.rows(), width = logits.cols();
  const Tensor& dlogits = gradient.dense;
  narrow<int>(width + 8 * 4 * device::kLossThreads);  // columns are counted in int
  if (rows == 0) return;

  Scratch scratch = this->scratch(op);
  auto* row_errors = correction ? scratch.take<device::RowError>(rows) : nullptr;
  const auto run = [&]<class T, bool penalised>() {
    auto* row_gradients = dlogits ? scratch.take<device::RowGradient<penalised>>(rows) : nullptr;
    const device::LossArgs<penalised> args{
        .loss = static_cast<float*>(loss.data),
        .penalty = static_cast<float*>(penalty.data),
        .correct = static_cast<int32_t*>(correct.data),
        .targets = static_cast<const int32_t*>(targets.data),
        .gradients = row_gradients,
        .width = width,
        .options = options,
        .scale = static_cast<const float*>(options.gradient_scale.data),
        .row_factors = static_cast<const float*>(options.row_factors.data)};
    const T* in = static_cast<const T*>(logits.data);
    const bool vector = width % 8 == 0 && aligned16(logits.data);
    {
      const OpScope scope(profiler_, OpKind::Loss, op, bytes_of(logits));
      const auto kernel = vector ? device::cross_entropy_kernel<T, penalised, true>
                                 : device::cross_entropy_kernel<T, penalised, false>;
      kernel<<<narrow<unsigned>(rows), device::kLossThreads, 0, stream()>>>(in, args);
      check_launch(op);
    }
    if (!dlogits) return;
    const OpScope scope(profiler_, OpKind::Loss, "cross_entropy_gradient", bytes_of(gradient, logits));
    auto plan = plan_operand<T>(gradient, op);
    fuse_blocks<device::CrossEntropyGradient<T, penalised, false>>(plan, gradient, vector, width);
    const auto launch = [&]<bool corrected>() {
      const device::CrossEntropyGradient<T, penalised, corrected> tiles{
          .logits = in,
          .rows = row_gradients,
          .width = narrow<int>(width),
          .vocab = narrow<int>(options.vocab),
          .first = 0,
          .weight = options.penalty_weight,
          .entropy = options.penalty == PenaltyKind::Entropy};
      launch_tiles(*this, op, tiles,
                   {.rows = rows,
                    .cols = width,
                    .width = width,
                    .dense = plan.dense,
                    .cast = plan.cast,
                    .blocks = plan.blocks,
                    .row_errors = row_errors},
                   vector, gradient.column_sum, &scratch);
    };
    if (correction) {
      cuda_check(
          cudaMemsetAsync(row_errors, 0, static_cast<size_t>(rows) * sizeof(device::RowError), stream()), op);
      launch.template operator()<true>();
      const float unit = device::largest_code(plan.cast.rowwise ? plan.cast.row_e5m2 : plan.cast.col_e5m2) /
                         device::kRowErrorUnits;
      const ScaleSlot* slot = gradient.fp8->slot;
      device::correction_kernel<<<narrow<unsigned>(div_up(rows, device::kLossThreads)), device::kLossThreads,
                                  0, stream()>>>(
          static_cast<float*>(correction.data), row_errors,
          plan.cast.rowwise ? &slot->inverse_rowwise : &slot->inverse_colwise, unit, rows);
      check_launch(op);
    } else {
      launch.template operator()<false>();
    }
    finish_operand(gradient, plan);
  };
  const bool penalised = options.penalty == PenaltyKind::Entropy || options.penalty == PenaltyKind::LogitL2;
  dispatch_real(op, logits.dtype, [&]<class T>(T) {
    penalised ? run.template operator()<T, true>() : run.template operator()<T, false>();
  });
}

}  // namespace octet
