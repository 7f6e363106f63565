#pragma once

#include <functional>

#include "model/low_rank.h"
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

// One FP8 copy that lives longer than its scratch: the input that backward reads, or a transposed weight.
struct QuantizedBuffers {
  Tensor codes, scales;
};

// Which FP8 copies of a weight are kept. Where its transpose cannot be made from its codes, both are.
enum class WeightCopies : uint8_t {
  Two,  // W and its transpose, for both products
  One,  // W; the transpose is made before each dgrad, in memory that all Linears share
};

// y = x W^T + b with its three products, each in FP8 or in the run's dense dtype as the choice says.
class Linear {
 public:
  Linear() = default;
  Linear(LinearSite site, LinearChoice choice, Parameter& weight, Parameter* bias);
  // Adds adapters to the output, before plan(). `drops`: their input has dropout in training. `dense_input`: the dense
  // input is there in backward anyway.
  void set_adapter(LowRank adapter, bool drops, bool dense_input) {
    adapter_ = std::move(adapter);
    adapter_drops_ = drops;
    adapter_dense_input_ = dense_input;
  }

  // Registers the slots and plans the FP8 copies of the weight. The input's and gradient's copies are placed by
  // attach_scratch and attach_input.
  void plan(BufferPlanner& planner, ScaleTable& scales, bool training,
            WeightCopies copies = WeightCopies::Two);
  // `tokens` rows pass through at once.
  void attach_scratch(BufferPlanner& planner, QuantizedScratch& scratch, int64_t tokens);
  // Places the FP8 copy of the input that backward reads, if there is one: in its own buffers with `lifetime`, or in
  // `shared` if given.
  void attach_input(BufferPlanner& planner, int64_t tokens, Lifetime lifetime, QuantizedBuffers* shared);
  // Places the output of the adapters' first product.
  void attach_adapter(BufferPlanner& planner, int64_t tokens, DType dtype, Lifetime lifetime,
                      const AdapterScratch& scratch);
  // Places the transposed weight of a Linear that keeps one copy.
  void attach_transposed(BufferPlanner& planner, const QuantizedBuffers& shared);
  // Of a Linear whose whole weight is in memory only while its layer is computed: the bytes of that memory, and its place
  // `offset` bytes after the beginning of `ring`.
  int64_t per_layer_bytes() const;
  void attach_per_layer(BufferPlanner& planner, const Tensor& ring, int64_t offset);
  // For a copy of a trained Linear that is only run forward, on at most `tokens` rows, in memory of its own. FP8 is
  // used only where there is no dense weight, with scales from the values themselves.
  void attach_decoding(BufferPlanner& planner, QuantizedScratch& scratch, int64_t tokens, DType dtype,
                       const AdapterScratch& adapters);
  void set_decoding_rows(int64_t rows);
  // After the planner is bound.
  void bind(const ScaleTable& scales);

  // The form in which the previous op writes the input, and the next op the gradient of the output. `dense` is a
  // buffer of the whole tensor. With fp8 false everything is dense (evaluation in BF16).
  Operand input(Tensor dense, bool fp8);
  Operand gradient(Tensor dense, bool keep_dense);

  // y may be part of a fused matrix. In a recompute pass, the adapters' first product is there already.
  void forward(Ops& ops, Matrix y, const Operand& x, bool recompute = false) const;
  // dx may be absent. The weight's gradient is added to what is there, or with `overwrite` replaces it; a frozen
  // weight has none.
  void backward(Ops& ops, Matrix dx, const Operand& x, const Operand& dy, bool overwrite) const;

