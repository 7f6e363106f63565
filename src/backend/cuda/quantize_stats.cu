#include "backend/cuda/device/tile_kernel.cuh"

// Statistics of a quantised tensor. They need the dense values and the scales, but not the codes: these are computed again,
// which is faster than reading them, and gives the same bits.

namespace octet {
namespace device {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kBlocks = 1024;  // at most
constexpr int kSums = 5;       // elements, saturated, flushed, signal, noise

struct StatsArgs {
  const void* scales;     // of blocks
  const ScaleSlot* slot;  // per tensor
  int64_t rows, cols;     // of the dense tensor
  int64_t row_step;       // of the rows that count
  bool colwise;           // the copy is the transpose
  bool e5m2;
  Granularity granularity;

  // The dequantisation factor of the element (row, col) of the dense tensor.
  __device__ __forceinline__ float factor(int64_t row, int64_t col) const {
    const int64_t line = colwise ? col : row, k = colwise ? row : col, depth = colwise ? rows : cols;
    switch (granularity) {
      case Granularity::Tensor:
        return colwise ? slot->inverse_colwise : slot->inverse_rowwise;
      case Granularity::Row32: {
        const uint32_t exponent = static_cast<const uint8_t*>(scales)[line * ((depth + 31) / 32) + k / 32];
        return __uint_as_float(exponent << 23);
      }
      default: {
        const int64_t block = granularity == Granularity::Block128 ? line / 128 : line;
        return static_cast<const float*>(scales)[block * ((depth + 127) / 128) + k / 128];
      }
    }
  }
  __device__ __forceinline__ float scale(float factor_here) const {
    if (granularity != Granularity::Tensor) return 1.0f / factor_here;
    return colwise ? slot->scale_colwise : slot->scale_rowwise;
  }
};

// Sums of some elements with one factor. Squares are of scaled values, so that fp32 is enough for eight of them.
struct StatsPart {
  int elements = 0, saturated = 0, flushed = 0;
  float signal = 0.0f, noise = 0.0f;

  template <bool e5m2>
  __device__ __forceinline__ void add(float value, float scale) {
    const float scaled = value * scale;
    const auto code = static_cast<uint8_t>(encode2<e5m2>(scaled, 0.0f));
    ++elements;
    saturated += fabsf(scaled) > (e5m2 ? 61440.0f : 464.0f) ? 1 : 0;
    flushed += value != 0.0f && (code & 0x7F) == 0 ? 1 : 0;
    if (magnitude_bits(value) >= kInfinityBits) return;
    const float error = decode1(code, e5m2) - scaled;
    signal += scaled * scaled;
    noise += error * error;
  }
};

struct StatsSums {
  double values[kSums] = {};

  __device__ __forceinline__ void add(const StatsPart& part, float factor) {
    const double square = static_cast<double>(factor) * static_cast<double>(factor);
    values[0] += part.elements;
    values[1] += part.saturated;
    values[2] += part.flushed;
    values[3] += square * static_cast<double>(part.signal);
    values[4] += square * static_cast<double>(part.noise);
  }
  __device__ __forceinline__ void join_warp() {
#pragma unroll
    for (int v = 0; v < kSums; ++v) {
#pragma unroll
      for (int mask = 16; mask > 0; mask /= 2) values[v] += __shfl_xor_sync(0xFFFFFFFFu, values[v], mask);
    }
  }
};

// A warp takes one row at a time, and a thread eight columns. `one_factor`: eight columns share a factor.
template <class T, bool vector, bool one_factor>
__global__ void __launch_bounds__(kThreads) stats_kernel(const T* x, const StatsArgs args, double* partials) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  StatsSums sums;
  with_format(args.e5m2, [&]<bool e5m2>() {
    const int64_t step = static_cast<int64_t>(gridDim.x) * kWarps * args.row_step;
    for (int64_t row = (blockIdx.x * static_cast<int64_t>(kWarps) + warp) * args.row_step; row < args.rows;
         row += step) {
      const T* values = x + row * args.cols;
#pragma unroll 4
      for (int64_t col = 8 * lane; col < args.cols; col += 8 * 32) {
        const int64_t count = args.cols - col;
        const Pack8<T> pack = load8<vector>(values + col, count);
        if constexpr (one_factor) {
          const float factor = args.factor(row, col), scale = args.scale(factor);
          StatsPart part;
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            if (vector || j < count) part.template add<e5m2>(pack.at(j), scale);
          }
          sums.add(part, factor);
        } else {
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            if (j >= count) continue;
            const float factor = args.factor(row, col + j);
            StatsPart part;
            part.template add<e5m2>(pack.at(j), args.scale(factor));
            sums.add(part, factor);
          }
        }
      }
    }
  });
  __shared__ StatsSums shared[kWarps];
  sums.join_warp();
  if (lane == 0) shared[warp] = sums;
  __syncthreads();
  if (threadIdx.x >= kSums) return;
  double total = 0;
  for (int i = 0; i < kWarps; ++i) total += shared[i].values[threadIdx.x];
  partials[blockIdx.x * kSums + threadIdx.x] = total;
}

