#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "model/batch_inputs.h"

namespace octet {

// Counts over all micro-batches of a step, and over all ranks. This is what the loss and its gradients are divided by.
struct StepTotals {
  int64_t targets = 0;
  int64_t units = 0;  // see Objective::units

  // The gradients of all rows are multiplied by this.
  float gradient_scale() const { return targets > 0 ? 1.0f / static_cast<float>(targets) : 0.0f; }
  // Makes weights, with which a row has a part in a sum over units, relative to gradient_scale().
  double targets_per_unit() const {
    return static_cast<double>(targets) / static_cast<double>(std::max<int64_t>(units, 1));
  }
  double mean_over_units(double sum) const { return sum / static_cast<double>(std::max<int64_t>(units, 1)); }
  double mean_over_targets(double sum) const {
    return sum / static_cast<double>(std::max<int64_t>(targets, 1));
  }
};

// The training objective: the loss as a function of the rows' cross-entropies, which are minus the log-probabilities of their
// targets. The loss of a step is the sum over its micro-batches, divided by the units; penalties are means over targets.
class Objective {
 public:
  virtual ~Objective() = default;

  // The loss is a mean over these: the targets, the pairs or the examples of a micro-batch.
  virtual int64_t units(const HostBatch& batch) const = 0;

  // Without it, the loss is the sum of the rows' cross-entropies, each multiplied by its weight in the batch, and the head
  // runs once. With it, the head runs twice: weigh() stands between the cross-entropies and their gradients.
  virtual bool weighs_rows() const { return false; }
  // The loss of a micro-batch: a sum over its units. `losses` (N) are cross-entropies from fp32 logits, 0 without a target.
  // `weights` (N) gets the derivative of that sum by each of them. Rows without a target are ignored.
  virtual double weigh(const HostBatch& batch, const StepTotals& step, std::span<const float> losses,
                       std::span<float> weights) {
    static_cast<void>(batch), static_cast<void>(step), static_cast<void>(losses), static_cast<void>(weights);
    fail("[objective] does not weigh rows");
  }
};

// The mean cross-entropy over all targets.
class NextToken final : public Objective {
 public:
  int64_t units(const HostBatch& batch) const override {
    return std::ranges::count_if(batch.targets, [](int32_t target) { return target >= 0; });
  }
};

}  // namespace octet
