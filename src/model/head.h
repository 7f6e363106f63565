#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "model/batch_inputs.h"
#include "model/block.h"

namespace octet {

struct PenaltyOptions {
  PenaltyKind kind = PenaltyKind::None;
  float weight = 0;
};

// Sums over the targets of the micro-batches since they were last cleared.
struct LossSums {
  double loss = 0;
  double penalty = 0;
};

// Calls an objective with the cross-entropies of all rows (N), 0 without a target: returns the loss, and writes the
// weights (N) of their gradients, relative to the gradient scale. See model/objective.h.
using WeighRows = std::function<double(std::span<const float> losses, std::span<float> weights)>;

// The head of a model: logits, loss and their gradients. It works on a chunk of rows at a time, so that the logits need a
// limited amount of memory. N tokens of a micro-batch, C model width.
//
// In training and scoring, the head computes only the rows that have a target, and a few others: their number is rounded
// up, so that few different recordings and products occur.
class Head {
 public:
  // Rows of a chunk.
  static int64_t chunk_rows(const ModelConfig& config, const RunShape& shape, const Numerics& numerics);

  Head(const ModelConfig& config, const RunShape& shape, const Numerics& numerics, Device& device);
  Head(const Head&) = delete;  // the planner points into it

  Linear& linear() { return linear_; }
  const Linear& linear() const { return linear_; }
  void plan(BufferPlanner& planner, QuantizedScratch& scratch, const Timeline& time);
  int64_t staged_bytes() const;

  // The final norm writes the input and reads its gradient. The head overwrites both: its input is not there after a pass
  // with gradients.
  const Tensor& input() const { return input_; }                    // (N, C)
  const Tensor& input_gradient() const { return input_gradient_; }  // (N, C); in training

  // Chooses the rows of a micro-batch that is loaded, and adds them and their weights to what is copied to the device.
  void load(const HostBatch& batch, std::vector<InputCopy>& copies);
  // Differs between micro-batches for which training queues other ops.
  std::string signature() const;

  // The losses of the loaded micro-batch, without weights. Changes nothing that training needs.
  void losses(const BatchInputs& batch, const PenaltyOptions& penalty, bool fp8);
  // The losses and the gradients of input and weight. `first`: the weight's gradient is overwritten. Rows have the weights
  // of the batch, or those of weigh().
  void losses_and_gradients(const BatchInputs& batch, const PenaltyOptions& penalty, bool first);
  // For an objective that weighs rows by their losses, before losses_and_gradients(): score() queues the cross-entropies of
  // all rows, from fp32 logits; row_losses() reads them (N), and waits for the device; weigh() passes them on.
  void score(const BatchInputs& batch, bool fp8);
  std::vector<float> row_losses() const;
  void weigh(const WeighRows& objective);
  // The logits (unpadded, fp32) of a token, computed dense; waits for the device.
  std::vector<float> logits_of(int64_t token);

  // See Transformer.
  int64_t correct_targets() const;
  std::vector<float> target_losses() const;
  Tensor sums() const { return sums_; }  // (2) fp32: loss, penalty
  // Bytes that the chunks' sums of the weight's gradient move, except for the first chunk.
  int64_t bytes_moved_by_chunks() const;

 private:
  // The rows that a pass computes, and what belongs to them.
  struct Rows {
    int64_t count;
    Tensor input, gradient;      // (count, C)
    Tensor targets;              // (count) int32
    Tensor weights;              // (count) fp32, or absent
    Tensor loss, penalty;        // (N) fp32: the first `count` are theirs
    bool needs_scatter = false;  // gradient, loss and penalty must still be brought to their places
  };
  // Some of them, whose logits are in memory together.
  struct Chunk {
    bool first;
    Tensor input, gradient;                  // (rows, C)
    Tensor logits;                           // (rows, padded vocab)
    Tensor targets, weights, loss, penalty;  // (rows)
    Tensor correct, correction;              // (rows)
    int64_t rows() const { return targets.numel(); }
  };

  Ops& ops() const { return device_.ops(); }
  bool gathers(bool backward) const { return (backward || shape_.scoring) && row_count_ < shape_.tokens(); }
  Rows gather(const Tensor& targets, bool backward) const;
  void scatter(const Rows& rows) const;
  std::vector<Chunk> chunks_of(const Rows& rows, DType logits) const;
  void compute_logits(const Chunk& chunk, const Operand& x, bool keeps_copies) const;
  void add_to_sum(int64_t index, const Tensor& values, const Tensor& factors) const;

  // Corrections of FP8 gradients; see the functions.
  bool centres_input() const { return linear_.operands.input_needed_colwise() && !linear_.operands.has_adapter(); }
  bool keeps_mean_of_gradient() const {
    return linear_.spec.choice[Product::Dgrad].fp8 && linear_.weight.has_dense() && !linear_.operands.has_adapter();
  }
  bool corrects_row_sums() {
    const Quantized* gradient = linear_.gradient({}, false).fp8;
    return gradient && gradient->keeps_scale() && linear_.weight.has_dense();
  }
  void begin_corrections(const Rows& rows) const;
  void quantize_centred(const Operand& x, float mean_factor) const;
  void add_share_of_mean(float mean_factor) const;
  void correct_row_sums(const Rows& rows) const;
  void keep_mean_of_gradient(const Rows& rows) const;

  RunShape shape_;
  Device& device_;
  int64_t vocab_, padded_vocab_, width_, chunk_rows_;
  DType dense_, logits_dtype_;
  Linear linear_;

  Tensor input_, input_gradient_;            // (N, C)
  Tensor scoring_input_;                     // (N, C) the gathered rows, for scoring
  Tensor logits_;                            // (chunk rows, padded vocab)
  Tensor loss_, penalty_;                    // (N) fp32
  Tensor gathered_loss_, gathered_penalty_;  // (N) fp32, for training
  Tensor correct_;                           // (N) int32: 1 where the likeliest token was the target
  Tensor sums_;                              // (2) fp32: loss, penalty
  // The indices of the rows, those with a target first, and their targets. All rows, if as many as there are are
  // computed in place.
  Tensor rows_, row_targets_;  // (N) int32
  // Weights of the gradients in the order of the tokens, and of the gathered rows.
  Tensor weights_, gathered_weights_;  // (N) fp32
  Tensor objective_loss_;              // (1) fp32
  enum class Weights : uint8_t { None, OfBatch, OfObjective } weighted_ = Weights::None;
  std::vector<int32_t> rows_on_host_, row_targets_on_host_;
  int64_t row_count_ = 0;     // shape_.tokens() if all rows are computed in place
  int64_t target_count_ = 0;  // rows with a target: the first ones of rows_on_host_

  // For corrections.
  Tensor correction_;     // (N) fp32: see Ops::cross_entropy
  Tensor input_sums_;     // (C) fp32: over the rows of the input; with centres_input()
  Tensor gradient_sums_;  // (padded vocab) fp32: over the rows of the logits' gradient; if either
  Tensor
      mean_error_;  // (2, C) fp32: of the sum over rows, and a row's share of it; with keeps_mean_of_gradient()
  Tensor target_share_;  // (1) fp32: 1 / rows with a target; with keeps_mean_of_gradient()
  float target_share_on_host_ = 0;
};

}  // namespace octet
