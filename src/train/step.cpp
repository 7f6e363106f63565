#include "train/step.h"

#include <cmath>

#include "base/clock.h"
#include "base/philox.h"
#include "base/trace.h"

namespace octet {

HostBatch host_view(const Batch& batch) {
  return {batch.tokens, batch.targets, batch.positions, batch.document_starts};
}

StepRunner::StepRunner(Transformer& model, Device& device, BatchSource& loader, int64_t accumulation,
                       const OptimizerOptions& optimizer, const PenaltyOptions& penalty, RankSync* ranks)
    : model_(model),
      device_(device),
      loader_(loader),
      ranks_(ranks),
      optimizer_(optimizer),
      penalty_(penalty),
      micro_batches_(static_cast<size_t>(accumulation)),
      parameters_(model.optimizer_view(optimizer.weight_decay, optimizer.loraplus_ratio)),
      norm_memory_(device.allocate(256)),
      norm_{norm_memory_.get(), DType::F32, {2}},
      outcome_memory_(device.allocate(256, Place::Host)),
      outcome_{outcome_memory_.get(), DType::F32, {4}},
      outcome_known_(device.make_event()) {
  for (const AdamWParameter& parameter : parameters_) gradients_.push_back(parameter.gradient);
}

Tensor StepRunner::outcome_part(int64_t begin) const {
  return outcome_.part(begin, 2);
}

StepResult StepRunner::train_step(int64_t step, bool fp8_stats, StepNote note) {
  // All micro-batches first: the loss is the mean over every target of the step, so that accumulation gives the
  // gradient of the large batch, whatever is masked.
  StepResult result;
  int64_t targets = 0;
  const auto start = Clock::now();
  for (Batch& batch : micro_batches_) {
    const TraceSpan span("training", "wait for data");
    loader_.next(batch);
    targets += batch.target_count;
    result.tokens += batch.token_count;
  }
  result.data_wait_ms = 1e3 * seconds_since(start);
  std::optional<float> gradient_scale = targets > 0 ? 1.0f / static_cast<float>(targets) : 0.0f;
  note.targets = narrow<int32_t>(targets);
  note.tokens = narrow<int32_t>(result.tokens);
  if (ranks_) {
    ranks_->begin_step(note);
    gradient_scale.reset();  // it is on the device
  }
  WeightMover* const mover = model_.mover();
  const auto ranks = static_cast<uint64_t>(model_.sharding().ranks),
             rank = static_cast<uint64_t>(model_.sharding().rank);

  model_.clear_sums();
  if (fp8_stats) model_.scales().clear_stats(device_);
  for (size_t i = 0; i < micro_batches_.size(); ++i) {
    // Another seed for every micro-batch of every rank, the same in a resumed run.
    const uint64_t dropout_seed = Philox(optimizer_.seed, static_cast<uint64_t>(step)).bits(i * ranks + rank);
    if (mover) mover->begin_micro_batch(i == 0, i + 1 == micro_batches_.size());
    model_.load(host_view(micro_batches_[i]), gradient_scale, dropout_seed);
    model_.forward_backward(penalty_, i == 0, fp8_stats);
  }

  result.learning_rate = learning_rate(optimizer_.schedule, step);
  device_.begin_phase(Phase::Optimizer);
  if (ranks_) {
    ranks_->finish_gradients(norm_, optimizer_.max_grad_norm);
  } else {
    device_.ops().grad_norm(norm_, gradients_, optimizer_.max_grad_norm, model_.loss_sums());
  }
  // The host continues when these numbers are known, and queues the next step while AdamW still runs.
  device_.copy(outcome_part(0), model_.loss_sums());
  device_.copy(outcome_part(2), norm_);
  device_.record(*outcome_known_, device_.queue());
  // Before AdamW, which quantises the new weights with the new scales.
  model_.scales().end_step(device_, step + 1, norm_);
  const AdamWOptions options{.learning_rate = static_cast<float>(result.learning_rate),
                             .beta1 = optimizer_.beta1,
                             .beta2 = optimizer_.beta2,
                             .epsilon = optimizer_.epsilon,
                             .step = step + 1,
                             .seed = optimizer_.seed};
  if (mover) {
    mover->update(norm_, options, optimizer_.weight_decay, optimizer_.loraplus_ratio);
  } else {
    device_.ops().adamw(parameters_, norm_, options);
  }
  device_.begin_phase(Phase::Outside);

  // The only wait for the device on one rank; records of ranks also wait for AdamW.
  const TraceSpan span("training", "wait for the device");
  device_.synchronize(*outcome_known_);
  const auto* outcome = static_cast<const float*>(outcome_.data);
  LossSums sums{static_cast<double>(outcome[0]), static_cast<double>(outcome[1])};
  if (ranks_) {
    // In the order of the ranks, so that all of them get the same sums.
    result.ranks = ranks_->records();
    sums = {};
    targets = result.tokens = 0;
    for (const RankRecord& record : result.ranks) {
      sums.loss += static_cast<double>(record.loss);
      sums.penalty += static_cast<double>(record.penalty);
      targets += record.note.targets;
      result.tokens += record.note.tokens;
    }
  }
  const double count = static_cast<double>(std::max<int64_t>(targets, 1));
  result.loss = sums.loss / count;
  result.penalty = sums.penalty / count;
  result.grad_norm = static_cast<double>(outcome[2]);
  result.skipped = !std::isfinite(result.grad_norm);
  return result;
}

}  // namespace octet
