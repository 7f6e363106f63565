#include "backend/cuda/device/tile_kernel.cuh"

namespace octet {
namespace device {
namespace {

constexpr int kLossThreads = 512;
constexpr int kLossWarps = kLossThreads / 32;

// What is known of some of the logits of a row; two of them can be joined.
struct Softmax {
  float largest = -INFINITY;
  int first = 0x7FFFFFFF;  // lowest index of the largest
  float sum = 0.0f;        // of e^(x - largest)
  float shifted = 0.0f;    // of e^(x - largest) * (x - largest), for the entropy
  float squares = 0.0f;

  // Measures sum and shifted from another reference, which is not below the largest.
  __device__ void move_to(float reference) {
    if (largest == reference || sum == 0.0f) return;
    const float down = largest - reference, factor = __expf(down);
    shifted = factor > 0.0f ? factor * (shifted + sum * down) : 0.0f;
    sum *= factor;
  }
  __device__ void join(const Softmax& other_part) {
    Softmax other = other_part;
    const float reference = fmaxf(largest, other.largest);
    first = other.largest > largest ? other.first : other.largest < largest ? first : min(first, other.first);
    move_to(reference);
    other.move_to(reference);
    largest = reference;
    sum += other.sum;
    shifted += other.shifted;
    squares += other.squares;
  }
  __device__ Softmax from_lane(int mask) const {
    Softmax other;
    other.largest = __shfl_xor_sync(0xFFFFFFFFu, largest, mask);
    other.first = __shfl_xor_sync(0xFFFFFFFFu, first, mask);
    other.sum = __shfl_xor_sync(0xFFFFFFFFu, sum, mask);
    other.shifted = __shfl_xor_sync(0xFFFFFFFFu, shifted, mask);
    other.squares = __shfl_xor_sync(0xFFFFFFFFu, squares, mask);
    return other;
  }
};

template <class T>
struct LossArgs {
  T* logits;
  float* loss;
  float* penalty;    // may be absent
  int32_t* correct;  // may be absent
  const int32_t* targets;
  int64_t width;
  LossOptions options;
  int cached;  // packs of 8 logits that fit in shared memory
};

template <class T>
__device__ __forceinline__ float exp_of(float x) {
  if constexpr (sizeof(T) == 2) return __expf(x);
  return expf(x);
}

// One block for each row. The row is read once into shared memory (what does not fit is read again, mostly
// from L2) and its gradient written once.
template <class T, bool vector>
__global__ void __launch_bounds__(kLossThreads) cross_entropy_kernel(const LossArgs<T> args) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto* cache = reinterpret_cast<Pack8<T>*>(memory);
  __shared__ __align__(16) unsigned char parts_memory[kLossWarps * sizeof(Softmax)];
  auto* parts = reinterpret_cast<Softmax*>(parts_memory);
  __shared__ float target_logit_shared;
  const int64_t row = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  const int width = static_cast<int>(args.width), vocab = static_cast<int>(args.options.vocab);
  const int packs = (width + 7) / 8, live_packs = (vocab + 7) / 8;
  T* logits = args.logits + row * args.width;
  const int32_t target = args.targets[row];
  if (target < 0) {
    if (args.options.backward) {
      for (int i = thread; i < packs; i += kLossThreads)
        store8<vector>(logits + 8 * i, Pack8<T>::zero(), width - 8 * i);
    }
    if (thread == 0) {
      args.loss[row] = 0.0f;
      if (args.penalty) args.penalty[row] = 0.0f;
      if (args.correct) args.correct[row] = 0;
    }
    return;
  }

  const bool wants_entropy = args.options.penalty == PenaltyKind::Entropy;
  Softmax seen;
  // Several loads are under way before the first is used.
  constexpr int kBatch = 4;
  for (int begin = thread; begin < live_packs; begin += kBatch * kLossThreads) {
    Pack8<T> batch[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int i = begin + b * kLossThreads;
      if (i < live_packs) batch[b] = load8<vector>(logits + 8 * i, width - 8 * i);
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int i = begin + b * kLossThreads;
      if (i >= live_packs) continue;
      if (i < args.cached) cache[i] = batch[b];
      const int count = vocab - 8 * i;
      float v[8];
      batch[b].unpack(v);
      float largest = seen.largest;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if (j < count && v[j] > largest) {
          largest = v[j];
          seen.first = 8 * i + j;
        }
      }
      seen.move_to(largest);
      seen.largest = largest;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if (j >= count) continue;
        const float down = v[j] - largest;
        const float e = v[j] == -INFINITY ? 0.0f : exp_of<T>(down);
        seen.sum += e;
        if (wants_entropy && e > 0.0f) seen.shifted += e * down;
        seen.squares += v[j] * v[j];
        if (8 * i + j == target) target_logit_shared = v[j];
      }
    }
  }
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) seen.join(seen.from_lane(mask));
  if (thread % 32 == 0) parts[thread / 32] = seen;
  __syncthreads();
  seen = parts[0];
  for (int w = 1; w < kLossWarps; ++w) seen.join(parts[w]);

  const float target_logit = target_logit_shared;
  const float log_total = logf(seen.sum), lse = seen.largest + log_total, inverse = 1.0f / seen.sum;
  const float weight = args.options.penalty_weight;
  const float entropy = log_total - inverse * seen.shifted;
  if (thread == 0) {
    args.loss[row] = log_total - (target_logit - seen.largest);
    if (args.correct) args.correct[row] = seen.first == target ? 1 : 0;
    if (args.penalty) {
      float penalty = 0.0f;
      if (args.options.penalty == PenaltyKind::ZLoss) penalty = weight * lse * lse;
      if (args.options.penalty == PenaltyKind::Entropy) penalty = -weight * entropy;
      if (args.options.penalty == PenaltyKind::LogitL2)
        penalty = weight * seen.squares / static_cast<float>(vocab);
      args.penalty[row] = penalty;
    }
  }
  if (!args.options.backward) return;

  const float scale = args.options.gradient_scale;
  const float per_probability =
      args.options.penalty == PenaltyKind::ZLoss ? 1.0f + 2.0f * weight * lse : 1.0f;
  const float per_logit =
      args.options.penalty == PenaltyKind::LogitL2 ? 2.0f * weight / static_cast<float>(vocab) : 0.0f;
  const float factor = per_probability * inverse;
