#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/device/vec.cuh"
#include "base/philox.h"
#include "tensor/split_fp32.h"

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

}  // namespace
}  // namespace device

void CudaOps::fill_normal(Tensor x, Tensor remainder, float deviation, uint64_t seed, uint64_t stream,
                          int64_t first) {
  constexpr const char* op = "fill_normal";
  require(x.dtype == DType::F32 || x.dtype == DType::BF16, "[cuda] {}: x is {}, expected fp32 or bf16", op,
          name_of(x.dtype));
  require(!remainder ||
              (remainder.dtype == DType::U16 && x.dtype == DType::BF16 && remainder.numel() == x.numel()),
          "[cuda] {}: a remainder of {} {} for x {} {}", op, name_of(remainder.dtype),
          remainder.shape.to_string(), name_of(x.dtype), x.shape.to_string());
  if (x.numel() == 0) return;
  const bool wide = x.dtype == DType::F32;
  const auto blocks =
      static_cast<unsigned>(std::min<int64_t>(div_up(x.numel(), device::kThreads), 16 * sm_count()));
  device::fill_normal_kernel<<<blocks, device::kThreads, 0, this->stream()>>>(
      wide ? static_cast<float*>(x.data) : nullptr, wide ? nullptr : static_cast<uint16_t*>(x.data),
      static_cast<uint16_t*>(remainder.data), x.numel(), deviation, seed, stream, first);
  check_launch(op);
}

}  // namespace octet
