#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dist/host_channel.h"
#include "model/transformer.h"
#include "plan/data_loaders.h"

namespace octet {

struct Evaluation {
  double loss = 0;      // mean cross-entropy of the targets
  double accuracy = 0;  // share of targets that were the likeliest token
  int64_t targets = 0;
  int64_t windows = 0;  // rows that the data was read in
  // If there are several sets: the results of each that has data. The figures above are the means of theirs: weighted
  // by the weights of the sets, or by their targets where they have none.
  std::vector<std::pair<std::string, Evaluation>> parts = {};
};

// The mean loss of a model on held-out tokens: always the same windows, from the front of each set.
class Evaluator {
 public:
  // At most `batches` micro-batches of the model's shape, 0 for all there are. Several sets share them by their weights,
  // or by their sequences if they have no weights. Each gets at least one.
  Evaluator(std::vector<EvalSet> sets, int64_t batches) : sets_(std::move(sets)), batches_(batches) {}
  // Ranks take turns with the batches. The result is the same on all of them, and as if one rank had read all.
  void share(HostChannel& host) { host_ = &host; }

  // Empty when there is no held-out data, or less than one sequence of it.
  std::optional<Evaluation> evaluate(Transformer& model, bool fp8) const;

 private:
  Evaluation evaluate(SampleLoader& loader, int64_t batches, Transformer& model, bool fp8) const;

  std::vector<EvalSet> sets_;
  int64_t batches_;
  HostChannel* host_ = nullptr;
};

}  // namespace octet
