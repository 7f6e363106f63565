#pragma once

#include "model/linear.h"

namespace octet {

// Shared by the two parts of a layer (model/attention_part.h, model/mlp_part.h).

// How much of a layer's forward pass is kept for backward; the rest is recomputed. Losses are bit-equal at every level.
enum class Checkpointing : uint8_t {
  None,   // everything is kept
  Act,    // norm outputs and the activation's output are recomputed
  Mlp,    // and the MLP's first product
  Block,  // only the layer's input is kept
};

// The meaning of a level of recomputation. Planner, forward and backward all use it.
struct KeepPolicy {
  bool norm_out = true;  // outputs of both norms
  bool act_out = true;   // output of the activation
  bool up_out = true;    // output of the MLP's first product
  // qkv (also before the norm of its heads), attention output, log-sum-exp, the residual after attention, norm
  // statistics
  bool attention = true;
  explicit KeepPolicy(Checkpointing level)
      : norm_out(level < Checkpointing::Act),
        act_out(level < Checkpointing::Act),
        up_out(level < Checkpointing::Mlp),
        attention(level < Checkpointing::Block) {}
};

// One pass over the layers in training, evaluation or decoding: the arguments that every part gets.
struct LayerPass {
  Ops& ops;
  const ModelConfig& config;
  KeepPolicy keep;
  bool fp8 = true;         // otherwise every Linear that has a dense weight is dense
  bool recompute = false;  // compute only what the policy did not keep
  // The gradient of the embedding's output is not needed: everything below the first layer's Linears is frozen.
  bool stops_at_bottom = false;

  Tensor positions;     // (N) int32
  Tensor rope_table;    // (P, D) fp32; absent with learned positions
  Documents documents;  // of the micro-batch; not for decoding
  // Decoding only: the cached sequence per token, and at least the largest position + 1.
  Tensor sequences;  // (N) int32
  int64_t longest = 0;
};

// The gradients that the layers pass down, in buffers that they share one at a time.
struct GradientBuffers {
  Tensor dresidual;  // (N, C)
  Tensor dnormed;    // (N, C)
  Tensor dattended;  // (N, H * D)
  Tensor dqkv;       // (N, (H + 2K) * D)
  Tensor dact;       // (N, F)
  Tensor dup;        // (N, F or 2F)

  // dresidual as norm backward leaves it for `reader`, the Linear below; null at the bottom of the model.
  Operand residual_for(Linear* reader) const {
    return reader ? reader->gradient(dresidual, true) : Operand{.dense = dresidual};
  }
};

struct Norm {
  Parameter* gain = nullptr;
  Parameter* bias = nullptr;  // LayerNorm only

  // The parameters `name`.gain and `name`.bias of a model.
  static Norm find(ParameterSet& parameters, const std::string& name, const ModelConfig& config);

  // residual = x + delta; y = norm(residual).
  void forward(const LayerPass& pass, const Operand& y, Tensor residual, Tensor mean, Tensor inv, Tensor x,
               Tensor delta) const;
  void backward(const LayerPass& pass, const Operand& dresidual, Tensor dy, Tensor residual, Tensor mean,
                Tensor inv) const;
};

// A row of the table of a part's activations: `view` is the member that holds it.
template <class Part>
struct ActivationEntry {
  Tensor Part::Activations::*view;
  const char* name;  // after "layers.N."
  DType dtype;
  Shape shape;
  bool kept;                         // by the policy; otherwise the layers share one buffer
  Linear Part::*input_of = nullptr;  // kept only if this Linear reads it again for its weight gradient
};

// A row of the table of a part's Linears.
template <class Part>
struct LinearEntry {
  Linear Part::*linear;
  const char* name;  // of its parameters after "layers.N.", without ".weight"
  int64_t out, in;
  bool bias;
  bool input_kept;           // by the policy: the FP8 copy of its input that backward reads
  bool dense_input = false;  // backward has the dense input anyway
};

}  // namespace octet
