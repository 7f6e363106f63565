#include "backend/cuda/cuda_backend.h"

// Placeholder until the attention ops are there.

namespace octet {

int64_t attention_workspace_bytes(const WorkspaceNeeds&) { return 0; }

void CudaBackend::attention_forward(const Operand&, Tensor, Tensor, const Documents&, const AttentionShape&) {
  fail("[cuda] attention_forward is not implemented");
}

void CudaBackend::attention_backward(Tensor, Tensor, Tensor, Tensor, Tensor, const Documents&, const AttentionShape&) {
  fail("[cuda] attention_backward is not implemented");
}

}  // namespace octet
