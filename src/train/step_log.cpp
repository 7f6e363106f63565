#include "train/step_log.h"

#include <chrono>
#include <cmath>

#include "base/log.h"

namespace octet {

StepLog::StepLog(const RunSpec& run, RunFiles& files, Console& console, CostMeter& costs)
    : run_(run),
      files_(files),
      console_(console),
      costs_(costs),
      red_flags_({.warmup_steps = run.schedule().warmup_steps,
                  .uniform_loss = std::log(static_cast<double>(run.model.config.vocab)),
                  .learning_rate = run.schedule().peak_lr,
                  .on_gpu = run.device->capabilities().separate_memory,
                  .cuda_graphs = run.records_graphs()}) {}

// The ranks of a run see the same: the first one, which writes the metrics, speaks for all.
void StepLog::add_flags(StepRecord& record, const std::vector<RedFlag>& flags, bool say) {
  if (!files_.metrics()) return;
  for (const RedFlag& flag : flags) {
    if (say) log_warning("step {}: red flag {}: {}", record.step, flag.kind, flag.text);
    record.red_flags.push_back(flag);
  }
}

StepRecord StepLog::make_record(const StepResult& result, int64_t step, double seconds, double epoch,
                                const Outcome& outcome) {
  StepRecord record;
  record.step = step + 1;
  record.max_steps = run_.schedule().max_steps;
  record.epoch = epoch;
  record.loss = result.loss;
  if (run_.penalty.kind != PenaltyKind::None) record.penalty = result.penalty;
  record.lr = result.learning_rate;
  record.grad_norm = result.grad_norm;
  record.step_ms = 1e3 * seconds;
  record.tokens_per_second = static_cast<double>(result.tokens) / seconds;
  record.tokens = outcome.tokens;
  record.precision = run_.plan.precision_label;
  if (run_.ranks.pretended > 0) record.precision += " (pretended ranks)";
  record.skipped_steps = outcome.skipped_steps;
  if (run_.records_graphs()) record.graph_replays = run_.device->graph_counts().replayed;
  record.time = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  record.data_wait_ms = result.data_wait_ms;
  const bool is_finite = !result.skipped && std::isfinite(result.loss);
  if (const auto spike = is_finite ? spikes_.look(result.loss) : std::nullopt) {
    record.loss_spike = spike->deviations;
    log_warning(
        "step {}: loss spike: {:.4f} is {:.1f} standard deviations above the mean of recent losses ({:.4f})",
        step + 1, result.loss, spike->deviations, spike->mean);
  }
  if (const auto times =
          is_finite && std::isfinite(result.grad_norm) ? norm_spikes_.look(result.grad_norm) : std::nullopt) {
    record.grad_norm_spike = *times;
    log_warning("step {}: the gradient norm {:.4f} is {:.0f} times that of recent steps", step + 1,
                result.grad_norm, *times);
  }
  add_flags(record, red_flags_.look({.step = record.step,
                                     .loss = record.loss,
                                     .skipped = result.skipped,
                                     .spike = record.loss_spike || record.grad_norm_spike,
                                     .step_ms = record.step_ms,
                                     .data_wait_ms = result.data_wait_ms},
                                    spikes_.window()));
  if (const GpuSampler* gpu = costs_.sampler())
    add_flags(record, red_flags_.look(gpu->totals(), [gpu] { return gpu->state(); }));
  return record;
}

void StepLog::add_fp8_stats(StepRecord& record, Transformer& model) {
  const std::vector<ScaleTable::Report> reports = model.scales().reports(*run_.device);
  record.fp8_json = fp8_stats_json(reports);
  const MedianScales scales = median_scales(reports);
  record.fp8_fwd_scale = scales.forward;
  record.fp8_bwd_scale = scales.backward;
  const Fp8Config& fp8 = run_.plan.numerics.fp8;
  if (const std::string text = saturation_.look(reports, fp8); !text.empty())
    add_flags(record, red_flags_.saturation(text), false);
  if (fp8.recipe == Fp8Recipe::Delayed) add_flags(record, red_flags_.look(record.step, reports));
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

void StepLog::write(StepRecord record, bool logged) {
  const bool is_filed = logged || record.fp8_json || record.checkpoint || !record.red_flags.empty();
  if (is_filed) file(record);
  if (logged) console_.step(record);
  console_.advance(record.step);
  last_.reset();
  if (!is_filed) last_ = std::move(record);
}

void StepLog::write_last() {
  if (!last_) return;
  file(*last_);
  console_.step(*last_);
  last_.reset();
}

void StepLog::file(StepRecord& record) {
  if (!files_.metrics()) return;
  record.gpu = costs_.take_figures();  // since the last record that was written
  record.device_seconds = costs_.device_seconds();
  files_.metrics()->write(record);
  if (TensorBoardWriter* board = files_.tensorboard()) board->step(record);
}

}  // namespace octet
