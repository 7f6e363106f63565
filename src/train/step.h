#pragma once

#include <vector>

#include "data/loading/loader.h"
#include "step/training_session.h"

namespace octet {

// The steps of a run: draws the micro-batches of each from a loader, and takes its learning rate from the schedule.
class StepRunner {
 public:
  StepRunner(Transformer& model, Device& device, BatchSource& loader, int64_t accumulation,
             const OptimizerOptions& optimizer, const PenaltyOptions& penalty, RankSync* ranks = nullptr,
             Objective* objective = nullptr);

  // Optimizer step number `step`, counted from 0. `note` is what this rank tells the others.
  StepResult train_step(int64_t step, bool fp8_stats, StepNote note = {});

 private:
  BatchSource& loader_;
  ScheduleConfig schedule_;
  std::vector<Batch> micro_batches_;
  TrainingSession session_;
};

HostBatch host_view(const Batch& batch);
std::vector<HostBatch> host_views(std::span<const Batch> batches);

}  // namespace octet
