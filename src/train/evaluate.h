#pragma once

#include <optional>

#include "model/transformer.h"
#include "train/data_setup.h"

namespace octet {

// The mean loss of a model on held-out tokens: always the same windows, from the front.
class Evaluator {
 public:
  // At most `batches` micro-batches of the model's shape, 0 for all there are.
  Evaluator(EvalLoaderFactory make_loader, int64_t batches)
      : make_loader_(std::move(make_loader)), batches_(batches) {}

  // Empty when there is no held-out data, or less than one sequence of it.
  std::optional<double> loss(Transformer& model, bool fp8) const;

 private:
  EvalLoaderFactory make_loader_;
  int64_t batches_;
};

}  // namespace octet
