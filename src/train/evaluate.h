#pragma once

#include <optional>

#include "data/token_source.h"
#include "model/transformer.h"

namespace octet {

// The mean loss of a model on held-out tokens: always the same windows, from the front.
class Evaluator {
 public:
  // At most `batches` micro-batches of the model's shape, 0 for all there are. With `document_end`, documents are kept apart after each.
  Evaluator(TokenSource source, int64_t batches, std::optional<int32_t> document_end = std::nullopt)
      : source_(std::move(source)), batches_(batches), document_end_(document_end) {}

  // Empty when there is no held-out data, or less than one sequence of it.
  std::optional<double> loss(Transformer& model, bool fp8) const;

 private:
  TokenSource source_;
  int64_t batches_;
  std::optional<int32_t> document_end_;
};

}  // namespace octet