#pragma unroll 4
  for (int i = thread; i < packs; i += kLossThreads) {
    Pack8<T> pack = Pack8<T>::zero();
    if (i < live_packs) pack = i < args.cached ? cache[i] : load8<vector>(logits + 8 * i, width - 8 * i);
    float v[8];
    pack.unpack(v);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int index = 8 * i + j;
      const float down = v[j] - seen.largest, e = exp_of<T>(down);
      const float one = index == target ? 1.0f : 0.0f;
      float gradient;
      if (wants_entropy) {
        const float p = e * inverse;
        gradient = p - one + (p > 0.0f ? weight * p * (down - log_total + entropy) : 0.0f);
      } else {
        gradient = e * factor - one + per_logit * v[j];
      }
      v[j] = index < vocab ? scale * gradient : 0.0f;
    }
    store8<vector>(logits + 8 * i, Pack8<T>::pack(v), width - 8 * i);
  }
}

}  // namespace
}  // namespace device

void CudaBackend::cross_entropy(Tensor logits, Tensor loss, Tensor penalty, Tensor correct, Tensor targets,
                                const LossOptions& options) {
  constexpr const char* op = "cross_entropy";
  const OpScope scope(profiler_, OpKind::Loss, op, (options.backward ? 2 : 1) * bytes_of(logits));
  const int64_t rows = logits.rows(), width = logits.cols();
  require(options.vocab > 0 && options.vocab <= width, "[cuda] {}: the vocabulary is {}, expected 1 to {}",
          op, options.vocab, width);
  require(loss.numel() == rows && targets.numel() == rows && (!penalty || penalty.numel() == rows) &&
              (!correct || correct.numel() == rows),
          "[cuda] {}: {} losses, {} targets for {} rows", op, loss.numel(), targets.numel(), rows);
  require(penalty || options.penalty == PenaltyKind::None,
          "[cuda] {}: there is a penalty and nowhere to write it", op);
  require(
      loss.dtype == DType::F32 && targets.dtype == DType::I32 && (!correct || correct.dtype == DType::I32),
      "[cuda] {}: losses are fp32, targets and correct int32", op);
  narrow<int>(width + 8);
  if (rows == 0) return;
  dispatch_real(op, logits.dtype, [&]<class T>(T) {
    using Pack = device::Pack8<T>;
    // Up to half of a multiprocessor's memory, so that two blocks run beside each other; all of it for longer
    // rows.
    constexpr int64_t kHalf = 108 << 10, kAll = 220 << 10;
    const int64_t needed = div_up(options.vocab, 8) * static_cast<int64_t>(sizeof(Pack));
    const int64_t bytes = needed <= kHalf ? needed : std::min(needed, kAll);
    device::LossArgs<T> args{
        .logits = static_cast<T*>(logits.data),
        .loss = static_cast<float*>(loss.data),
        .penalty = static_cast<float*>(penalty.data),
        .correct = static_cast<int32_t*>(correct.data),
        .targets = static_cast<const int32_t*>(targets.data),
        .width = width,
        .options = options,
        .cached = options.backward ? narrow<int>(bytes / static_cast<int64_t>(sizeof(Pack))) : 0};
    const auto shared = static_cast<size_t>(options.backward ? bytes : 0);
    const bool vector = width % 8 == 0 && aligned16(logits.data);
    const auto kernel =
        vector ? device::cross_entropy_kernel<T, true> : device::cross_entropy_kernel<T, false>;
    cuda_check(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
        op);
    kernel<<<narrow<unsigned>(rows), device::kLossThreads, shared, stream()>>>(args);
    check_launch(op);
  });
}

}  // namespace octet
