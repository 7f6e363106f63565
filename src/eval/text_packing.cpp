#include "eval/text_packing.h"

#include <algorithm>

#include "base/error.h"

namespace octet {

// The texts stay in their order. Sorting them by length would save nothing, because there is no padding between them,
// and batches with about equally many documents need fewer different plans on a GPU.
TextPacking::TextPacking(std::span<const ScoredText> texts, int64_t rows, int64_t length)
    : texts_(texts), rows_(rows), length_(length) {
  const int64_t capacity = rows * length;
  int64_t used = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    const int64_t inputs = std::ssize(texts[i].ids) - 1;
    require(inputs >= 1 && inputs <= length, "[eval] a text of {} input tokens, expected 1 to {}", inputs,
            length);
    if (used + inputs > capacity) {
      firsts_.push_back(i);
      used = 0;
    }
    used += inputs;
  }
  if (!texts.empty()) firsts_.push_back(texts.size());
}

void TextPacking::fill(int64_t index, Batch& batch) const {
  const auto capacity = static_cast<size_t>(rows_ * length_);
  batch = {.rows = rows_, .length = length_};
  batch.tokens.assign(capacity, 0);
  batch.targets.assign(capacity, kIgnoreTarget);
  batch.positions.assign(capacity, 0);
  batch.document_starts = {0};
  size_t at = 0;
  const auto [first, last] = texts_of(index);
  for (size_t i = first; i < last; ++i) {
    const ScoredText& text = texts_[i];
    const size_t inputs = text.ids.size() - 1, unscored = text.ids.size() - static_cast<size_t>(text.scored);
    for (size_t k = 0; k < inputs; ++k) {
      batch.tokens[at + k] = text.ids[k];
      batch.positions[at + k] = static_cast<int32_t>(k);
      if (k + 1 >= unscored) batch.targets[at + k] = text.ids[k + 1];
    }
    at += inputs;
    batch.token_count += static_cast<int64_t>(inputs);
    batch.target_count += text.scored;
    batch.document_starts.push_back(static_cast<int32_t>(at));
  }
  // The rest is padding, in documents that are not longer than a row.
  while (at < capacity) {
    const size_t padding = std::min(capacity - at, static_cast<size_t>(length_));
    for (size_t k = 0; k < padding; ++k) batch.positions[at + k] = static_cast<int32_t>(k);
    at += padding;
    batch.document_starts.push_back(static_cast<int32_t>(at));
  }
}

}  // namespace octet
