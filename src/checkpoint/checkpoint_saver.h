#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/snapshot.h"
#include "hf/export_tokenizer.h"
#include "report/step_record.h"

namespace octet {

// Saves that fail in a row, and steps without a finite gradient: this many end a run.
constexpr int kMaxFailuresInARow = 3;

struct SaveOptions {
  int64_t total_limit = 0;  // as CheckpointStore::prune takes it
  bool in_background = true;
  bool in_place = false;  // written from the device without a copy on the host; never in the background
  std::optional<double> best = std::nullopt;  // lowest evaluation loss of a checkpoint that is there already
  std::vector<NamedText> texts = {};          // files written into every checkpoint, such as the tokenizer's
  // Called with the folder of every checkpoint that is there now, by the thread that has written it; with ranks, by the
  // first one's.
  std::function<void(const std::string& path)> on_published = nullptr;
  // Set if several ranks save together: each has a saver, and calls save() for the same steps. `best`, the summaries and
  // the states are the same on all of them. The first rank's disk holds the checkpoints, and all see it.
  std::optional<RankSaving> ranks = std::nullopt;
};

// Saves checkpoints while training continues: a step only waits for the copy to the host, and a thread writes the
// files. A save that fails is reported as an error and counted. Earlier checkpoints are not touched. With ranks, a save
// that fails on one of them has failed on all, and one is over when all know that it is published.
class CheckpointSaver {
 public:
  CheckpointSaver(Env& env, std::string directory, const SaveOptions& options);
  ~CheckpointSaver();  // finishes what was begun
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;

  // Waits first for the save before it, if that is still being written. The state's best_eval is filled in: the lowest
  // loss (of summary) among the checkpoints that are there, this one included.
  void save(Device& device, Transformer& model, TrainerState state, std::string train_config,
            const CheckpointSummary& summary);
  bool is_writing();
  void wait();  // until nothing is being written

  // The cost of a save, once after each that was published.
  std::optional<CheckpointCost> take_cost();
  // Only while nothing is being written.
  const std::optional<CheckpointCost>& last_cost() const { return last_cost_; }
  int failures_in_a_row();
  bool has_published();  // at least one
  const std::string& directory() const { return store_->directory(); }
  // Waits, and saves into this folder from now on. `best` is the lowest evaluation loss of a checkpoint that is there.
  void save_into(const std::string& directory, std::optional<double> best);

 private:
  void write();
  void write_texts(CheckpointWriter& writer) const;
  void published();  // what follows when a checkpoint is safe
  const RankSaving* ranks() const { return options_.ranks ? &*options_.ranks : nullptr; }
  void finish(std::optional<std::string> failure, std::exception_ptr unexpected, double seconds);
  void run();

  Env& env_;
  std::optional<CheckpointStore> store_;  // never empty
  SaveOptions options_;
  Snapshot snapshot_;  // the writer's while busy_

  std::mutex mutex_;
  std::condition_variable changed_;
  bool busy_ = false, stopping_ = false;
  CheckpointSummary summary_;
  bool is_best_ = false;
  std::optional<double> best_;  // of what was published
  CheckpointCost pending_cost_;
  std::optional<CheckpointCost> cost_, last_cost_;
  int failures_in_a_row_ = 0;
  std::exception_ptr unexpected_;  // what is not an Error is thrown on to the caller
  std::thread thread_;
};

}  // namespace octet
