#include "step/training_session.h"

#include <cmath>
#include <cstdlib>

#include "base/philox.h"
#include "base/trace.h"

namespace octet {

namespace {

StepTotals sum_over_ranks(const StepTotals& mine, HostChannel& host) {
  StepTotals sum;
  for (const std::string& text :
       host.all_gather("objective", fmt::format("{} {}", mine.targets, mine.units))) {
    char* end = nullptr;
    sum.targets += std::strtoll(text.c_str(), &end, 10);
    sum.units += std::strtoll(end, nullptr, 10);
  }
  return sum;
}

}  // namespace

TrainingSession::TrainingSession(Transformer& model, Device& device, const OptimizerOptions& optimizer,
                                 const PenaltyOptions& penalty, RankSync* ranks, Objective* objective)
    : model_(model),
      device_(device),
      ranks_(ranks),
      optimizer_(optimizer),
      penalty_(penalty),
      objective_(objective ? *objective : next_token_),
      parameters_(model.optimizer_view(optimizer.weight_decay, optimizer.loraplus_ratio)),
      norm_memory_(device.allocate(256)),
      norm_{norm_memory_.get(), DType::F32, {2}},
      outcome_memory_(device.allocate(256, Place::Host)),
      outcome_{outcome_memory_.get(), DType::F32, {4}},
      outcome_known_(device.make_event()) {
  for (const AdamWParameter& parameter : parameters_) gradients_.push_back(parameter.gradient);
}

Tensor TrainingSession::outcome_part(int64_t begin) const {
  return outcome_.part(begin, 2);
}

// Counts all micro-batches before the first is computed: the loss is a mean over the whole step, so that accumulation gives
// the gradient of the large batch, whatever is masked.
StepTotals TrainingSession::count(const StepInput& input, StepResult& result) const {
  StepTotals totals;
  for (const HostBatch& batch : input.micro_batches) {
    totals.targets += batch.target_count;
    totals.units += objective_.units(batch);
    result.tokens += batch.token_count;
  }
  return totals;
}

void TrainingSession::run_micro_batch(const StepInput& input, size_t index, const StepTotals& totals) {
  const bool first = index == 0, last = index + 1 == input.micro_batches.size();
  const HostBatch& batch = input.micro_batches[index];
  // Another seed for every micro-batch of every rank, the same in a resumed run.
  const auto ranks = static_cast<uint64_t>(model_.sharding().ranks),
             rank = static_cast<uint64_t>(model_.sharding().rank);
  const uint64_t dropout_seed =
      Philox(optimizer_.seed, static_cast<uint64_t>(input.step)).bits(index * ranks + rank);
  if (WeightMover* mover = model_.mover()) mover->begin_micro_batch(first, last);
  // With ranks, the scale is on the device already.
  model_.load(batch, ranks_ ? std::optional<float>() : totals.gradient_scale(), dropout_seed);
  WeighRows weigh;
  if (objective_.weighs_rows()) {
    weigh = [&](std::span<const float> losses, std::span<float> weights) {
      const double loss = objective_.weigh(batch, totals, losses, weights);
      for (float& weight : weights)
        weight = static_cast<float>(static_cast<double>(weight) * totals.targets_per_unit());
      return loss;
    };
  }
  model_.forward_backward(penalty_, first, input.fp8_stats, weigh);
}

StepResult TrainingSession::step(const StepInput& input) {
  require(!input.micro_batches.empty(), "[step] has no micro-batch");
  StepResult result;
  StepTotals totals = count(input, result);
  StepNote note = input.note;
  note.targets = narrow<int32_t>(totals.targets);
  note.tokens = narrow<int32_t>(result.tokens);
  if (ranks_) {
    ranks_->begin_step(note);
    if (objective_.weighs_rows()) totals = sum_over_ranks(totals, ranks_->ranks().host());
  }
  model_.clear_sums();
  if (input.fp8_stats) model_.scales().clear_stats(device_);
  for (size_t i = 0; i < input.micro_batches.size(); ++i) run_micro_batch(input, i, totals);

  result.learning_rate = input.learning_rate;
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
  model_.scales().end_step(device_, input.step + 1, norm_);
  const AdamWOptions options{.learning_rate = static_cast<float>(result.learning_rate),
                             .beta1 = optimizer_.beta1,
                             .beta2 = optimizer_.beta2,
                             .epsilon = optimizer_.epsilon,
                             .step = input.step + 1,
                             .seed = optimizer_.seed};
  if (WeightMover* mover = model_.mover()) {
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
    totals.targets = result.tokens = 0;
    for (const RankRecord& record : result.ranks) {
      sums.loss += static_cast<double>(record.loss);
      sums.penalty += static_cast<double>(record.penalty);
      totals.targets += record.note.targets;
      result.tokens += record.note.tokens;
    }
  }
  result.loss =
      objective_.weighs_rows() ? totals.mean_over_units(sums.loss) : totals.mean_over_targets(sums.loss);
  result.penalty = totals.mean_over_targets(sums.penalty);
  result.grad_norm = static_cast<double>(outcome[2]);
  result.skipped = !std::isfinite(result.grad_norm);
  return result;
}

TrainingState TrainingSession::snapshot() const {
  if (ranks_) ranks_->settle();
  TrainingState state;
  for (const Parameter& parameter : model_.parameters().all()) {
    for (const NamedTensor& named : parameter.state()) {
      std::vector<std::byte>& bytes = state.tensors.emplace_back(static_cast<size_t>(named.tensor.bytes()));
      device_.copy_to_host(bytes.data(), named.tensor);
    }
  }
  if (model_.scales().count() > 0) state.scales = model_.scales().save(device_);
  return state;
}

void TrainingSession::restore(const TrainingState& state) {
  if (ranks_) ranks_->settle();
  std::vector<NamedTensor> tensors;
  for (const Parameter& parameter : model_.parameters().all()) {
    for (const NamedTensor& named : parameter.state()) tensors.push_back(named);
  }
  bool fits = tensors.size() == state.tensors.size();
  for (size_t i = 0; fits && i < tensors.size(); ++i)
    fits = std::ssize(state.tensors[i]) == tensors[i].tensor.bytes();
  require(fits, "[snapshot] is of another model");
  // First, because it refuses those of other tensors, and then has changed nothing.
  if (model_.scales().count() > 0) model_.scales().restore(device_, state.scales);
  for (size_t i = 0; i < tensors.size(); ++i)
    device_.copy_to_device(tensors[i].tensor, state.tensors[i].data());
  model_.weights_restored();
}

}  // namespace octet
