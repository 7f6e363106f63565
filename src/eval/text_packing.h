#pragma once

#include <span>
#include <vector>

#include "data/loading/batch.h"
#include "eval/task.h"

namespace octet {

// Texts of any length, packed one after another into micro-batches of a fixed number of tokens. Each text is a document
// of its own: attention and positions do not cross from one to the next.
class TextPacking {
 public:
  // No text is longer than `length` + 1 tokens, because the model does not read the last token. The texts must outlive
  // this.
  TextPacking(std::span<const ScoredText> texts, int64_t rows, int64_t length);

  int64_t batches() const { return static_cast<int64_t>(firsts_.size()) - 1; }
  // Texts [first, second) are in the batch. Their scored tokens are its targets, in the same order.
  std::pair<size_t, size_t> texts_of(int64_t batch) const {
    return {firsts_[static_cast<size_t>(batch)], firsts_[static_cast<size_t>(batch) + 1]};
  }
  void fill(int64_t index, Batch& batch) const;

 private:
  std::span<const ScoredText> texts_;
  int64_t rows_, length_;
  std::vector<size_t> firsts_ = {0};  // the first text of every batch, and the end
};

}  // namespace octet
