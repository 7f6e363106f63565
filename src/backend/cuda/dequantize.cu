#include "backend/cuda/device/tile_kernel.cuh"
#include "backend/op_checks.h"

namespace octet {
namespace device {
namespace {

// 16 codes of a row per thread with `vector`, otherwise one.
template <bool vector, class T>
__global__ void dequantize_kernel(T* dense, const uint8_t* codes, int64_t stride, int64_t rows, int64_t cols,
                                  const float* scale, bool e5m2) {
  constexpr int kCodes = vector ? 16 : 1;
  const float factor = *scale;
  const int64_t across = cols / kCodes;
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < rows * across;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const int64_t row = i / across, col = i % across * kCodes;
    const uint8_t* from = codes + row * stride + col;
    T* to = dense + row * cols + col;
    if constexpr (vector) {
      const uint4 raw = load_once(from);
      const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float values[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const uint32_t code = words[2 * half + j / 4] >> (8 * (j % 4)) & 0xFFu;
          values[j] = __fmul_rn(decode1(static_cast<uint8_t>(code), e5m2), factor);
        }
        Pack8<T>::pack(values).store(to + 8 * half);
      }
    } else {
      *to = from_float<T>(__fmul_rn(decode1(*from, e5m2), factor));
    }
  }
}

}  // namespace
}  // namespace device

void CudaOps::dequantize(Tensor dense, const QuantizedMatrix& x) {
  constexpr const char* op = "dequantize";
  check_dequantize(dense, x);
  const int64_t rows = x.codes.rows(), cols = x.codes.cols();
  const OpScope scope(
      profiler_,
      {.kind = OpKind::Adapters, .op = op, .bytes = bytes_of(x.codes, dense), .m = rows, .n = 0, .k = cols});
  if (rows == 0 || cols == 0) return;
  constexpr int kThreads = 256;
  const bool vector = whole_vectors(x) && aligned16(dense.data);
  const auto blocks = narrow<unsigned>(
      std::clamp<int64_t>(div_up(rows * cols, kThreads * (vector ? 16 : 1)), 1, 16 * sm_count()));
  dispatch_real(op, dense.dtype, [&]<class T>(T) {
    const auto kernel = vector ? device::dequantize_kernel<true, T> : device::dequantize_kernel<false, T>;
    kernel<<<blocks, kThreads, 0, stream()>>>(static_cast<T*>(dense.data),
                                              static_cast<const uint8_t*>(x.codes.data), x.row_stride(), rows,
                                              cols, x.tensor_scale, x.codes.dtype == DType::E5M2);
  });
  check_launch(op);
}

}  // namespace octet
