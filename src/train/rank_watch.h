#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "step/rank_sync.h"
#include "train/step.h"

namespace octet {

// What ranks tell each other with every step, and what follows from it: all stop after the same step, weights that
// differ end the run, and a slow rank is named. All ranks see the same records, so they decide alike.
class RankWatch {
 public:
  // `sync` is null in a run of one rank. Weights are compared at the start and every `check_steps` steps; 0: never.
  RankWatch(RankSync* sync, int64_t check_steps) : sync_(sync), check_steps_(check_steps) {}

  // Before step number `step`, counted from 0. `signal` has come to this rank; 0: none.
  // `save_failures` in a row here.
  StepNote note(int64_t step, int signal, int save_failures = 0);
  // After it. RankError if the weights of the ranks differ; names the odd ones.
  void look(int64_t step, const StepResult& result);
  // The signal that some rank had before the last step; 0: none. Without other ranks: that of this one.
  int agreed_signal(int own) const { return sync_ ? signal_ : own; }
  // The most that any rank had; likewise.
  int agreed_failures(int own) const { return sync_ ? save_failures_ : own; }

 private:
  void compare_weights(int64_t step, const std::vector<RankRecord>& records) const;
  void name_stragglers(int64_t step, const std::vector<RankRecord>& records);

  RankSync* sync_;
  int64_t check_steps_;
  int64_t first_step_ = -1;  // of this process; the weights that it began with are always compared
  int signal_ = 0, save_failures_ = 0;
  double compute_ms_ = 0;
  std::vector<int> slow_steps_;  // of the last steps, per rank
  int64_t watched_steps_ = 0;
};

// The ranks that are slow: above 1.15 times the median of all. Empty for fewer than three ranks, or without times.
std::vector<size_t> slow_ranks(const std::vector<double>& compute_ms);

}  // namespace octet
