#pragma once

#include "model/parameters.h"
#include "precision/layer_choice.h"
#include "precision/scale_table.h"

namespace octet {

// Memory that the Linears of a model share one at a time: FP8 copies that live only from the op that makes them to
// the product that reads them.
struct QuantizedScratch {
  Tensor input_rowwise, input_rowwise_scales;
  Tensor gradient_rowwise, gradient_rowwise_scales;
  Tensor gradient_colwise, gradient_colwise_scales;
};

// Where the copy of the input that wgrad reads lives between forward and backward.
struct ColwiseBuffers {
  Tensor codes, scales;
};

// y = x W^T + b with its three products, each in FP8 or in the run's dense dtype as the choice says.
class Linear {
 public:
  Linear() = default;
  Linear(LinearSite site, LinearChoice choice, Parameter& weight, Parameter* bias);

  // Registers the slots and plans the FP8 copies of the weight. The input's and gradient's copies are placed by
  // attach_scratch and attach_input.
  void plan(BufferPlanner& planner, ScaleTable& scales, bool training);
  // `tokens` rows pass through at once.
  void attach_scratch(BufferPlanner& planner, QuantizedScratch& scratch, int64_t tokens);
  // Places the wgrad copy of the input: in its own buffers with `lifetime`, or in `shared` if given.
  void attach_input(BufferPlanner& planner, int64_t tokens, Lifetime lifetime, ColwiseBuffers* shared);
  // After the planner is bound.
  void bind(const ScaleTable& scales);

  // The form in which the previous op writes the input, and the next op the gradient of the output. `dense` is a
  // buffer of the whole tensor. With fp8 false everything is dense (evaluation in BF16).
  Operand input(Tensor dense, bool fp8);
  Operand gradient(Tensor dense, bool keep_dense);

  // y may be part of a fused matrix.
  void forward(Ops& ops, Matrix y, const Operand& x) const;
  // dx may be absent. The weight's gradient is added to what is there, or with `overwrite` replaces it; a frozen
  // weight has none.
  void backward(Ops& ops, Matrix dx, const Operand& x, const Operand& dy, bool overwrite) const;

  // Rewrites the FP8 copies from the dense weight; does nothing if there is none.
  void quantize_weight(Ops& ops);
  // The same from a dense weight (out, in) that is not kept: fills a Linear without a dense weight.
  void quantize_weight(Ops& ops, Tensor dense);
  // Switches calibration and statistics for all tensors of the Linear at once.
  void set_pass(const ScaleTable& scales, bool stats);

  const LinearSite& site() const { return site_; }
  const LinearChoice& choice() const { return choice_; }
  Parameter& weight() const { return *weight_; }
  Quantized* weight_fp8() { return weight8_.rowwise || weight8_.colwise ? &weight8_ : nullptr; }
  // Whether the weight gradient reads the input again, dense or as its FP8 copy.
  bool input_needed_dense() const { return trains() && !fp8(Product::Wgrad); }
  bool input_needed_colwise() const { return trains() && fp8(Product::Wgrad); }

 private:
  bool trains() const { return weight_->storage.trainable; }
  bool has_dense() const { return weight_->storage.dense; }
  bool input_needed_fp8() const { return fp8(Product::Forward) || input_needed_colwise(); }
  bool fp8(Product product) const { return choice_[product].fp8; }

  LinearSite site_;
  LinearChoice choice_;
  Parameter* weight_ = nullptr;
  Parameter* bias_ = nullptr;
  Quantized input8_, weight8_, gradient8_;
  ColwiseBuffers input_colwise_;
  int input_slot_ = -1, weight_slot_ = -1, gradient_slot_ = -1;
};

// Shape of the scales of a (rows, depth) matrix; rank 0 for Granularity::Tensor, which needs none.
Shape scales_shape(Granularity granularity, int64_t rows, int64_t depth);
DType scales_dtype(Granularity granularity);

// The same tensor with fewer rows: for the last chunk of the head.
Quantized with_rows(const Quantized& quantized, int64_t rows);

}  // namespace octet
