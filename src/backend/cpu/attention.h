#pragma once

#include <cstdint>

#include "ops/ops.h"

namespace octet::cpu {

int64_t attention_workspace(int64_t tokens, int64_t max_length, const AttentionShape& shape, int threads,
                            DType dtype);
int64_t decode_workspace(int64_t max_length, const AttentionShape& shape, int threads);

}  // namespace octet::cpu
