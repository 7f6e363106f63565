#include <limits>

#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "data/loading/loader.h"

namespace octet {

SampleLoader::SampleLoader(const BatchShape& shape) : shape_(shape), state_{.seed = shape.seed} {
  require(shape.rows > 0, "[loader] rows per batch {}, expected at least 1", shape.rows);
  require(shape.length > 0, "[loader] max_seq_length {}, expected at least 1", shape.length);
  require(shape.ranks > 0 && shape.rank >= 0 && shape.rank < shape.ranks,
          "[loader] rank {} of {}, expected 0 <= rank < ranks", shape.rank, shape.ranks);
  require(checked_mul(shape.rows, shape.length) <= std::numeric_limits<int32_t>::max(),
          "[loader] a batch of {} rows x {} tokens, expected at most 2^31 - 1 tokens", shape.rows,
          shape.length);
}

void SampleLoader::next(Batch& batch) {
  const size_t count = static_cast<size_t>(shape_.rows * shape_.length);
  batch.rows = shape_.rows;
  batch.length = shape_.length;
  batch.tokens.resize(count);
  batch.targets.resize(count);
  batch.positions.resize(count);
  batch.document_starts.clear();
  batch.token_count = 0;
  batch.target_count = 0;
  for (int64_t row = 0; row < shape_.rows; ++row)
    add_row(batch, row, state_.next_sample + shape_.rank + row * shape_.ranks);
  batch.document_starts.push_back(static_cast<int32_t>(count));
  state_.next_sample += shape_.rows * shape_.ranks;
}

void SampleLoader::set_state(const LoaderState& state) {
  require(state.next_sample >= 0, "[loader] state with next_sample {}, expected at least 0",
          state.next_sample);
  if (state.data_hash != state_.data_hash && state.data_hash != 0) {
    log_warning(
        "the saved position in the data (sample {}) comes from other data: the dataset, seed, max_seq_length, "
        "packing or data_order has changed; continuing from it, but some tokens of this epoch may be seen twice or not at all",
        state.next_sample);
  }
  state_ = {.seed = state.seed, .next_sample = state.next_sample, .data_hash = state_.data_hash};
}

double SampleLoader::epoch() const {
  return static_cast<double>(state_.next_sample) / static_cast<double>(samples_per_epoch());
}

}  // namespace octet
