#pragma once

#include "model/linear_operands.h"

namespace octet {

// y = x W^T + b with its three products, each in FP8 or in the run's dense dtype as the choice says. Its parts answer
// where the weight is, and in which form x and dy are.
class Linear {
 public:
  Linear() = default;
  Linear(LinearSpec spec, Parameter& weight, Parameter* bias, LinearAdapter adapter = {});

  // Registers the tensors that are quantised and plans the FP8 copies of the weight. The copies of x and dy are placed by
  // `operands`.
  void plan(BufferPlanner& planner, ScaleTable& scales, bool training,
            WeightCopies copies = WeightCopies::Two);

  // The form in which the previous op writes the input, and the next op the gradient of the output. `dense` is a
  // buffer of the whole tensor. With fp8 false everything is dense (evaluation in BF16).
  Operand input(Tensor dense, bool fp8) { return operands.input(dense, fp8); }
  Operand gradient(Tensor dense, bool keep_dense) {
    return operands.gradient(dense, keep_dense, bias_ ? bias_->gradient : Tensor{});
  }

  // y may be part of a fused matrix. In a recompute pass, the adapters' first product is there already.
  void forward(Ops& ops, Matrix y, const Operand& x, bool recompute = false) const;
  // dx may be absent. The weight's gradient is added to what is there, or with `overwrite` replaces it; a frozen
  // weight has none.
  void backward(Ops& ops, Matrix dx, const Operand& x, const Operand& dy, bool overwrite) const;

  LinearSpec spec;
  Weight weight;
  LinearOperands operands;

 private:
  Parameter* bias_ = nullptr;
};

}  // namespace octet