  // Rewrites the FP8 copies from the whole dense weight; does nothing if there is none. The scale is that of the pass, or
  // comes from where `scale` says.
  void quantize_weight(Ops& ops);
  void quantize_weight(Ops& ops, ScaleFrom scale);
  // In this pass, the weight's codes keep the scale of the slot.
  bool keeps_scale() const { return weight8_.keeps_scale(); }
  // With ranks that send codes: rewrites the codes of this rank's rows. With ScaleFrom::Values the scale is that of these
  // rows alone, which the ranks must still agree on.
  void quantize_part(Ops& ops, ScaleFrom scale);
  // The same for codes that have just arrived: makes their transpose, if one is kept.
  void transpose_codes(Ops& ops);
  bool sends_codes() const { return weight_->storage.sends_codes; }
  // This rank's codes and those of all ranks, and likewise their scales if they have any.
  struct SharedCodes {
    Tensor part, group, parts;  // (part_rows, in), (groups * part_rows, in), (P * part_rows, in)
    Tensor scales_part, scales_group, scales_parts;  // (part_rows / 128, ...), likewise
  };
  const SharedCodes& shared_codes() const { return shared_; }
  // Fills a Linear without a dense weight some rows at a time. `stage` writes rows [begin, begin + rows) of the weight
  // to a tensor (rows, in) in `staging`. It is called twice per range if the scale of the whole tensor must be known
  // first. `staging` (bytes) has room for at least 128 rows; see fill_rows().
  using StageRows = std::function<void(Tensor rows, int64_t begin)>;
  // `largest` is the largest of a number over all ranks, which share the weight.
  using LargestOverRanks = std::function<float(float)>;
  void fill_weight(Device& device, Tensor staging, DType dtype, const StageRows& stage,
                   const LargestOverRanks& largest = {});
  // How many rows fill_weight takes at a time, of at most `most`: all of them if its blocks need it.
  int64_t fill_rows(int64_t most) const;

  const LinearSite& site() const { return site_; }
  const LinearChoice& choice() const { return choice_; }
  Parameter& weight() const { return *weight_; }
  Quantized* weight_fp8() { return weight8_.rowwise || weight8_.colwise ? &weight8_ : nullptr; }
  // With ranks that send codes: the scale of new codes does not depend on the values on other ranks.
  bool knows_scale() const {
    return part8_.rule().granularity != Granularity::Tensor || part8_.keeps_scale();
  }
  // The FP8 copies that the optimizer writes together with the weight; null if they are made later.
  Quantized* updated_fp8();
  // How backward reads the input again, for the gradient of the weight or of the adapters: dense, or as its FP8 copy.
  // The copy is by columns for the weight and by rows for the adapters.
  bool input_needed_dense() const {
    return (trains() && !fp8(Product::Wgrad)) || (adapter_ && !adapter_keeps_input_codes());
  }
  bool input_needed_fp8_later() const { return input_needed_colwise() || adapter_keeps_input_codes(); }
  bool input_needed_colwise() const { return trains() && fp8(Product::Wgrad); }
  const LowRank& adapter() const { return adapter_; }
  // Backward gets the input of the adapters from its FP8 codes: codes with one scale per tensor, without dropout. With
  // few ranks the adapters' products read the codes. With more they would be slower than products of dense matrices, so
  // the codes are dequantised first, and forward reads the dense input.
  bool adapter_keeps_input_codes() const;
  bool adapter_reads_input_codes() const;
  bool trains() const { return weight_->storage.trainable; }
  // Keeps one FP8 copy, whose transpose is made before dgrad.
  bool transposes() const { return transposes_; }
  // Its whole weight can be read as a dense matrix; otherwise only as FP8 codes.
  bool has_dense() const { return weight_->storage.residency != Residency::CodesOnly && !sends_codes(); }

 private:
  void plan_codes(BufferPlanner& planner);
  bool input_needed_fp8() const { return fp8(Product::Forward) || input_needed_colwise(); }
  bool fp8(Product product) const { return choice_[product].fp8; }
  bool adapter_reads_gradient_codes() const;

  LinearSite site_;
  LinearChoice choice_;
  Parameter* weight_ = nullptr;
  Parameter* bias_ = nullptr;
  Quantized input8_, weight8_, gradient8_;
  QuantizedMatrix transpose8_;  // of the weight, in shared memory, where one copy is kept
  Quantized part8_;             // the rows of weight8_ that this rank computes, with ranks that send codes
  SharedCodes shared_;
  LowRank adapter_;
  bool adapter_drops_ = false, adapter_dense_input_ = false, transposes_ = false;
  int input_slot_ = -1, weight_slot_ = -1, gradient_slot_ = -1;
};

// Shape of the scales of a (rows, depth) matrix; rank 0 for Granularity::Tensor, which needs none.
Shape scales_shape(Granularity granularity, int64_t rows, int64_t depth);
DType scales_dtype(Granularity granularity);

// The same tensor with fewer rows: for the last chunk of the head.
Quantized with_rows(const Quantized& quantized, int64_t rows);

}  // namespace octet
