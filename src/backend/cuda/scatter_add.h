#pragma once

#include "backend/cuda/cuda_ops.h"

namespace octet {

// table[ids[n]] += factors[n] * x[n], without factors: += x[n]. Rows without an id (-1) are left out. Rows of one id are
// summed in fp32 in the order of n, and added once.
void scatter_add(CudaOps& ops, const char* op, const Tensor& table, const Tensor& x, const Tensor& ids,
                 const Tensor& factors);

}  // namespace octet
