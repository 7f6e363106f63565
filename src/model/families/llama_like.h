#pragma once

#include "model/families/sizes.h"

namespace octet {

// Shared by Llama and the families that follow it: RMSNorm, rotary positions, SwiGLU, separate matrices without biases.

// Defaults for absent fields, where the family's class in Transformers has its own.
struct LlamaLikeDefaults {
  int64_t max_positions = 0;
  std::optional<int64_t> kv_heads;  // otherwise the number of heads
  std::optional<int64_t> head_dim;  // otherwise width / heads
};

TensorNames llama_like_tensors();
// Two thirds of four times the width, because a gated MLP has three matrices; rounded up to blocks of 128.
int64_t llama_like_ffn(int64_t width);
void read_llama_like(const HfFields& fields, ModelConfig& config, const LlamaLikeDefaults& defaults);
// Qwen's window: only the layers from max_window_layers on have it.
void refuse_partial_window(const HfFields& fields);
HfJson write_llama_like(const ModelConfig& config);
// A new family with its name, tensor names and so on; the caller sets the reader and writer.
FamilySpec llama_like_family(std::string name, std::string architecture);

}  // namespace octet
