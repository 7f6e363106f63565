#pragma once

#include "model/low_rank.h"
#include "model/weight.h"

namespace octet {

// Memory that the Linears of a model share one at a time: FP8 copies that live only from the op that makes them to
// the product that reads them.
struct QuantizedScratch {
  Tensor input_rowwise, input_rowwise_scales;
  Tensor gradient_rowwise, gradient_rowwise_scales;
  Tensor gradient_colwise, gradient_colwise_scales;
};

struct LinearSpec {
  LinearSite site = {};
  LinearChoice choice = {};
  bool fp8(Product product) const { return choice[product].fp8; }
};

// The adapters that add to the output of a Linear.
struct LinearAdapter {
  LowRank low_rank = {};     // may be empty
  bool drops = false;        // their input has dropout in training
  bool dense_input = false;  // the dense input is there in backward anyway
};

// The input of a Linear and the gradient of its output: in which forms its products and adapters read them, and where
// their FP8 copies are.
class LinearOperands {
 public:
  LinearOperands() = default;
  LinearOperands(const LinearSpec& spec, const Parameter& weight, LinearAdapter adapter);

  // The form in which the previous op writes the input, and the next op the gradient of the output.
  Operand input(Tensor dense, bool fp8);
  Operand gradient(Tensor dense, bool keep_dense, Tensor bias_gradient);
  bool has_adapter() const { return static_cast<bool>(adapter_.low_rank); }
  const LowRank& adapter() const { return adapter_.low_rank; }

  // How backward reads the input again, for the gradient of the weight or of the adapters: dense, or as its FP8 copy.
  // The copy is by columns for the weight and by rows for the adapters.
  bool input_needed_dense() const {
    return (trains_ && !wgrad8_) || (has_adapter() && !adapter_keeps_input_codes());
  }
  bool input_needed_fp8_later() const { return input_needed_colwise() || adapter_keeps_input_codes(); }
  bool input_needed_colwise() const { return trains_ && wgrad8_; }
  // Backward gets the input of the adapters from its FP8 codes: codes with one scale per tensor, without dropout. With
  // few ranks the adapters' products read the codes. With more they would be slower than products of dense matrices, so
  // the codes are dequantised first, and forward reads the dense input.
  bool adapter_keeps_input_codes() const;
  bool adapter_reads_input_codes() const;

  // Register the two tensors with the table.
  void plan_input(ScaleTable& scales, const QuantizeRule& rule);
  void plan_gradient(ScaleTable& scales, const QuantizeRule& rule);
  // `tokens` rows pass through at once.
  void attach_scratch(BufferPlanner& planner, const QuantizedScratch& scratch, int64_t tokens);
  // Places the FP8 copy of the input that backward reads, if there is one: in its own buffers with `lifetime`, or in
  // `shared` if given.
  void attach_input(BufferPlanner& planner, int64_t tokens, Lifetime lifetime,
                    const QuantizedBuffers* shared);
  // Places the output of the adapters' first product.
  void attach_adapter(BufferPlanner& planner, int64_t tokens, DType dtype, Lifetime lifetime,
                      const AdapterScratch& scratch);
  // For a copy of a trained Linear that is only run forward, on at most `tokens` rows, in memory of its own. FP8 is
  // used only where there is no dense weight, with scales from the values themselves.
  void attach_decoding(BufferPlanner& planner, const QuantizedScratch& scratch, int64_t tokens, DType dtype,
                       const AdapterScratch& adapters);
  void set_decoding_rows(int64_t rows);

 private:
  bool input_needed_fp8() const { return forward8_ || input_needed_colwise(); }
  bool adapter_reads_gradient_codes() const;

  std::string name_;
  int64_t in_ = 0, out_ = 0;
  bool forward8_ = false, dgrad8_ = false, wgrad8_ = false, trains_ = false, has_dense_ = false;
  Quantized input_, gradient_;
  LinearAdapter adapter_;
};

// The same tensor with fewer rows: for the last chunk of the head.
Quantized with_rows(const Quantized& quantized, int64_t rows);

}  // namespace octet
