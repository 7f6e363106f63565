#pragma once

#include "model/linear.h"

namespace octet {

// How much of a block's forward pass is kept for backward; the rest is computed again. Losses are bit-equal at
// every level.
enum class Checkpointing : uint8_t {
  None,   // everything is kept
  Act,    // norm outputs and the activation's output are recomputed
  Mlp,    // and the MLP's first product
  Block,  // only the block's input is kept
};

// The one reading of a level: planner, forward and backward all ask this.
struct KeepPolicy {
  bool norm_out = true;   // outputs of both norms
  bool act_out = true;    // output of the activation
  bool up_out = true;     // output of the MLP's first product
  bool attention = true;  // qkv (before the norm of its heads, too), attention output, log-sum-exp, the residual
                          // after attention, norm statistics
  explicit KeepPolicy(Checkpointing level)
      : norm_out(level < Checkpointing::Act),
        act_out(level < Checkpointing::Act),
        up_out(level < Checkpointing::Mlp),
        attention(level < Checkpointing::Block) {}
};

// The moments of a micro-step, as lifetimes count them: embedding, blocks up, head and loss, blocks down.
struct Timeline {
  int64_t layers = 0;
  int64_t embedding() const { return 0; }
  int64_t forward(int64_t layer) const { return 1 + layer; }
  int64_t head() const { return 1 + layers; }
  int64_t backward(int64_t layer) const { return 1 + 2 * layers - layer; }
  int64_t end() const { return 2 + 2 * layers; }
};

struct Norm {
  Parameter* gain = nullptr;
  Parameter* bias = nullptr;  // LayerNorm only
};

// One layer: its parameters and its activations. N tokens, C width, F feed-forward width; H, K, D as in ops.
//   residual_in  = residual + delta of the layer before          attention_norm -> qkv [-> qk_norm] -> rope -> attention -> out
//   residual_mid = residual_in + out's result                    mlp_norm -> up -> activation -> down
struct Block {
  Norm attention_norm, mlp_norm;
  Norm q_norm, k_norm;  // of heads, where the model has them
  Linear qkv, out, up, down;

  Tensor residual_in;                    // (N, C)
  Tensor attention_mean, attention_inv;  // (N) fp32
  Tensor attention_normed;               // (N, C) input of qkv
  Tensor qk_raw;                         // (N, (H + K) * D) queries and keys before their norm
  Tensor qk_inv;                         // (N, H + K) fp32
  Tensor qkv_out;                        // (N, (H + 2K) * D) after the rotation
  Tensor attended;                       // (N, H * D) input of out
  Tensor lse;                            // (H, N) fp32
  Tensor residual_mid;                   // (N, C)
  Tensor mlp_mean, mlp_inv;              // (N) fp32
  Tensor mlp_normed;                     // (N, C) input of up
  Tensor up_out;                         // (N, F or 2F)
  Tensor act_out;                        // (N, F) input of down
};

// Buffers that all blocks take turns in.
struct SharedBuffers {
  Block recomputed;  // the activations of whichever block is being worked on, where they are not kept
  ColwiseBuffers qkv_input, out_input, up_input, down_input;  // likewise, the FP8 copies for wgrad
  QuantizedScratch fp8;
  Tensor delta;      // (N, C) what the last Linear adds to the residual
  Tensor dresidual;  // (N, C)
  Tensor dnormed;    // (N, C)
  Tensor dattended;  // (N, H * D)
  Tensor dqkv;       // (N, (H + 2K) * D)
  Tensor dact;       // (N, F)
  Tensor dup;        // (N, F or 2F)
};

}  // namespace octet
