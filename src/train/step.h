#pragma once

#include <vector>

#include "config/optimizer_options.h"
#include "data/loading/loader.h"
#include "model/objective.h"
#include "model/transformer.h"
#include "train/rank_sync.h"

namespace octet {

struct StepResult {
  double loss = 0;     // of the objective: for NextToken the mean cross-entropy over all targets of the step
  double penalty = 0;  // mean over all targets
  double grad_norm = 0;  // before clipping
  double learning_rate = 0;
  int64_t tokens = 0;       // of documents, over all ranks: padding does not count
  double data_wait_ms = 0;  // how long the step waited for its data, on this rank
  bool skipped = false;     // loss or norm was not finite: weights, moments and FP8 scales are as before
  std::vector<RankRecord> ranks;  // what each rank said; empty without ranks
};

// What a step needs; made once.
class StepRunner {
 public:
  // `ranks` is null in a run of one rank. Without an objective, it is NextToken.
  StepRunner(Transformer& model, Device& device, BatchSource& loader, int64_t accumulation,
             const OptimizerOptions& optimizer, const PenaltyOptions& penalty, RankSync* ranks = nullptr,
             Objective* objective = nullptr);

  // Optimizer step number `step`, counted from 0. `note` is what this rank tells the others; its counts are filled in.
  StepResult train_step(int64_t step, bool fp8_stats, StepNote note = {});

 private:
  Tensor outcome_part(int64_t begin) const;
  StepTotals draw_micro_batches(StepResult& result);
  void run_micro_batch(size_t index, int64_t step, const StepTotals& totals, bool fp8_stats);

  Transformer& model_;
  Device& device_;
  BatchSource& loader_;
  RankSync* ranks_;
  OptimizerOptions optimizer_;
  PenaltyOptions penalty_;
  NextToken next_token_;
  Objective& objective_;
  std::vector<Batch> micro_batches_;
  std::vector<AdamWParameter> parameters_;
  std::vector<Tensor> gradients_;
  std::shared_ptr<void> norm_memory_;
  Tensor norm_;  // (2) fp32: global norm, clip factor
  // What the host reads of a step: sums of loss and penalty, norm, clip factor. It is the host's memory, which the device
  // writes.
  std::shared_ptr<void> outcome_memory_;
  Tensor outcome_;  // (4) fp32
  std::unique_ptr<Event> outcome_known_;
};

HostBatch host_view(const Batch& batch);

}  // namespace octet
