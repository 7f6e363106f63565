#pragma once

#include <cstdint>

namespace octet::cpu {

// Bytes of workspace grad_norm and adamw need for so many parameter tensors.
int64_t optimizer_workspace(int64_t parameters);

}  // namespace octet::cpu
