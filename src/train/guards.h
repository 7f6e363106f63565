#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/parameters.h"

namespace octet {

// Tells a loss that jumps out of what the run has shown lately. The candidate is judged against the losses before it,
// never against a window that it stands in itself: there, no value of 128 can be more than 11.27 deviations away.
class SpikeDetector {
 public:
  static constexpr size_t kWindow = 128;
  static constexpr size_t kFewest = 20;     // losses before anything is judged
  static constexpr double kDeviations = 8;  // above the mean
  static constexpr double kTimesTheLargest = 10;
  static constexpr int kAccepted = 5;  // spikes in a row are the new level, not spikes

  struct Spike {
    double deviations = 0;  // above the window's mean; infinite over a flat window
    double mean = 0, largest = 0;
  };

  // Judges the finite loss of a step and then remembers it, unless it is a spike. Losses of skipped steps are not for
  // it.
  std::optional<Spike> look(double loss);

  std::vector<double> window() const { return {losses_.begin(), losses_.end()}; }
  void restore(std::span<const double> window, int spikes_in_a_row);
  int spikes_in_a_row() const { return spikes_in_a_row_; }

 private:
  std::deque<double> losses_;
  int spikes_in_a_row_ = 0;
};

// Where gradients stopped being finite, in words: backward goes from the head down, so the uppermost parameter
// whose gradient is not finite is the nearest to the cause. Empty when all are finite. Waits for the device.
std::string describe_nonfinite_gradients(Device& device, const ParameterSet& parameters);

// Why a run ends that had `steps_in_a_row` steps without a finite gradient up to `step`, and what to change. `where` is
// what describe_nonfinite_gradients gives; `fp8_margin` is set in FP8 alone.
std::string no_finite_gradient_text(int steps_in_a_row, int64_t step, const std::string& where,
                                    double learning_rate, std::optional<int64_t> fp8_margin);

}  // namespace octet
