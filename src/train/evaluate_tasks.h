#pragma once

#include <functional>
#include <vector>

#include "dist/host_channel.h"
#include "eval/scores.h"
#include "model/transformer.h"
#include "plan/run_stages.h"

namespace octet {

// A multiple-choice task in the tokens of one model.
struct EncodedTask {
  Task task;
  std::vector<ScoredText> texts;
};

// The log-likelihood of every text: the sum over its scored tokens. The texts are packed into micro-batches of the
// model's shape. With `host`, ranks take turns with the batches, and all of them get the whole result. `on_progress` is
// told how many texts are done.
std::vector<double> log_likelihoods(Transformer& model, std::span<const ScoredText> texts, bool fp8,
                                    HostChannel* host = nullptr,
                                    const std::function<void(size_t done)>& on_progress = {});

// The tasks of a run, evaluated with its model while it trains.
class TaskEvaluator {
 public:
  TaskEvaluator() = default;
  explicit TaskEvaluator(std::vector<EncodedTask> tasks) : tasks_(std::move(tasks)) {}
  // As Evaluator::share.
  void share(HostChannel& host) { host_ = &host; }
  bool empty() const { return tasks_.empty(); }

  std::vector<TaskScore> evaluate(Transformer& model, bool fp8) const;

 private:
  std::vector<EncodedTask> tasks_;
  HostChannel* host_ = nullptr;
};

// Those of the key eval_tasks, read and encoded for the sequences of the run. ConfigError if one cannot be read.
TaskEvaluator make_task_evaluator(const RunStages& stages);

// What a StepRecord has of the scores: "hellaswag/acc", "hellaswag/acc_norm".
std::vector<std::pair<std::string, double>> named_scores(const std::vector<TaskScore>& scores);

}  // namespace octet
