#pragma once

#include <memory>

#include "data/loading/loader.h"
#include "data/loading/packing_plan.h"

namespace octet {

struct PackedLoaderOptions {
  int64_t rows = 1;    // per batch of this rank
  int64_t length = 0;  // tokens per row (max_seq_length)
  Packing packing = Packing::BestFit;
  bool shuffle = true;  // else rows in the order of the data, the same in each epoch
  uint64_t seed = 0;
  int rank = 0;  // rank r of n is handed the samples r, r + n, r + 2n, ...
  int ranks = 1;
  int32_t padding_id = 0;  // of places that hold no document: any id the model knows
};

// Rows of whole documents. Each document of a row has positions from 0 and does not see the others; what is left of a
// row is padding, a document of its own without targets. A row is a sample, and sample i a pure function of (source,
// options, seed, i), as with Loader: in each epoch every row once, in an order drawn for it. Error where there is
// nothing to train on.
class PackedLoader final : public SampleLoader {
 public:
  // `plan`, where it was made before, must be of this source, length and packing.
  PackedLoader(DocumentSource source, const PackedLoaderOptions& options,
               std::shared_ptr<const PackingPlan> plan = nullptr);

  void next(Batch& batch) override;
  LoaderState state() const override { return state_; }
  void set_state(const LoaderState& state) override;
  double epoch() const override;
  int64_t samples_per_epoch() const override { return plan_->rows(); }

  const PackingPlan& plan() const { return *plan_; }

 private:
  void fill_row(Batch& batch, int64_t row, int64_t sample);

  DocumentSource source_;
  PackedLoaderOptions options_;
  std::shared_ptr<const PackingPlan> plan_;
  LoaderState state_;
  std::vector<int32_t> tokens_;     // (length + 1) scratch
  std::vector<uint8_t> is_target_;  // (length + 1) scratch
};

}  // namespace octet
