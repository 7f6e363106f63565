#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/element.h"
#include "backend/op_checks.h"

namespace octet {

void CpuOps::dequantize(Tensor dense, const QuantizedMatrix& x) {
  const cpu::HostScope scope = timed({.kind = OpKind::Quantize, .op = "dequantize"});
  check_dequantize(dense, x);
  const float scale = *x.tensor_scale;
  const float* values = fp8_values(x.codes.dtype);
  const int64_t cols = x.codes.cols();
  cpu::dispatch_real("dequantize", dense.dtype, [&]<class T>(T) {
    parallel_.for_each(x.codes.rows(), [&](int64_t row, int) {
      const uint8_t* from = x.codes.as<uint8_t>() + row * x.row_stride();
      T* to = dense.as<T>() + row * cols;
      for (int64_t c = 0; c < cols; ++c) to[c] = cpu::store<T>(values[from[c]] * scale);
    });
  });
}

}  // namespace octet
