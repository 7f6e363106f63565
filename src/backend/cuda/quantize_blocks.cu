#include "backend/cuda/device/tile_kernel.cuh"

namespace octet {
namespace device {
namespace {

constexpr int kBlockTile = 128;  // every block of every granularity, in both copies, lies inside one tile
constexpr int kBlockThreads = 256;

// block_factor of ops/quantized.h.
__device__ float block_factor(uint32_t amax_bits, bool e5m2, bool pow2) {
  if (amax_bits == 0 || amax_bits >= kInfinityBits) return 1.0f;
  const float exact = __uint_as_float(amax_bits) / (e5m2 ? 57344.0f : 448.0f);
  const float factor = exact < 0x1p-126f ? 0x1p-126f : exact;
  if (!pow2) return factor;
  return __uint_as_float((__float_as_uint(factor) + 0x7FFFFFu) & 0x7F800000u);
}

struct BlockCopy {
  uint8_t* codes = nullptr;
  void* scales = nullptr;
  bool e5m2 = false;
};

template <class T>
struct BlockArgs {
  const T* x;
  int64_t rows, cols;
  Granularity granularity;
  bool pow2;
  BlockCopy rowwise, colwise;
  CastTarget amax;
};

// One copy of a tile. at(r, k) is the value at its row r, depth k; a warp takes a row, a lane 4 neighbours in
// depth.
template <class At>
__device__ void quantize_tile(const BlockCopy& copy, Granularity granularity, bool pow2, int64_t row0,
                              int64_t k0, int64_t rows, int64_t depth, uint32_t tile_amax, const At& at) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t depth_blocks = (depth + kBlockTile - 1) / kBlockTile;
  if (granularity == Granularity::Block128 && threadIdx.x == 0) {
    static_cast<float*>(copy.scales)[row0 / kBlockTile * depth_blocks + k0 / kBlockTile] =
        block_factor(tile_amax, copy.e5m2, pow2);
  }
  for (int r = warp; r < kBlockTile; r += kBlockThreads / 32) {
    const int64_t row = row0 + r, k = k0 + 4 * lane;
    if (row >= rows) break;
    float x[4];
    uint32_t amax = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      x[j] = at(r, 4 * lane + j);  // zero beyond the edges
      amax = max(amax, magnitude_bits(x[j]));
    }
    if (granularity == Granularity::Row128) {
      amax = __reduce_max_sync(0xFFFFFFFFu, amax);
    } else if (granularity == Granularity::Row32) {
#pragma unroll
      for (int offset = 4; offset > 0; offset /= 2) {
        amax = max(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, offset));
      }
    } else {
      amax = tile_amax;
    }
    const float factor = block_factor(amax, copy.e5m2, pow2 || granularity == Granularity::Row32);
    if (granularity == Granularity::Row128 && lane == 0) {
      static_cast<float*>(copy.scales)[row * depth_blocks + k0 / kBlockTile] = factor;
    }
    if (granularity == Granularity::Row32 && lane % 8 == 0 && k < depth) {
      static_cast<uint8_t*>(copy.scales)[row * ((depth + 31) / 32) + k / 32] =
          static_cast<uint8_t>(__float_as_uint(factor) >> 23);
    }
    const float scale = 1.0f / factor;
    uint32_t codes;
    with_format(copy.e5m2, [&]<bool e5m2>() {
      codes = encode4<e5m2>(x[0] * scale, x[1] * scale, x[2] * scale, x[3] * scale);
    });
    uint8_t* to = copy.codes + row * depth + k;
    if (depth % 4 == 0) {
      if (k < depth) *reinterpret_cast<uint32_t*>(to) = codes;
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (k + j < depth) to[j] = static_cast<uint8_t>(codes >> (8 * j));
      }
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kBlockThreads) quantize_blocks_kernel(const BlockArgs<T> args) {
  // The pad spreads a column over the banks for the transposed copy.
  constexpr int kStride = kBlockTile + 4 / static_cast<int>(sizeof(T));
  extern __shared__ __align__(16) unsigned char memory[];
  T* tile = reinterpret_cast<T*>(memory);
  __shared__ uint32_t warp_amax[kBlockThreads / 32];
  const int64_t row0 = blockIdx.y * static_cast<int64_t>(kBlockTile);
  const int64_t col0 = blockIdx.x * static_cast<int64_t>(kBlockTile);
  uint32_t amax = 0;
  for (int i = static_cast<int>(threadIdx.x); i < kBlockTile * kBlockTile; i += kBlockThreads) {
    const int r = i / kBlockTile, c = i % kBlockTile;
    const bool inside = row0 + r < args.rows && col0 + c < args.cols;
    const T value = inside ? args.x[(row0 + r) * args.cols + col0 + c] : from_float<T>(0.0f);
    tile[r * kStride + c] = value;
    amax = max(amax, magnitude_bits(to_float(value)));
  }
  uint32_t tile_amax = __reduce_max_sync(0xFFFFFFFFu, amax);
  if (threadIdx.x % 32 == 0) warp_amax[threadIdx.x / 32] = tile_amax;
  __syncthreads();
  for (int i = 0; i < kBlockThreads / 32; ++i) tile_amax = max(tile_amax, warp_amax[i]);
  if (args.rowwise.codes) {
    quantize_tile(args.rowwise, args.granularity, args.pow2, row0, col0, args.rows, args.cols, tile_amax,
                  [&](int r, int k) { return to_float(tile[r * kStride + k]); });
  }
  if (args.colwise.codes) {
    quantize_tile(args.colwise, args.granularity, args.pow2, col0, row0, args.cols, args.rows, tile_amax,
                  [&](int r, int k) { return to_float(tile[k * kStride + r]); });
  }
  record_amax(amax, args.amax, gridDim.x * gridDim.y);
}

// ---- statistics ----

struct StatsArgs {
  const uint8_t* codes;
  const void* scales;     // of blocks
  const ScaleSlot* slot;  // per tensor
  int64_t rows, depth;    // of the copy
  bool colwise;           // the copy is the transpose of x
  bool e5m2;
  Granularity granularity;
};

constexpr int kStatsThreads = 256;
constexpr int kStatsBlocks = 512;

template <class T>
__global__ void stats_kernel(const T* x, const StatsArgs args, double* partials) {
  double values[5] = {};
  const int64_t count = args.rows * args.depth;
  const float bound = args.e5m2 ? 61440.0f : 464.0f;
  for (int64_t i = blockIdx.x * static_cast<int64_t>(kStatsThreads) + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * kStatsThreads) {
    const int64_t row = i / args.depth, k = i % args.depth;
    const float value = to_float(x[args.colwise ? k * args.rows + row : i]);
    const uint8_t code = args.codes[i];
    float scale, factor;
    if (args.granularity == Granularity::Tensor) {
      scale = args.colwise ? args.slot->scale_colwise : args.slot->scale_rowwise;
      factor = args.colwise ? args.slot->inverse_colwise : args.slot->inverse_rowwise;
    } else {
      if (args.granularity == Granularity::Row32) {
        const uint8_t exponent =
            static_cast<const uint8_t*>(args.scales)[row * ((args.depth + 31) / 32) + k / 32];
        factor = __uint_as_float(static_cast<uint32_t>(exponent) << 23);
      } else {
        const int64_t line = args.granularity == Granularity::Block128 ? row / kBlockTile : row;
        factor = static_cast<const float*>(
            args.scales)[line * ((args.depth + kBlockTile - 1) / kBlockTile) + k / kBlockTile];
      }
      scale = 1.0f / factor;
    }
    values[0] += 1.0;
    values[1] += fabsf(value * scale) > bound ? 1.0 : 0.0;
    values[2] += value != 0.0f && (code & 0x7F) == 0 ? 1.0 : 0.0;
    if (magnitude_bits(value) >= kInfinityBits) continue;
    const double error = static_cast<double>(decode1(code, args.e5m2) * factor) - static_cast<double>(value);
    values[3] += static_cast<double>(value) * static_cast<double>(value);
    values[4] += error * error;
  }
  __shared__ double shared[kStatsThreads];
  for (int v = 0; v < 5; ++v) {
    shared[threadIdx.x] = values[v];
    __syncthreads();
    for (int half = kStatsThreads / 2; half > 0; half /= 2) {
      if (static_cast<int>(threadIdx.x) < half) shared[threadIdx.x] += shared[threadIdx.x + half];
      __syncthreads();
    }
    if (threadIdx.x == 0) partials[blockIdx.x * 5 + v] = shared[0];
    __syncthreads();
  }
}

__global__ void add_stats_kernel(QuantStats* stats, const double* partials, int blocks,
                                 const ScaleSlot* slot) {
  double* fields[5] = {&stats->elements, &stats->saturated, &stats->flushed, &stats->signal, &stats->noise};
  const int v = static_cast<int>(threadIdx.x);
  if (v < 5) {
    double total = 0;
    for (int i = 0; i < blocks; ++i) total += partials[i * 5 + v];
    *fields[v] += total;
  } else if (v == 5) {
    const uint32_t before = magnitude_bits(static_cast<float>(stats->amax));
    stats->amax = static_cast<double>(__uint_as_float(max(before, magnitude_bits(slot->amax_last))));
  }
}

}  // namespace
}  // namespace device

