#include "train/evaluate.h"

#include <algorithm>

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

}  // namespace

std::optional<Evaluation> Evaluator::evaluate(Transformer& model, bool fp8) const {
  const RunShape& shape = model.shape();
  const std::unique_ptr<SampleLoader> loader = make_loader_(shape.rows, shape.length);
  if (!loader) return std::nullopt;
  // Each window once.
  const int64_t windows = loader->samples_per_epoch(), all = div_up(windows, shape.rows);
  const int64_t batches = batches_ == 0 ? all : std::min(all, batches_);
  Evaluation result;
  int64_t correct = 0;
  double loss = 0;
  Batch batch;
  for (int64_t i = 0; i < batches; ++i) {
    loader->next(batch);
    const int64_t rows = std::min(shape.rows, windows - i * shape.rows);
    ignore_rows_from(batch, rows);
    result.windows += rows;
    result.targets += batch.target_count;
    model.load(host_view(batch));
    model.clear_sums();  // fp32 on the device: many batches are added up here
    model.forward_loss({}, fp8);
    loss += model.sums().loss;
    correct += model.correct_targets();
  }
  model.clear_sums();
  const auto targets = static_cast<double>(std::max<int64_t>(result.targets, 1));
  result.loss = loss / targets;
  result.accuracy = static_cast<double>(correct) / targets;
  return result;
}

std::optional<double> Evaluator::loss(Transformer& model, bool fp8) const {
  const std::optional<Evaluation> evaluation = evaluate(model, fp8);
  return evaluation ? std::optional(evaluation->loss) : std::nullopt;
}

}  // namespace octet
