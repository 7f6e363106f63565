#include "sweep/sweep_metric.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/names.h"
#include "base/words.h"

namespace octet {
namespace {

using Source = SweepMetric::Source;

// Compared word by word, so that eval/loss, eval_loss and evalLoss are the same.
struct Names {
  Source source;
  std::vector<std::string_view> names;
};
const std::vector<Names>& known_names() {
  static const std::vector<Names> kNames = {
      {Source::EvalLoss,
       {"eval loss", "evaluation loss", "val loss", "valid loss", "validation loss", "test loss",
        "best eval loss"}},
      {Source::EvalPerplexity,
       {"perplexity", "ppl", "eval perplexity", "eval ppl", "val perplexity", "val ppl",
        "validation perplexity"}},
      {Source::TrainLoss, {"loss", "train loss", "training loss"}},
      {Source::Throughput, {"tokens per second", "tok sec", "throughput", "train tokens per second"}},
  };
  return kNames;
}

std::optional<double> value_of(const SweepMetric& metric, const StepRecord& record) {
  const auto named = [&](const std::vector<std::pair<std::string, double>>& all) -> std::optional<double> {
    for (const auto& [name, value] : all)
      if (name == metric.detail) return value;
    return std::nullopt;
  };
  switch (metric.source) {
    case Source::EvalLoss:
      return record.eval_loss;
    case Source::EvalPerplexity:
      return record.eval_loss ? std::optional(std::exp(*record.eval_loss)) : std::nullopt;
    case Source::TrainLoss:
      return record.loss;
    case Source::Throughput:
      return record.tokens_per_second;
    case Source::DatasetLoss:
      return named(record.eval_losses);
    case Source::TaskScore:
      return named(record.task_scores);
  }
  return std::nullopt;
}

}  // namespace

std::string SweepMetric::label() const {
  constexpr std::string_view kLabels[] = {"eval_loss",         "perplexity", "loss",
                                          "tokens_per_second", "eval_loss/", ""};
  return std::string(name_in(kLabels, source)) + detail;
}

std::optional<SweepMetric> metric_called(std::string_view name) {
  SweepMetric metric{.name = std::string(name), .detail = {}, .target = {}};
  std::string words;
  for (const std::string& word : lower_words(name)) {
    if (!words.empty()) words += ' ';
    words += word;
  }
  for (const auto& [source, names] : known_names()) {
    if (std::ranges::find(names, words) == names.end()) continue;
    metric.source = source;
    metric.maximize = metric.source == Source::Throughput;
    return metric;
  }
  for (const std::string_view prefix : {"eval_loss/", "eval/loss/"}) {
    if (name.starts_with(prefix) && name.size() > prefix.size()) {
      metric.source = Source::DatasetLoss;
      metric.detail = name.substr(prefix.size());
      return metric;
    }
  }
  if (name.ends_with("/acc") || name.ends_with("/acc_norm")) {
    metric.source = Source::TaskScore;
    metric.detail = name;
    for (const std::string_view prefix : {"eval/", "tasks/"})  // W&B's habit, and the name in TensorBoard
      if (name.starts_with(prefix)) metric.detail = name.substr(prefix.size());
    metric.maximize = true;
    return metric;
  }
  return std::nullopt;
}

std::string metric_names() {
  return "eval_loss (eval/loss, val_loss), perplexity, loss (train/loss), tokens_per_second, eval_loss/DATASET or a "
         "score of eval_tasks such as hellaswag/acc_norm";
}

std::vector<double> metric_history(const SweepMetric& metric, const std::vector<StepRecord>& records) {
  std::vector<double> history;
  for (const StepRecord& record : records) {
    const std::optional<double> value = value_of(metric, record);
    if (value && std::isfinite(*value)) history.push_back(*value);
  }
  return history;
}

std::optional<double> metric_result(const SweepMetric& metric, const std::vector<StepRecord>& records) {
  std::vector<double> history = metric_history(metric, records);
  if (history.empty()) return std::nullopt;
  if (metric.source == Source::TrainLoss) {
    const size_t tenth = std::max<size_t>(1, history.size() / 10);
    return std::accumulate(history.end() - static_cast<ptrdiff_t>(tenth), history.end(), 0.0) /
           static_cast<double>(tenth);
  }
  if (metric.source == Source::Throughput) {
    std::ranges::sort(history);
    return history[history.size() / 2];
  }
  return metric.maximize ? std::ranges::max(history) : std::ranges::min(history);
}

}  // namespace octet
