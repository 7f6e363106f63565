#pragma once

#include "model/families/sizes.h"

namespace octet {

// What Llama and the families that follow it share: RMSNorm, rotary positions, SwiGLU, separate matrices without biases.

// Where a family's class in Transformers has defaults of its own for absent fields.
struct LlamaLikeDefaults {
  int64_t max_positions = 0;
  std::optional<int64_t> kv_heads;  // otherwise the number of heads
  std::optional<int64_t> head_dim;  // otherwise width / heads
};

TensorNames llama_like_tensors();
// Two thirds of four times the width, as a gated MLP has three matrices; in whole blocks of 128.
int64_t llama_like_ffn(int64_t width);
void read_llama_like(const HfFields& fields, ModelConfig& config, const LlamaLikeDefaults& defaults);
// Qwen's window, which only the layers from max_window_layers on have.
void refuse_partial_window(const HfFields& fields);
HfJson write_llama_like(const ModelConfig& config);
// Name, tensor names and the like of a new family; the reader and writer are left to the caller.
FamilySpec llama_like_family(std::string name, std::string architecture);

}  // namespace octet
