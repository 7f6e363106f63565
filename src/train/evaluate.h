#pragma once

#include <optional>

#include "data/token_source.h"
#include "model/transformer.h"

namespace octet {

struct Evaluation {
  double loss = 0;      // mean cross-entropy of the targets
  double accuracy = 0;  // share of targets that were the likeliest token
  int64_t targets = 0;
  int64_t windows = 0;  // rows that the data was read in
};

// The mean loss of a model on held-out tokens: always the same windows, from the front.
class Evaluator {
 public:
  // At most `batches` micro-batches of the model's shape, 0 for all there are. With `document_end`, documents are
  // kept apart after each.
  Evaluator(TokenSource source, int64_t batches, std::optional<int32_t> document_end = std::nullopt)
      : source_(std::move(source)), batches_(batches), document_end_(document_end) {}

  // Empty when there is no held-out data, or less than one sequence of it.
  std::optional<Evaluation> evaluate(Transformer& model, bool fp8) const;
  std::optional<double> loss(Transformer& model, bool fp8) const;

 private:
  TokenSource source_;
  int64_t batches_;
  std::optional<int32_t> document_end_;
};

}  // namespace octet
