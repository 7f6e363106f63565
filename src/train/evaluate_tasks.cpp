#include "train/evaluate_tasks.h"

#include <algorithm>
#include <cstdlib>

#include "base/checked.h"
#include "base/cpu_threads.h"
#include "eval/text_packing.h"
#include "train/step.h"

namespace octet {
namespace {

// The log-likelihoods of the texts of a batch, from the losses of its targets.
void add_up(const TextPacking& packing, int64_t batch, std::span<const ScoredText> texts,
            const std::vector<float>& losses, std::vector<double>& sums) {
  size_t at = 0;
  const auto [first, last] = packing.texts_of(batch);
  for (size_t i = first; i < last; ++i) {
    double sum = 0;
    for (int64_t k = 0; k < texts[i].scored; ++k) sum -= losses[at++];
    sums[i] = sum;
  }
  require(at == losses.size(), "[eval] {} losses for {} scored tokens", losses.size(), at);
}

// Fills in the batches that other ranks have read.
void share_results(HostChannel& host, const TextPacking& packing, std::vector<double>& sums) {
  const auto of_rank = [&](int rank, const auto& use) {
    for (int64_t b = rank; b < packing.batches(); b += host.size()) {
      const auto [first, last] = packing.texts_of(b);
      for (size_t i = first; i < last; ++i) use(sums[i]);
    }
  };
  std::string mine;
  of_rank(host.rank(), [&](double sum) { mine += fmt::format("{:a}\n", sum); });
  const std::vector<std::string> parts = host.all_gather("tasks", mine);
  for (int rank = 0; rank < host.size(); ++rank) {
    const char* at = parts[static_cast<size_t>(rank)].c_str();
    of_rank(rank, [&](double& sum) {
      char* end = nullptr;
      sum = std::strtod(at, &end);
      at = end;
    });
  }
}

// Whether a rank wants to stop before its batch number `batch`. Ranks ask each other only now and then, all before the
// same batch.
bool any_stops(int64_t batch, const ScoringOptions& options) {
  if (!options.host || options.host->size() == 1) return options.stops();
  constexpr int64_t kBatches = 8;
  if (batch % kBatches != 0) return false;
  const std::vector<std::string> all = options.host->all_gather("stop tasks", options.stops() ? "stop" : "");
  return std::ranges::any_of(all, [](const std::string& text) { return !text.empty(); });
}

}  // namespace

std::vector<double> log_likelihoods(Transformer& model, std::span<const ScoredText> texts, bool fp8,
                                    const ScoringOptions& options) {
  HostChannel* const host = options.host;
  const RunShape& shape = model.shape();
  const TextPacking packing(texts, shape.rows, shape.length);
  const int64_t ranks = host ? host->size() : 1, rank = host ? host->rank() : 0;
  std::vector<double> sums(texts.size());
  Batch batch;
  // Weights may travel in every pass, so all ranks make equally many; some passes count for nothing.
  const int64_t passes = round_up(packing.batches(), ranks);
  const auto fill = [&](int64_t pass) {
    if (pass < passes) packing.fill(std::min(pass, packing.batches() - 1), batch);
  };
  fill(rank);
  bool stopped = false;
  for (int64_t pass = rank; pass < passes; pass += ranks) {
    if (options.stops && any_stops(pass / ranks, options)) {
      stopped = true;
      break;
    }
    model.load(host_view(batch));
    model.forward_loss({}, fp8);
    fill(pass + ranks);  // while the device computes
    const std::vector<float> losses = model.target_losses();
    if (pass >= packing.batches()) continue;
    add_up(packing, pass, texts, losses, sums);
    if (options.on_progress) options.on_progress(packing.texts_of(pass).second);
  }
  model.clear_sums();
  if (stopped) return {};
  if (host && ranks > 1) share_results(*host, packing, sums);
  return sums;
}

std::vector<TaskScore> TaskEvaluator::evaluate(Transformer& model, bool fp8,
                                               const std::function<bool()>& stops) const {
  std::vector<TaskScore> scores;
  for (const EncodedTask& encoded : tasks_) {
    const std::vector<double> sums =
        log_likelihoods(model, encoded.texts, fp8, {.host = host_, .stops = stops});
    if (sums.empty()) return {};
    scores.push_back(score_answers(encoded.task, choose_answers(encoded.task, sums)));
  }
  return scores;
}

TaskEvaluator make_task_evaluator(const RunSpec& run) {
  const EvaluationSpec& spec = run.evaluation;
  const int threads = spec.threads > 0 ? spec.threads : default_threads().count;
  std::vector<EncodedTask> tasks;
  for (const std::string& text : spec.tasks) {
    Task task = load_task(parse_task_source(text), {.max_samples = spec.task_samples});
    if (std::ranges::any_of(tasks, [&](const EncodedTask& other) { return other.task.name == task.name; }))
      fail_config("eval_tasks: task '{}' is given twice", task.name);
    std::vector<ScoredText> texts =
        encode_task(task, *run.data.tokenizer, run.plan.shape.length, threads);
    tasks.push_back({std::move(task), std::move(texts)});
  }
  return TaskEvaluator(std::move(tasks));
}

std::vector<std::pair<std::string, double>> named_scores(const std::vector<TaskScore>& scores) {
  std::vector<std::pair<std::string, double>> named;
  for (const TaskScore& score : scores) {
    named.emplace_back(score.name + "/acc", score.acc.mean);
    if (score.acc_norm) named.emplace_back(score.name + "/acc_norm", score.acc_norm->mean);
  }
  return named;
}

}  // namespace octet
