#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/device/vec.cuh"
#include "base/philox.h"
#include "ops/remainder.h"

namespace octet {
namespace device {
namespace {

constexpr int kThreads = 256;

// If `wide` is given, the value is stored there; otherwise as bf16 plus the 16-bit remainder.
__global__ void fill_normal_kernel(float* wide, uint16_t* narrow, uint16_t* remainder, int64_t count,
                                   float deviation, uint64_t seed, uint64_t stream, int64_t first) {
  const Philox random(seed, stream);
  for (int64_t i = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const float value = __fmul_rn(deviation, random.normal(static_cast<uint64_t>(first + i)));
    if (wide) {
      wide[i] = value;
      continue;
    }
    const uint32_t bits = __float_as_uint(value);
    narrow[i] = split_high(bits);
    if (remainder) remainder[i] = split_low(bits);
  }
}

// A thread makes the two weights whose nibbles share a byte. x has `cols` columns.
__global__ void fill_compact_kernel(uint16_t* x, uint8_t* remainder, int64_t rows, int64_t cols,
                                    float deviation, uint64_t seed, uint64_t stream, int64_t first) {
  const Philox random(seed, stream);
  const int64_t across = (cols + 1) / 2;
  for (int64_t i = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x; i < rows * across;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int64_t row = i / across, col = 2 * (i % across);
    uint32_t nibbles[2] = {};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if (col + j >= cols) continue;
      const int64_t place = row * cols + col + j;
      const float value = __fmul_rn(deviation, random.normal(static_cast<uint64_t>(first + place)));
      const uint32_t bits = compact_nearest(__float_as_uint(value));
      x[place] = split_high(bits);
      nibbles[j] = compact_nibble(bits);
    }
    remainder[i] = pair_of_nibbles(nibbles[0], nibbles[1]);
  }
}

}  // namespace
}  // namespace device

void CudaOps::fill_normal(Tensor x, Tensor remainder, float deviation, uint64_t seed, uint64_t stream,
                          int64_t first) {
  constexpr const char* op = "fill_normal";
  require(x.dtype == DType::F32 || x.dtype == DType::BF16, "[cuda] {}: x is {}, expected fp32 or bf16", op,
          name_of(x.dtype));
  require_remainder("cuda fill_normal", x, remainder);
  if (x.numel() == 0) return;
  const bool wide = x.dtype == DType::F32;
  const auto blocks =
      static_cast<unsigned>(std::min<int64_t>(div_up(x.numel(), device::kThreads), 16 * sm_count()));
  if (kind_of_remainder(remainder) == RemainderKind::Compact) {
    device::fill_compact_kernel<<<blocks, device::kThreads, 0, this->stream()>>>(
        static_cast<uint16_t*>(x.data), static_cast<uint8_t*>(remainder.data), x.rows(), x.cols(), deviation,
        seed, stream, first);
    check_launch(op);
    return;
  }
  device::fill_normal_kernel<<<blocks, device::kThreads, 0, this->stream()>>>(
      wide ? static_cast<float*>(x.data) : nullptr, wide ? nullptr : static_cast<uint16_t*>(x.data),
      static_cast<uint16_t*>(remainder.data), x.numel(), deviation, seed, stream, first);
  check_launch(op);
}

}  // namespace octet
