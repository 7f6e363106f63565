#include "train/evaluate.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>

#include "base/checked.h"
#include "train/step.h"

namespace octet {

namespace {

// The last batch may have more rows than windows are left. The loader fills them from the front: they do not count.
void ignore_rows_from(Batch& batch, int64_t windows) {
  for (size_t i = static_cast<size_t>(windows * batch.length); i < batch.targets.size(); ++i) {
    batch.target_count -= batch.targets[i] != kIgnoreTarget;
    batch.targets[i] = kIgnoreTarget;
  }
}

// Fills in the batches that other ranks have read.
void share_results(HostChannel& host, std::vector<double>& losses, std::vector<int64_t>& correct) {
  std::string mine;
  const auto ranks = static_cast<size_t>(host.size()), rank = static_cast<size_t>(host.rank());
  for (size_t i = rank; i < losses.size(); i += ranks)
    mine += fmt::format("{:a} {}\n", losses[i], correct[i]);
  const std::vector<std::string> texts = host.all_gather("evaluation", mine);
  for (size_t r = 0; r < ranks; ++r) {
    const char* at = texts[r].c_str();
    char* end = nullptr;
    for (size_t i = r; i < losses.size(); i += ranks) {
      losses[i] = std::strtod(at, &end);
      correct[i] = std::strtoll(end, &end, 10);
      at = end;
    }
  }
}

// The mean of the sets.
Evaluation mean_of(std::vector<std::pair<std::string, Evaluation>> parts,
                   const std::vector<double>& weights) {
  Evaluation mean;
  double sum = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Evaluation& part = parts[i].second;
    const double weight = weights[i] > 0 ? weights[i] : static_cast<double>(part.targets);
    mean.loss += weight * part.loss;
    mean.accuracy += weight * part.accuracy;
    mean.targets += part.targets;
    mean.windows += part.windows;
    sum += weight;
  }
  mean.loss /= std::max(sum, 1e-300);
  mean.accuracy /= std::max(sum, 1e-300);
  mean.parts = std::move(parts);
  return mean;
}

}  // namespace

std::optional<Evaluation> Evaluator::evaluate(Transformer& model, bool fp8) const {
  const RunShape& shape = model.shape();
  std::vector<std::unique_ptr<SampleLoader>> loaders;
  std::vector<std::string> names;
  std::vector<double> weights;
  double sum = 0;
  const auto share_of = [](double weight, const SampleLoader& loader) {
    return weight > 0 ? weight : static_cast<double>(loader.samples_per_epoch());
  };
  for (const EvalSet& set : sets_) {
    std::unique_ptr<SampleLoader> loader = set.make_loader(shape.rows, shape.length);
    if (!loader) continue;
    sum += share_of(set.weight, *loader);
    names.push_back(set.name);
    weights.push_back(set.weight);
    loaders.push_back(std::move(loader));
  }
  if (loaders.empty()) return std::nullopt;
  if (sets_.size() == 1) return evaluate(*loaders[0], batches_, model, fp8);
  std::vector<std::pair<std::string, Evaluation>> parts;
  for (size_t i = 0; i < loaders.size(); ++i) {
    const double share = share_of(weights[i], *loaders[i]) / sum * static_cast<double>(batches_);
    const int64_t batches = batches_ == 0 ? 0 : std::max<int64_t>(1, std::llround(share));
    parts.emplace_back(names[i], evaluate(*loaders[i], batches, model, fp8));
  }
  return mean_of(std::move(parts), weights);
}

Evaluation Evaluator::evaluate(SampleLoader& loader, int64_t most, Transformer& model, bool fp8) const {
  const RunShape& shape = model.shape();
  // Each window once.
  const int64_t windows = loader.samples_per_epoch(), all = div_up(windows, shape.rows);
  const int64_t batches = most == 0 ? all : std::min(all, most);
  Evaluation result;
  std::vector<double> losses(static_cast<size_t>(batches));
  std::vector<int64_t> correct(static_cast<size_t>(batches));
  Batch batch;
  const int64_t ranks = host_ ? host_->size() : 1, rank = host_ ? host_->rank() : 0;
  // Weights may travel in every pass, so all ranks make equally many; some passes count for nothing.
  for (int64_t i = 0; i < round_up(batches, ranks); ++i) {
    if (i < batches) {
      loader.next(batch);
      const int64_t rows = std::min(shape.rows, windows - i * shape.rows);
      ignore_rows_from(batch, rows);
      result.windows += rows;
      result.targets += batch.target_count;
    }
    if (i % ranks != rank) continue;
    model.load(host_view(batch));
    model.clear_sums();
    model.forward_loss({}, fp8);
    if (i >= batches) continue;
    // The device adds in fp32.
    const std::vector<float> targets = model.target_losses();
    losses[static_cast<size_t>(i)] = std::accumulate(targets.begin(), targets.end(), 0.0);
    correct[static_cast<size_t>(i)] = model.correct_targets();
  }
  model.clear_sums();
  if (host_) share_results(*host_, losses, correct);
  // In the order of the batches, whoever has read them.
  const double loss = std::accumulate(losses.begin(), losses.end(), 0.0);
  const int64_t all_correct = std::accumulate(correct.begin(), correct.end(), int64_t{0});
  const auto targets = static_cast<double>(std::max<int64_t>(result.targets, 1));
  result.loss = loss / targets;
  result.accuracy = static_cast<double>(all_correct) / targets;
  return result;
}

}  // namespace octet
