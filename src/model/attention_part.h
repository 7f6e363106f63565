#pragma once

#include <vector>

#include "model/layer.h"

namespace octet {

// The first half of a layer: residual = x + delta, then norm -> qkv [-> norm of heads] -> rope -> attention -> out.
// The MLP part adds the result to the residual. N tokens, C width; H, K, D as in ops.
struct AttentionPart {
  struct Activations {
    Tensor residual;   // (N, C)
    Tensor mean, inv;  // (N) fp32
    Tensor normed;     // (N, C) input of qkv
    Tensor qk_raw;     // (N, (H + K) * D) queries and keys before their norm, where the model has one
    Tensor qk_inv;     // (N, H + K) fp32
    Tensor qkv;        // (N, (H + 2K) * D) after the rotation
    Tensor attended;   // (N, H * D) input of out
    Tensor lse;        // (H, N) fp32
  };

  Norm norm;
  Norm q_norm, k_norm;  // of heads, where the model has them
  Linear qkv, out;

  // The norms of layer `name` ("layers.3.") of a model.
  void find_norms(ParameterSet& parameters, const std::string& name, const ModelConfig& config);

  static std::vector<LinearEntry<AttentionPart>> linears(const ModelConfig& config, KeepPolicy keep);
  // All except the residual, which is planned with the residual stream.
  static std::vector<ActivationEntry<AttentionPart>> activations(const ModelConfig& config, KeepPolicy keep,
                                                                 int64_t tokens, DType dense);

  // With `cache`, the tokens continue cached sequences. In a recompute pass x is the kept residual without a delta.
  // Only what the policy dropped is recomputed, by the same ops in the same order, so it has the same bits.
  void forward(const LayerPass& pass, const Activations& a, Tensor x, Tensor delta, Tensor result,
               const KvCache* cache = nullptr);
  // On entry, dresidual is the gradient of the residual after this part, in the form that `out` reads. On return, it
  // is the gradient of the residual before this part, in the form that `below` reads. `first`: weight gradients are
  // written, not added to.
  void backward(const LayerPass& pass, const Activations& a, const GradientBuffers& gradients, Linear* below,
                bool first);
};

}  // namespace octet
