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

}  // namespace octet
