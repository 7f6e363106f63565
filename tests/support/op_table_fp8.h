#pragma once

#include "support/op_table_detail.h"

namespace octet::test {

// The outputs of a case that hold a tensor in FP8: codes and scales of both copies, and the slot.
struct Fp8Outputs {
  QuantizeRule rule;
  int rowwise = -1, colwise = -1, row_scales = -1, col_scales = -1, slot = -1;

  Quantized of(const Args& args) const;
  std::vector<int> all() const;
};

Fp8Outputs add_fp8(OpCase& op, const std::string& name, int64_t rows, int64_t cols, const QuantizeRule& rule,
                   Compare compare);

// A slot in use: scales that differ, an amax from before.
constexpr ScaleSlot used_slot(float rowwise = 37.5f, float colwise = 12.25f) {
  return {.scale_rowwise = rowwise,
          .scale_colwise = colwise,
          .amax = 0.5f,
          .amax_last = 9.0f,
          .inverse_rowwise = 1.0f / rowwise,
          .inverse_colwise = 1.0f / colwise};
}

}  // namespace octet::test
