#pragma once

#include <optional>

#include "dist/host_channel.h"
#include "model/transformer.h"
#include "plan/data_loaders.h"

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
  // At most `batches` micro-batches of the model's shape, 0 for all there are.
  Evaluator(EvalLoaderFactory make_loader, int64_t batches)
      : make_loader_(std::move(make_loader)), batches_(batches) {}
  // Ranks take turns with the batches. The result is the same on all of them, and as if one rank had read all.
  void share(HostChannel& host) { host_ = &host; }

  // Empty when there is no held-out data, or less than one sequence of it.
  std::optional<Evaluation> evaluate(Transformer& model, bool fp8) const;
  std::optional<double> loss(Transformer& model, bool fp8) const;

 private:
  EvalLoaderFactory make_loader_;
  int64_t batches_;
  HostChannel* host_ = nullptr;
};

}  // namespace octet
