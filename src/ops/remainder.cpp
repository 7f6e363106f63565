#include "ops/remainder.h"

#include "base/error.h"

namespace octet {

void require_remainder(std::string_view op, const Tensor& weight, const Tensor& remainder) {
  if (!remainder) return;
  require(remainder.dtype == DType::U16 || remainder.dtype == DType::U8,
          "[{}] the remainder is {}, expected uint16 or uint8", op, name_of(remainder.dtype));
  const bool exact = remainder.dtype == DType::U16;
  const int64_t count =
      exact ? weight.numel() : weight.rows() * remainder_row_bytes(RemainderKind::Compact, weight.cols());
  require(weight.dtype == DType::BF16 && remainder.numel() == count,
          "[{}] a remainder of {} {} for a weight of {} {}, expected {} elements and a weight in bf16", op,
          name_of(remainder.dtype), remainder.shape.to_string(), name_of(weight.dtype),
          weight.shape.to_string(), count);
}

}  // namespace octet
