#pragma once

#include <string_view>

#include "tensor/split_fp32.h"
#include "tensor/tensor.h"

namespace octet {

// The kind of remainder of a weight that an op gets: see tensor/split_fp32.h.
inline RemainderKind kind_of_remainder(const Tensor& remainder) {
  if (!remainder) return RemainderKind::None;
  return remainder.dtype == DType::U8 ? RemainderKind::Compact : RemainderKind::Exact;
}

// Fails if the remainder, where there is one, does not fit the weight.
void require_remainder(std::string_view op, const Tensor& weight, const Tensor& remainder);

}  // namespace octet