void CudaOps::quantize_blocks(const Operand& operand) {
  const OpScope scope(profiler_, OpKind::Quantize, "quantize_blocks", bytes_of(operand));
  const Quantized& fp8 = *operand.fp8;
  const auto copy = [](const QuantizedMatrix& matrix, DType format) {
    return device::BlockCopy{static_cast<uint8_t*>(matrix.codes.data), matrix.scales.data,
                             format == DType::E5M2};
  };
  dispatch_real("quantize", operand.dense.dtype, [&]<class T>(T) {
    device::BlockArgs<T> args{.x = static_cast<const T*>(operand.dense.data),
                              .rows = operand.dense.rows(),
                              .cols = operand.dense.cols(),
                              .granularity = fp8.rule.granularity,
                              .pow2 = fp8.rule.pow2_scales,
                              .rowwise = copy(fp8.rowwise, fp8.rule.format_rowwise),
                              .colwise = copy(fp8.colwise, fp8.rule.format_colwise),
                              .amax = {.slot = fp8.slot, .record = true}};
    if (args.rows == 0 || args.cols == 0) return;
    const dim3 grid(narrow<unsigned>(div_up(args.cols, device::kBlockTile)),
                    narrow<unsigned>(div_up(args.rows, device::kBlockTile)));
    require(grid.y <= 65535, "[cuda] quantize: {} rows are too many", args.rows);
    const auto shared = device::kBlockTile * (device::kBlockTile * sizeof(T) + 4);
    cuda_check(cudaFuncSetAttribute(device::quantize_blocks_kernel<T>,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
               "quantize");
    device::quantize_blocks_kernel<T><<<grid, device::kBlockThreads, shared, stream()>>>(args);
    check_launch("quantize");
  });
}

void CudaOps::record_stats(const Operand& operand) {
  const OpScope scope(profiler_, OpKind::Quantize, "record_stats", bytes_of(operand.dense));
  const Quantized& fp8 = *operand.fp8;
  const bool colwise = !fp8.rowwise;
  const QuantizedMatrix& copy = colwise ? fp8.colwise : fp8.rowwise;
  if (!copy) return;
  const device::StatsArgs args{.codes = static_cast<const uint8_t*>(copy.codes.data),
                               .scales = copy.scales.data,
                               .slot = fp8.slot,
                               .rows = copy.codes.rows(),
                               .depth = copy.codes.cols(),
                               .colwise = colwise,
                               .e5m2 = copy.codes.dtype == DType::E5M2,
                               .granularity = copy.granularity};
  Scratch space = scratch("quantize");
  auto* partials = space.take<double>(device::kStatsBlocks * 5);
  dispatch_real("quantize", operand.dense.dtype, [&]<class T>(T) {
    device::stats_kernel<<<device::kStatsBlocks, device::kStatsThreads, 0, stream()>>>(
        static_cast<const T*>(operand.dense.data), args, partials);
  });
  check_launch("quantize statistics");
  device::add_stats_kernel<<<1, 32, 0, stream()>>>(fp8.stats, partials, device::kStatsBlocks, fp8.slot);
  check_launch("quantize statistics");
}

}  // namespace octet
