#pragma once

#include <vector>

#include "model/layer.h"

namespace octet {

// The second half of a layer: residual = x + delta, then norm -> up -> activation -> down. The next layer adds the
// result to the residual. N tokens, C width, F feed-forward width.
struct MlpPart {
  struct Activations {
    Tensor residual;   // (N, C)
    Tensor mean, inv;  // (N) fp32
    Tensor normed;     // (N, C) input of up
    Tensor up;         // (N, F or 2F)
    Tensor act;        // (N, F) input of down
  };

  Norm norm;
  Linear up, down;

  static std::vector<LinearEntry<MlpPart>> linears(const ModelConfig& config, KeepPolicy keep);
  static std::vector<ActivationEntry<MlpPart>> activations(const ModelConfig& config, KeepPolicy keep,
                                                           int64_t tokens, DType dense);

  // As for AttentionPart; `result` may be `delta`. If the policy keeps the residual, a recompute pass needs neither x
  // nor delta.
  void forward(const LayerPass& pass, const Activations& a, Tensor x, Tensor delta, Tensor result);
  void backward(const LayerPass& pass, const Activations& a, const GradientBuffers& gradients, Linear* below,
                bool first);
};

}  // namespace octet
