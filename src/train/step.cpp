#include "train/step.h"

#include "base/clock.h"
#include "base/trace.h"

namespace octet {

HostBatch host_view(const Batch& batch) {
  return {batch.tokens,  batch.targets,   batch.positions,   batch.document_starts,
          batch.weights, batch.sequences, batch.token_count, batch.target_count};
}

std::vector<HostBatch> host_views(std::span<const Batch> batches) {
  std::vector<HostBatch> views;
  for (const Batch& batch : batches) views.push_back(host_view(batch));
  return views;
}

StepRunner::StepRunner(Transformer& model, Device& device, BatchSource& loader, int64_t accumulation,
                       const OptimizerOptions& optimizer, const PenaltyOptions& penalty, RankSync* ranks,
                       Objective* objective)
    : loader_(loader),
      schedule_(optimizer.schedule),
      micro_batches_(static_cast<size_t>(accumulation)),
      session_(model, device, optimizer, penalty, ranks, objective) {}

StepResult StepRunner::train_step(int64_t step, bool fp8_stats, StepNote note) {
  const auto start = Clock::now();
  for (Batch& batch : micro_batches_) {
    const TraceSpan span("training", "wait for data");
    loader_.next(batch);
  }
  const double data_wait_ms = 1e3 * seconds_since(start);
  const std::vector<HostBatch> views = host_views(micro_batches_);
  StepResult result = session_.step({.step = step,
                                     .micro_batches = views,
                                     .learning_rate = learning_rate(schedule_, step),
                                     .fp8_stats = fp8_stats,
                                     .note = std::move(note)});
  result.data_wait_ms = data_wait_ms;
  return result;
}

}  // namespace octet
