#include <bit>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/element.h"
#include "base/philox.h"
#include "tensor/split_fp32.h"

namespace octet {

void CpuOps::fill_normal(Tensor x, Tensor remainder, float deviation, uint64_t seed, uint64_t stream,
                         int64_t first) {
  constexpr std::string_view op = "fill_normal";
  cpu::require_real(op, "x", x);
  if (remainder) {
    cpu::require_dtype(op, "remainder", remainder, DType::U16);
    require(x.dtype == DType::BF16 && remainder.numel() == x.numel(),
            "[{}] a remainder of {} for x {} {}, expected the same shape and x in bf16", op,
            remainder.shape.to_string(), name_of(x.dtype), x.shape.to_string());
  }
  const Philox random(seed, stream);
  constexpr int64_t kChunk = 1 << 12;
  parallel_.for_each(div_up(x.numel(), kChunk), [&](int64_t chunk, int) {
    const int64_t end = std::min(x.numel(), (chunk + 1) * kChunk);
    for (int64_t i = chunk * kChunk; i < end; ++i) {
      const float value = deviation * random.normal(static_cast<uint64_t>(first + i));
      if (x.dtype == DType::F32) {
        x.as<float>()[i] = value;
        continue;
      }
      const auto bits = std::bit_cast<uint32_t>(value);
      x.as<Bf16>()[i].bits = split_high(bits);
      if (remainder) remainder.as<uint16_t>()[i] = split_low(bits);
    }
  });
}

}  // namespace octet
