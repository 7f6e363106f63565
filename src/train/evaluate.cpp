#include "train/evaluate.h"

#include <algorithm>

#include "train/step.h"

namespace octet {

namespace {

// Where the data has fewer windows than the batch rows, the loader starts again: those rows do not count.
void ignore_rows_from(Batch& batch, int64_t windows) {
  for (size_t i = static_cast<size_t>(windows * batch.length); i < batch.targets.size(); ++i) {
    batch.target_count -= batch.targets[i] != kIgnoreTarget;
    batch.targets[i] = kIgnoreTarget;
  }
}

}  // namespace

std::optional<double> Evaluator::loss(Transformer& model, bool fp8) const {
  const RunShape& shape = model.shape();
  const std::unique_ptr<SampleLoader> loader = make_loader_(shape.rows, shape.length);
  if (!loader) return std::nullopt;
  // Each window once; a last micro-batch that would wrap around is left out, unless it is the only one.
  const int64_t all = std::max<int64_t>(loader->samples_per_epoch() / shape.rows, 1);
  const int64_t batches = batches_ == 0 ? all : std::min(all, batches_);
  int64_t targets = 0;
  Batch batch;
  model.clear_sums();
  for (int64_t i = 0; i < batches; ++i) {
    loader->next(batch);
    ignore_rows_from(batch, loader->samples_per_epoch());
    targets += batch.target_count;
    model.load(host_view(batch));
    model.forward_loss({}, fp8);
  }
  return model.sums().loss / static_cast<double>(std::max<int64_t>(targets, 1));
}

}  // namespace octet
