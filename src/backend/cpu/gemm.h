#pragma once

#include <cstdint>

namespace octet::cpu {

// Bytes of workspace a product of this size needs; `convert` when the operands are not fp32. A smaller product never needs more,
// so callers plan for the largest one.
int64_t gemm_workspace(int64_t m, int64_t n, int64_t k, int threads, bool convert);

}  // namespace octet::cpu
