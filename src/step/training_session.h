#pragma once

#include <span>
#include <vector>

#include "model/objective.h"
#include "model/transformer.h"
#include "step/optimizer_options.h"
#include "step/rank_sync.h"

namespace octet {

// One optimizer step, as its caller wants it.
struct StepInput {
  int64_t step = 0;  // its number, counted from 0
  std::span<const HostBatch> micro_batches;
  double learning_rate = 0;
  bool fp8_stats = false;
  StepNote note = {};  // tells the other ranks about this one; its counts are filled in
};

struct StepResult {
  double loss = 0;     // of the objective: for NextToken the mean cross-entropy over all targets of the step
  double penalty = 0;  // mean over all targets
  double grad_norm = 0;  // before clipping
  double learning_rate = 0;
  int64_t tokens = 0;  // of documents, over all ranks: padding does not count
  double data_wait_ms = 0;  // for its data, on this rank; filled in by the class that draws them
  bool skipped = false;  // loss or norm was not finite: weights, moments and FP8 scales are as before
  std::vector<RankRecord> ranks;  // what each rank said; empty without ranks
};

// Everything that steps change, in host memory: on each rank, its share of weights, moments and FP8 scales.
struct TrainingState {
  std::vector<std::vector<std::byte>> tensors;  // in the order of the parameters and of Parameter::state()
  std::vector<std::byte> scales;                // as ScaleTable saves them; empty without FP8
};

// A model in training. The caller owns the model, which is allocated and has weights, and brings the batches: nothing here
// knows where they come from, and nothing is printed or written.
class TrainingSession {
 public:
  // `ranks` is null in a run of one rank. Without an objective, it is NextToken.
  TrainingSession(Transformer& model, Device& device, const OptimizerOptions& optimizer,
                  const PenaltyOptions& penalty, RankSync* ranks = nullptr, Objective* objective = nullptr);

  // With ranks, all of them call this, with equally many micro-batches.
  StepResult step(const StepInput& input);

  // Between two steps. A restored session continues with the same bits, if it gets the same batches.
  TrainingState snapshot() const;
  void restore(const TrainingState& state);

 private:
  Tensor outcome_part(int64_t begin) const;
  StepTotals count(const StepInput& input, StepResult& result) const;
  void run_micro_batch(const StepInput& input, size_t index, const StepTotals& totals);

  Transformer& model_;
  Device& device_;
  RankSync* ranks_;
  OptimizerOptions optimizer_;
  PenaltyOptions penalty_;
  NextToken next_token_;
  Objective& objective_;
  std::vector<AdamWParameter> parameters_;
  std::vector<Tensor> gradients_;
  std::shared_ptr<void> norm_memory_;
  Tensor norm_;  // (2) fp32: global norm, clip factor
  // Results of a step, in host memory, written by the device: sums of loss and penalty, norm, clip factor.
  std::shared_ptr<void> outcome_memory_;
  Tensor outcome_;  // (4) fp32
  std::unique_ptr<Event> outcome_known_;
};

}  // namespace octet
