#pragma once

#include <memory>

#include "data/loading/loader.h"
#include "data/loading/packing_plan.h"

namespace octet {

struct PackedLoaderOptions {
  int64_t rows = 1;  // as in BatchShape, like length, seed, rank and ranks
  int64_t length = 0;
  Packing packing = Packing::BestFit;
  bool shuffle = true;  // otherwise rows in the order of the data, the same in every epoch
  uint64_t seed = 0;
  int rank = 0;
  int ranks = 1;
  int32_t padding_id = 0;  // token of padding places: any id the model knows
};

// Rows of whole documents. Positions start at 0 in every document, and documents do not see each other. The rest of a
// row is padding: its own document, without targets. Every row occurs once per epoch, in a random order per epoch.
// Throws Error when there is nothing to train on.
class PackedLoader final : public SampleLoader {
 public:
  // `plan`, if given, must be made for this source, length and packing.
  PackedLoader(DocumentSource source, const PackedLoaderOptions& options,
               std::shared_ptr<const PackingPlan> plan = nullptr);

  int64_t samples_per_epoch() const override { return plan_->rows(); }
  void add_row(Batch& batch, int64_t row, int64_t sample) override;

  const PackingPlan& plan() const { return *plan_; }

 private:
  DocumentSource source_;
  PackedLoaderOptions options_;
  std::shared_ptr<const PackingPlan> plan_;
  std::vector<int32_t> tokens_;     // (length + 1) scratch
  std::vector<uint8_t> is_target_;  // (length + 1) scratch
};

}  // namespace octet
