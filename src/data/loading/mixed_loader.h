#pragma once

#include <memory>
#include <vector>

#include "data/loading/loader.h"
#include "data/loading/mix_schedule.h"

namespace octet {

// Rows of several loaders in the order of a schedule. The loaders may be of different kinds, but must have the length of
// the shape.
class MixedLoader final : public SampleLoader {
 public:
  // `weights`: see MixSchedule.
  MixedLoader(std::vector<std::unique_ptr<SampleLoader>> parts, std::span<const double> weights, bool shuffle,
              const BatchShape& shape);

  void set_state(const LoaderState& state) override;
  int64_t samples_per_epoch() const override { return schedule_.samples_per_epoch(); }
  void add_row(Batch& batch, int64_t row, int64_t sample) override;

 private:
  std::vector<std::unique_ptr<SampleLoader>> parts_;
  MixSchedule schedule_;
};

}  // namespace octet
