#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "report/step_record.h"

namespace octet {

// The figure that a sweep optimizes.
struct SweepMetric {
  enum class Source { EvalLoss, EvalPerplexity, TrainLoss, Throughput, DatasetLoss, TaskScore };
  std::string name;  // as the file has it
  Source source = Source::EvalLoss;
  std::string detail;  // DatasetLoss: the dataset; TaskScore: "hellaswag/acc_norm"
  bool maximize = false;
  std::optional<double> target;  // no new runs after one has reached it

  std::string label() const;  // of a column: "eval_loss"
  bool is_better(double a, double b) const { return maximize ? a > b : a < b; }
  // Whether an evaluation gives it, so that a run without evaluation has none.
  bool needs_evaluation() const { return source != Source::TrainLoss && source != Source::Throughput; }
};

// The metric that a name of W&B, Transformers or octet means. Nothing if there is no such metric.
std::optional<SweepMetric> metric_called(std::string_view name);
std::string metric_names();  // for messages

// The logged values of the metric, in their order. Values that are not finite are left out.
std::vector<double> metric_history(const SweepMetric& metric, const std::vector<StepRecord>& records);

// The result of a run: the best evaluation or score; of the training loss, the mean of the last tenth of the records; of the
// throughput, the median. Nothing if there is no value.
std::optional<double> metric_result(const SweepMetric& metric, const std::vector<StepRecord>& records);

}  // namespace octet
