#include <bit>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/element.h"
#include "base/philox.h"
#include "ops/remainder.h"

namespace octet {

void CpuOps::fill_normal(Tensor x, Tensor remainder, float deviation, uint64_t seed, uint64_t stream,
                         int64_t first) {
  const cpu::HostScope scope = timed({.kind = OpKind::Other, .op = "fill_normal"});
  constexpr std::string_view op = "fill_normal";
  cpu::require_real(op, "x", x);
  require_remainder(op, x, remainder);
  const Philox random(seed, stream);
  const auto normal = [&](int64_t i) { return deviation * random.normal(static_cast<uint64_t>(first + i)); };
  if (kind_of_remainder(remainder) == RemainderKind::Compact) {
    const int64_t cols = x.cols(), row_bytes = compact_row_bytes(cols);
    parallel_.for_each(x.rows(), [&](int64_t row, int) {
      for (int64_t pair = 0; pair < row_bytes; ++pair) {
        uint32_t nibbles[2] = {};
        for (int64_t col = 2 * pair; col < std::min(2 * pair + 2, cols); ++col) {
          const uint32_t bits = compact_nearest(std::bit_cast<uint32_t>(normal(row * cols + col)));
          x.as<Bf16>()[row * cols + col].bits = split_high(bits);
          nibbles[col % 2] = compact_nibble(bits);
        }
        remainder.as<uint8_t>()[row * row_bytes + pair] = pair_of_nibbles(nibbles[0], nibbles[1]);
      }
    });
    return;
  }
  constexpr int64_t kChunk = 1 << 12;
  parallel_.for_each(div_up(x.numel(), kChunk), [&](int64_t chunk, int) {
    const int64_t end = std::min(x.numel(), (chunk + 1) * kChunk);
    for (int64_t i = chunk * kChunk; i < end; ++i) {
      const float value = normal(i);
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
