#include "train/step_log.h"

#include <cmath>

#include "base/log.h"

namespace octet {

StepRecord StepLog::make_record(const StepResult& result, int64_t step, double seconds, double epoch,
                                const Outcome& outcome) {
  StepRecord record;
  record.step = step + 1;
  record.max_steps = stages_.schedule.max_steps;
  record.epoch = epoch;
  record.loss = result.loss;
  if (stages_.keys.penalty_type != PenaltyKind::None) record.penalty = result.penalty;
  record.lr = result.learning_rate;
  record.grad_norm = result.grad_norm;
  record.step_ms = 1e3 * seconds;
  record.tokens_per_second = static_cast<double>(result.tokens) / seconds;
  record.tokens = outcome.tokens;
  record.precision = stages_.plan.precision_label;
  if (stages_.keys.pretend_ranks > 0) record.precision += " (pretended ranks)";
  record.skipped_steps = outcome.skipped_steps;
  if (records_graphs(stages_)) record.graph_replays = stages_.device->graph_counts().replayed;
  if (result.skipped || !std::isfinite(result.loss)) return record;
  if (const auto spike = spikes_.look(result.loss)) {
    record.loss_spike = spike->deviations;
    log_warning(
        "step {}: loss spike: {:.4f} is {:.1f} standard deviations above the mean of recent losses ({:.4f})",
        step + 1, result.loss, spike->deviations, spike->mean);
  }
  return record;
}

void StepLog::add_fp8_stats(StepRecord& record, Transformer& model) {
  const std::vector<ScaleTable::Report> reports = model.scales().reports(*stages_.device);
  record.fp8_json = fp8_stats_json(reports);
  saturation_.look(reports, stages_.plan.numerics.fp8);
  TensorBoardWriter* board = files_.tensorboard();
  if (!board) return;
  std::vector<float> amax, scale;
  for (const ScaleTable::Report& tensor : reports) {
    amax.push_back(static_cast<float>(tensor.amax));
    scale.push_back(static_cast<float>(tensor.scale));
  }
  board->histogram("fp8/all_amax", record.step, make_histogram(amax));
  board->histogram("fp8/all_scales", record.step, make_histogram(scale));
}

void StepLog::write(const StepRecord& record, bool logged) {
  const bool is_filed = logged || record.fp8_json || record.checkpoint;
  if (is_filed) file(record);
  if (logged) console_.step(record);
  console_.advance(record.step);
  last_.reset();
  if (!is_filed) last_ = record;
}

void StepLog::write_last() {
  if (!last_) return;
  file(*last_);
  console_.step(*last_);
  last_.reset();
}

void StepLog::file(const StepRecord& record) {
  if (!files_.metrics()) return;
  files_.metrics()->write(record);
  if (TensorBoardWriter* board = files_.tensorboard()) board->step(record);
}

}  // namespace octet
