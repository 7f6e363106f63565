#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/element.h"

namespace octet {

void CpuOps::rotate(const Tensor& qkv, const Tensor& positions, const Tensor& table,
                    const AttentionShape& shape, float direction) {
  const int64_t rows = qkv.rows(), width = qkv.cols(), half = shape.head_dim / 2;
  require(width == shape.qkv_width() && positions.numel() == rows && shape.head_dim % 2 == 0,
          "[rope] qkv {} and {} positions do not fit {} + 2 * {} heads of width {}", qkv.shape.to_string(),
          positions.numel(), shape.heads, shape.kv_heads, shape.head_dim);
  require(table.cols() == shape.head_dim && table.dtype == DType::F32,
          "[rope] the table is {} {}, expected fp32, width {}", name_of(table.dtype), table.shape.to_string(),
          shape.head_dim);
  const int32_t* position = positions.as<int32_t>();
  for (int64_t r = 0; r < rows; ++r) {
    require(position[r] >= 0 && position[r] < table.rows(), "[rope] a position is {}, expected 0 to {}",
            position[r], table.rows() - 1);
  }
  cpu::dispatch_real("rope", qkv.dtype, [&]<class T>(T) {
    parallel_.for_range(rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const float* cosine = table.as<float>() + position[r] * shape.head_dim;
        const float* sine = cosine + half;
        for (int64_t head = 0; head < shape.heads + shape.kv_heads; ++head) {
          T* __restrict low = qkv.as<T>() + r * width + head * shape.head_dim;
          T* __restrict high = low + half;
          for (int64_t i = 0; i < half; ++i) {
            const float a = cpu::load(low[i]), b = cpu::load(high[i]), s = direction * sine[i];
            low[i] = cpu::store<T>(a * cosine[i] - b * s);
            high[i] = cpu::store<T>(b * cosine[i] + a * s);
          }
        }
      }
    });
  });
}

void CpuOps::rope_forward(Tensor qkv, Tensor positions, Tensor table, const AttentionShape& shape) {
  const cpu::HostScope scope = timed({.kind = OpKind::Rope, .op = "rope_forward"});
  rotate(qkv, positions, table, shape, 1.0f);
}

void CpuOps::rope_backward(const Operand& dqkv, Tensor positions, Tensor table, const AttentionShape& shape) {
  const cpu::HostScope scope = timed({.kind = OpKind::Rope, .op = "rope_backward"});
  rotate(dqkv.dense, positions, table, shape, -1.0f);
  finish(dqkv);
}

}  // namespace octet
