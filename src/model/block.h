#pragma once

#include "model/attention_part.h"
#include "model/mlp_part.h"

namespace octet {

// The moments of a micro-step, as lifetimes count them: embedding, layers up, head and loss, layers down.
struct Timeline {
  int64_t layers = 0;
  int64_t embedding() const { return 0; }
  int64_t forward(int64_t layer) const { return 1 + layer; }
  int64_t head() const { return 1 + layers; }
  int64_t backward(int64_t layer) const { return 1 + 2 * layers - layer; }
  int64_t end() const { return 2 + 2 * layers; }
};

// One layer in training: its two parts and what their forward passes leave for backward.
struct Block {
  AttentionPart attention;
  MlpPart mlp;
  AttentionPart::Activations attention_acts;
  MlpPart::Activations mlp_acts;
};

// Buffers that all blocks share, one block at a time.
struct SharedBuffers {
  // Activations of the current block that are not kept.
  AttentionPart::Activations attention_acts;
  MlpPart::Activations mlp_acts;
  // FP8 copies of inputs, for backward; one per Linear, in their order.
  QuantizedBuffers attention_inputs[2], mlp_inputs[2];
  QuantizedScratch fp8;
  QuantizedBuffers transposed_weight;  // of the Linear whose dgrad runs, where only one copy is kept
  AdapterScratch adapter;
  Tensor delta;  // (N, C) what the last Linear adds to the residual
  GradientBuffers gradients;
};

}  // namespace octet
