#pragma once

#include <functional>
#include <vector>

#include "dist/host_channel.h"
#include "eval/scores.h"
#include "model/transformer.h"
#include "plan/run_spec.h"

namespace octet {

// A multiple-choice task in the tokens of one model.
struct EncodedTask {
  Task task;
  std::vector<ScoredText> texts;
};

struct ScoringOptions {
  HostChannel* host = nullptr;  // ranks take turns with the batches; all get the whole result
  std::function<void(size_t done)> on_progress = {};  // told how many texts are done
  // Asked between batches. If it is true on any rank, all stop.
  std::function<bool()> stops = {};
};

// The log-likelihood of every text: the sum over its scored tokens. The texts are packed into micro-batches of the
// model's shape. Nothing if it was stopped.
std::vector<double> log_likelihoods(Transformer& model, std::span<const ScoredText> texts, bool fp8,
                                    const ScoringOptions& options = {});

// The tasks of a run, evaluated with its model while it trains.
class TaskEvaluator {
 public:
  TaskEvaluator() = default;
  explicit TaskEvaluator(std::vector<EncodedTask> tasks) : tasks_(std::move(tasks)) {}
  // As Evaluator::share.
  void share(HostChannel& host) { host_ = &host; }
  bool empty() const { return tasks_.empty(); }

  // Without scores if `stops` becomes true on any rank.
  std::vector<TaskScore> evaluate(Transformer& model, bool fp8,
                                  const std::function<bool()>& stops = {}) const;

 private:
  std::vector<EncodedTask> tasks_;
  HostChannel* host_ = nullptr;
};

// Those of the key eval_tasks, read and encoded for the sequences of the run. ConfigError if one cannot be read.
TaskEvaluator make_task_evaluator(const RunSpec& run);

// What a StepRecord has of the scores: "hellaswag/acc", "hellaswag/acc_norm".
std::vector<std::pair<std::string, double>> named_scores(const std::vector<TaskScore>& scores);

}  // namespace octet
