#include "tensor/split_fp32.h"

#include <cstring>

#include "base/parallel_for.h"

namespace octet {

int64_t remainder_row_bytes(RemainderKind kind, int64_t cols) {
  switch (kind) {
    case RemainderKind::None:
      return 0;
    case RemainderKind::Compact:
      return compact_row_bytes(cols);
    case RemainderKind::Exact:
      return 2 * cols;
  }
  return 0;
}

void split_weights(std::span<const float> values, int64_t cols, RemainderKind kind, uint16_t* high,
                   std::byte* remainder) {
  const int64_t rows = cols == 0 ? 0 : static_cast<int64_t>(values.size()) / cols;
  const int64_t row_bytes = remainder_row_bytes(kind, cols);
  parallel_for(rows, rows_per_piece(cols), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* from = values.data() + row * cols;
      uint16_t* to = high + row * cols;
      std::byte* low = remainder + row * row_bytes;
      if (kind == RemainderKind::Compact) std::memset(low, 0, static_cast<size_t>(row_bytes));
      for (int64_t col = 0; col < cols; ++col) {
        auto bits = std::bit_cast<uint32_t>(from[col]);
        if (kind == RemainderKind::Compact) {
          bits = compact_nearest(bits);
          low[col / 2] |= std::byte{static_cast<uint8_t>(compact_nibble(bits) << (col % 2 * 4))};
        } else if (kind == RemainderKind::Exact) {
          const uint16_t part = split_low(bits);
          std::memcpy(low + 2 * col, &part, 2);
        }
        to[col] = split_high(bits);
      }
    }
  });
}

void add_remainders(std::span<float> values, int64_t cols, RemainderKind kind, const std::byte* remainder) {
  if (kind == RemainderKind::None) return;
  const int64_t rows = cols == 0 ? 0 : static_cast<int64_t>(values.size()) / cols;
  const int64_t row_bytes = remainder_row_bytes(kind, cols);
  parallel_for(rows, rows_per_piece(cols), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* to = values.data() + row * cols;
      const std::byte* low = remainder + row * row_bytes;
      for (int64_t col = 0; col < cols; ++col) {
        auto bits = std::bit_cast<uint32_t>(to[col]);
        if (kind == RemainderKind::Compact) {
          bits = join_nibble(bits, nibble_of(std::to_integer<uint8_t>(low[col / 2]), col));
        } else {
          uint16_t part = 0;
          std::memcpy(&part, low + 2 * col, 2);
          bits = join_bits(bits, part);
        }
        to[col] = std::bit_cast<float>(bits);
      }
    }
  });
}

}  // namespace octet