// One warp per sum, in a fixed order.
__global__ void add_stats_kernel(QuantStats* stats, const double* partials, int blocks,
                                 const ScaleSlot* slot) {
  double* fields[kSums] = {&stats->elements, &stats->saturated, &stats->flushed, &stats->signal,
                           &stats->noise};
  const int lane = static_cast<int>(threadIdx.x) % 32, v = static_cast<int>(threadIdx.x) / 32;
  double total = 0;
  for (int i = lane; i < blocks; i += 32) total += partials[i * kSums + v];
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) total += __shfl_xor_sync(0xFFFFFFFFu, total, mask);
  if (lane == 0) *fields[v] += total;
  if (threadIdx.x == 0) {
    const uint32_t before = magnitude_bits(static_cast<float>(stats->amax));
    stats->amax = static_cast<double>(__uint_as_float(max(before, magnitude_bits(slot->amax_last))));
  }
}

}  // namespace
}  // namespace device

void CudaOps::record_stats(const Operand& operand) {
  constexpr const char* op = "record_stats";
  const Quantized& fp8 = *operand.fp8;
  const bool colwise = !fp8.rowwise;
  const QuantizedMatrix& copy = colwise ? fp8.colwise : fp8.rowwise;
  if (!copy || operand.dense.numel() == 0) return;
  const int64_t rows = operand.dense.rows(), cols = operand.dense.cols();
  const device::StatsArgs args{.scales = copy.scales.data,
                               .slot = fp8.slot,
                               .rows = rows,
                               .cols = cols,
                               .row_step = stats_row_step(rows, cols, colwise),
                               .colwise = colwise,
                               .e5m2 = copy.codes.dtype == DType::E5M2,
                               .granularity = copy.granularity};
  const OpScope scope(profiler_, OpKind::Quantize, op,
                      bytes_of(operand.dense) / static_cast<double>(args.row_step));
  const int64_t counted = div_up(rows, args.row_step);
  const auto blocks = narrow<int>(std::min<int64_t>(div_up(counted, device::kWarps), device::kBlocks));
  Scratch space = scratch(op);
  auto* partials = space.take<double>(blocks * device::kSums);
  // Eight columns of a row lie in one block, unless the blocks run down the rows.
  const bool one_factor = copy.granularity == Granularity::Tensor || !colwise;
  dispatch_real(op, operand.dense.dtype, [&]<class T>(T) {
    const bool vector = cols % 8 == 0 && aligned16(operand.dense.data);
    const auto kernel =
        one_factor ? (vector ? device::stats_kernel<T, true, true> : device::stats_kernel<T, false, true>)
                   : device::stats_kernel<T, false, false>;
    kernel<<<static_cast<unsigned>(blocks), device::kThreads, 0, stream()>>>(
        static_cast<const T*>(operand.dense.data), args, partials);
  });
  check_launch(op);
  device::add_stats_kernel<<<1, 32 * device::kSums, 0, stream()>>>(fp8.stats(), partials, blocks, fp8.slot);
  check_launch(op);
}

}  // namespace octet
