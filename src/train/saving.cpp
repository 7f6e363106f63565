#include "train/saving.h"

#include <algorithm>
#include <cmath>

#include "base/log.h"
#include "report/text.h"

namespace octet {

int64_t kept_checkpoints(const RunSpec& run) {
  const Interval& saves = run.saving;
  const int64_t steps = run.schedule().max_steps, limit = run.files.save_total_limit;
  // The last step is always saved.
  const int64_t saved = saves.count(steps) + (saves.is_due(steps - 1) ? 0 : 1);
  return limit > 0 ? std::min(saved, limit + 1) : saved;
}

void Saving::save(const TrainerState& state, std::optional<double> eval_loss) {
  if (eval_loss && !std::isfinite(*eval_loss)) {
    log_warning("step {}: the evaluation loss is not finite; no checkpoint is saved", state.step);
    return;
  }
  CheckpointSummary summary{.precision = run_.plan.precision_label};
  if (eval_loss) summary.loss = *eval_loss;
  saver_->save(*run_.device, model_, state, train_config_, summary);
  saved_step_ = state.step;
}

bool Saving::save_last(const TrainerState& state, std::optional<double> eval_loss, bool was_stopped) {
  if (!saver_) return true;
  // A scheduler gives about 90 seconds. If a large checkpoint is being written already, there is no time for another.
  constexpr double kSlowSave = 20;
  bool slow = saver_->is_writing() && saved_step_ > 0 && (!slowest_save_ || *slowest_save_ > kSlowSave);
  // Whether a save is still being written differs between ranks from moment to moment.
  if (host_) slow = host_->from_first("the last save is slow", slow ? "yes" : "no") == "yes";
  const bool no_time = was_stopped && slow;
  if (saved_step_ != state.step && !no_time) save(state, eval_loss);
  saver_->wait();
  if (saver_->failures_in_a_row() > 0 && saver_->failures_in_a_row() < kMaxFailuresInARow) {
    log_warning("trying once more to save the last checkpoint");
    save(state, eval_loss);
    saver_->wait();
  }
  if (saver_->failures_in_a_row() > 0) {
    log_line(LogLevel::Error, fmt::format("the state of step {} could not be saved", state.step));
    return false;
  }
  if (saved_step_ != state.step) {
    const std::string kept = saved_step_ > 0
                                 ? fmt::format("the last checkpoint is that of step {}", saved_step_)
                                 : "there is no checkpoint";
    log_warning("the last {} not saved; {}{}", counted(state.step - saved_step_, "step is", "steps are"),
                kept, no_time ? ", which was still being written when the run was stopped" : "");
  }
  return true;
}

void Saving::finish() {
  if (saver_) saver_->wait();
}

std::optional<CheckpointCost> Saving::take_cost() {
  if (!saver_) return std::nullopt;
  std::optional<CheckpointCost> cost = saver_->take_cost();
  if (cost) slowest_save_ = std::max(slowest_save_.value_or(0), cost->write_seconds);
  return cost;
}

}  // namespace octet
