#pragma once

#include <functional>

#include "model/parameters.h"
#include "precision/layer_choice.h"
#include "precision/scale_table.h"

namespace octet {

// One FP8 copy that lives longer than its scratch: the input that backward reads, or a transposed weight.
struct QuantizedBuffers {
  Tensor codes, scales;
};

// Which FP8 copies of a weight are kept. Where its transpose cannot be made from its codes, both are.
enum class WeightCopies : uint8_t {
  Two,  // W and its transpose, for both products
  One,  // W; the transpose is made before each dgrad, in memory that all Linears share
};

// The views of a weight that products may read while its group is acquired (WeightMover).
struct WeightView {
  Tensor dense;                       // (out, in); absent if there are only FP8 codes
  const QuantizedMatrix& codes;       // (out, in), absent unless forward runs in FP8
  const QuantizedMatrix& transposed;  // (in, out), absent unless dgrad runs in FP8
};

// The weight of a Linear: where it lives, its FP8 copies, and how they are made of new values.
class Weight {
 public:
  Weight() = default;
  explicit Weight(Parameter& parameter) : parameter_(&parameter) {}

  Parameter& parameter() const { return *parameter_; }
  bool trains() const { return parameter_->storage.trainable; }
  // The whole weight can be read as a dense matrix; otherwise only as FP8 codes.
  bool has_dense() const { return parameter_->storage.has_dense_weight(); }
  // Ranks send each other its codes.
  bool sends_codes() const { return parameter_->storage.sends_codes; }
  // Keeps one FP8 copy, whose transpose is made before dgrad.
  bool transposes() const { return transposes_; }

  // ---- products ----
  WeightView view() const {
    return {parameter_->weight, copies_.rowwise, transposes_ ? transposed_.colwise : copies_.colwise};
  }
  // Before dgrad reads the transpose.
  void make_transpose(Ops& ops) const {
    if (transposes_) ops.transpose_fp8(transposed_.colwise, copies_.rowwise);
  }
  Tensor gradient() const { return parameter_->gradient; }
  // Its memory was used by other layers, so it must be overwritten.
  bool gradient_is_stale() const { return parameter_->storage.gradient_per_layer; }

  // ---- planning ----
  // Registers the tensor `name` with the table, and plans the copies that the products of `choice` read.
  void plan(BufferPlanner& planner, ScaleTable& scales, const std::string& name, const QuantizeRule& rule,
            const LinearChoice& choice, bool training, WeightCopies copies);
  // Places the transpose of a weight that keeps one copy.
  void attach_transposed(BufferPlanner& planner, const QuantizedBuffers& shared);
  // Residency::PerLayer: the bytes of the whole weight, and its place `offset` bytes after the beginning of `ring`.
  int64_t per_layer_bytes() const;
  void attach_per_layer(BufferPlanner& planner, const Tensor& ring, int64_t offset);

  // ---- new values ----
  // Null without FP8.
  Quantized* copies() { return copies_.rowwise || copies_.colwise ? &copies_ : nullptr; }
  const Quantized* copies() const { return const_cast<Weight*>(this)->copies(); }
  // The copies that the optimizer writes together with the weight; null if they are made later.
  Quantized* updated_copies();
  // In this pass, the codes keep the scale of the slot.
  bool keeps_scale() const { return copies_.keeps_scale(); }
  // With ranks that send codes: the scale of new codes does not depend on the values on other ranks.
  bool knows_scale() const;
  // Rewrites the copies from the whole dense weight; does nothing if there is none. The scale is that of the pass, or
  // comes from where `scale` says.
  void quantize(Ops& ops) const { quantize(ops, copies_.pass->scale); }
  void quantize(Ops& ops, ScaleFrom scale) const;
  // With ranks that send codes: rewrites the codes of this rank's rows. With ScaleFrom::Values the scale is that of these
  // rows alone, which the ranks must still agree on.
  void quantize_part(Ops& ops, ScaleFrom scale) const;
  // For codes that have just arrived: makes their transpose, if one is kept.
  void transpose_codes(Ops& ops) const;
  // This rank's codes and those of all ranks, and likewise their scales if they have any.
  struct SharedCodes {
    Tensor part, group, parts;  // (part_rows, in), (groups * part_rows, in), (P * part_rows, in)
    Tensor scales_part, scales_group, scales_parts;  // (part_rows / 128, ...), likewise
  };
  const SharedCodes& shared_codes() const { return shared_; }
  // Fills a weight that is only codes some rows at a time. `stage` writes rows [begin, begin + rows) to a tensor
  // (rows, in) in `staging`. It is called twice per range if the scale of the whole tensor must be known first. `staging`
  // (bytes) has room for at least 128 rows; see fill_rows().
  using StageRows = std::function<void(Tensor rows, int64_t begin)>;
  // `largest` is the largest of a number over all ranks, which share the weight.
  using LargestOverRanks = std::function<float(float)>;
  void fill(Device& device, Tensor staging, DType dtype, const StageRows& stage,
            const LargestOverRanks& largest = {}) const;
  // How many rows fill() takes at a time, of at most `most`: all of them if its blocks need it.
  int64_t fill_rows(int64_t most) const;

 private:
  int64_t out() const { return parameter_->spec.shape[0]; }
  int64_t in() const { return parameter_->spec.shape[1]; }
  void plan_shared_codes(BufferPlanner& planner);

  Parameter* parameter_ = nullptr;
  std::string name_;  // of the Linear
  bool forward8_ = false, dgrad8_ = false, transposes_ = false;
  Quantized copies_;
  Quantized transposed_;  // only the transpose, in memory that all Linears share
  Quantized part_;        // the rows of copies_ that this rank computes, with ranks that send codes
  SharedCodes shared_;
};

// Shape of the scales of a (rows, depth) matrix; rank 0 for Granularity::Tensor, which needs none.
Shape scales_shape(Granularity granularity, int64_t rows, int64_t depth);
DType scales_dtype(Granularity granularity);

// Plans a copy of a quantised tensor in its own memory, or places it in shared memory.
void plan_matrix(BufferPlanner& planner, QuantizedMatrix& matrix, const std::string& name, DType format,
                 Granularity granularity, int64_t rows, int64_t depth, MemoryCategory category,
                 Lifetime lifetime);
void alias_matrix(BufferPlanner& planner, QuantizedMatrix& matrix, const Tensor& codes, const Tensor& scales,
                  DType format, Granularity granularity, int64_t rows, int64_t depth);

}  // namespace octet
