#pragma once

#include <vector>

#include "model/parameters.h"
#include "ops/ops.h"

namespace octet {

// Dropout of the input of adapters, in one training pass after another.
struct AdapterDropout {
  float probability = 0;  // 0: none
  Tensor seed;            // (2) int32, of the micro-step
  bool active = false;    // in training passes only
  Tensor scratch;         // (N, widest input), shared by all adapters
};

// Memory that the adapters of a model share one at a time.
struct AdapterScratch {
  Tensor dhidden;  // (N, most ranks)
  AdapterDropout dropout;
};

// The adapters of a Linear's parts: y_part += scale * hidden_part B_part^T, with hidden = x A^T for the stacked A of
// all parts. A part is a range of the Linear's output columns. N tokens, R sum of ranks.
//
// Products are in the run's dense dtype. They read x and dy as FP8 codes where the Linear has them with one scale per
// tensor: then the dense form needs not be written, and half the bytes are read.
class LowRank {
 public:
  struct Part {
    int64_t first_column = 0, columns = 0;  // of y
    int64_t first_rank = 0, rank = 0;       // of hidden
    float scale = 1;
    Parameter* b = nullptr;  // (columns, rank)
  };

  LowRank() = default;
  LowRank(Parameter& a, std::vector<Part> parts) : a_(&a), parts_(std::move(parts)) {}
  explicit operator bool() const { return a_ != nullptr; }
  int64_t ranks() const { return a_->spec.shape[0]; }
  const std::vector<Part>& parts() const { return parts_; }
  Parameter& a() const { return *a_; }
  // Whether the parts are all of the Linear's `out` columns.
  bool covers(int64_t out) const;

  // The products of `tokens` rows, for the workspace.
  std::vector<WorkspaceNeeds::Gemm> gemms(int64_t tokens, bool training) const;

  // Where hidden lives from forward to backward, and the memory that is shared; both are bound later.
  Tensor& hidden() { return hidden_; }
  void use(const AdapterScratch* scratch) { scratch_ = scratch; }

  // hidden = x A^T. `codes` may be null; then x is read.
  void down(Ops& ops, Tensor x, const QuantizedMatrix* codes, uint64_t stream) const;
  // y_part [+]= scale * hidden_part B_part^T.
  void up(Ops& ops, Matrix y, bool accumulate) const;

  // From dy: the gradients of every B and of hidden; from x and those the gradient of A. With `overwrite` gradients are
  // written, not added to.
  void backward(Ops& ops, Tensor x, const QuantizedMatrix* x_codes, Tensor dy,
                const QuantizedMatrix* dy_codes, uint64_t stream, bool overwrite) const;
  // dx = dhidden A, after backward(). Only if drops() is false.
  void write_input_gradient(Ops& ops, Matrix dx) const;
  // dx += what dropout passes of dhidden A, after backward(). Only if drops() is true: dropout works on whole tensors,
  // so the product needs memory of its own.
  void add_dropped_input_gradient(Ops& ops, Matrix dx, uint64_t stream) const;
  bool drops() const { return scratch_ && scratch_->dropout.active && scratch_->dropout.probability > 0; }

 private:
  Tensor dhidden(int64_t rows) const;
  // x after dropout.
  Tensor dropped(Ops& ops, Tensor x, uint64_t stream) const;

  Parameter* a_ = nullptr;  // (R, in)
  std::vector<Part> parts_;
  Tensor hidden_;  // (N, R)
  const AdapterScratch* scratch_ = nullptr;
};

// The adapters of the matrix `weight` of a model; empty if it has none.
LowRank find_low_rank(ParameterSet& parameters, const AdapterPlan& adapters, const ParameterSpec& weight);

}  // namespace octet
