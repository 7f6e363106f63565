#pragma once

#include <optional>
#include <string>

#include "checkpoint/checkpoint_saver.h"
#include "plan/run_spec.h"

namespace octet {

// How many checkpoints a run keeps at a time, with the one that is being written.
int64_t kept_checkpoints(const RunSpec& run);

// When the state of a run is saved, and what happens where that fails.
class Saving {
 public:
  // `saver` may be null: nothing is saved then. `train_config` is what a checkpoint holds of the configuration; the state
  // of `saved_step` is on disk already.
  Saving(const RunSpec& run, Transformer& model, CheckpointSaver* saver, std::string train_config,
         int64_t saved_step, HostChannel* host = nullptr)
      : run_(run),
        model_(model),
        saver_(saver),
        train_config_(std::move(train_config)),
        host_(host),
        saved_step_(saved_step) {}

  bool is_on() const { return saver_ != nullptr; }
  // After step number `step`, counted from 0.
  bool is_due(int64_t step) const { return saver_ && run_.saving.is_due(step); }
  // `eval_loss` is that of this very state, where it was taken. A state whose evaluation is not finite is not saved.
  void save(const TrainerState& state, std::optional<double> eval_loss);
  // The state at the end of a run. False where it could not be saved.
  bool save_last(const TrainerState& state, std::optional<double> eval_loss, bool was_stopped);
  // What was saved may be gone: the state of the last step is saved again.
  void start_anew(std::string train_config) {
    train_config_ = std::move(train_config);
    saved_step_ = 0;
  }
  // The end of a run whose state is not worth saving: what is being written is finished.
  void finish();

  // What the last save cost, once after each.
  std::optional<CheckpointCost> take_cost();
  int failures_in_a_row() { return saver_ ? saver_->failures_in_a_row() : 0; }
  // A checkpoint of this run is on disk.
  bool has_published() const { return saver_ && saver_->has_published(); }
  std::string directory() const { return saver_ ? saver_->directory() : ""; }
  // Of the last checkpoint, while nothing is being written.
  std::optional<CheckpointCost> last_cost() const { return saver_ ? saver_->last_cost() : std::nullopt; }

 private:
  const RunSpec& run_;
  Transformer& model_;
  CheckpointSaver* saver_;
  std::string train_config_;
  // Of a run of several ranks: they save together, so they decide together.
  HostChannel* host_;
  int64_t saved_step_;                  // the last step whose state is on disk or on its way
  std::optional<double> slowest_save_;  // seconds
};

}  // namespace octet
