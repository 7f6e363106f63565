#pragma once

#include <memory>
#include <string>

#include "dist/ranks.h"
#include "io/env.h"
#include "plan/run_spec.h"

namespace octet {

// The ranks of this run: those that a launcher has started, pretended ones, or this process alone. Waits for the others.
// ConfigError or RankError if they do not fit together.
// `config` is the text of the configuration, which must be the same on all of them.
std::unique_ptr<Ranks> join_ranks(const RankSpec& spec, const std::string& config);

// Where the output of a rank other than the first goes: nowhere until `open`, then to rank_N.log of the run. What was
// logged before is written there, too. Errors always also go to the console.
class RankLog {
 public:
  explicit RankLog(Ranks& ranks);
  ~RankLog();
  RankLog(const RankLog&) = delete;
  void open(const std::string& run_folder);

 private:
  struct State;
  Ranks& ranks_;
  std::unique_ptr<State> state_;
};

// Counts starts of a run that ended in a crash before a new step was saved. A run that always crashes at the same place
// must not be started again and again by a scheduler.
class CrashCounter {
 public:
  // On all ranks, of which the first one keeps the count: if it is the one that crashes, the others must know.
  CrashCounter(Env& env, Ranks& ranks, const std::string& run_folder, int64_t first_step);
  // Too many starts from the same step have crashed: the next crash is not worth another one.
  bool is_hopeless() const { return crashes_ >= kMostCrashes; }
  int crashes() const { return crashes_; }
  void saved() { crashes_ = 0; }  // a new step: the next start begins there
  void finish();                  // the run ends in order

  static constexpr int kMostCrashes = 3;

 private:
  Env& env_;
  std::string path_;
  bool is_first_;
  int crashes_ = 0;
};

}  // namespace octet
