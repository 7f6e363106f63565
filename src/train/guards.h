#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/parameters.h"

namespace octet {

// Detects a loss far above the recent losses. A loss is compared with the losses before it, never with a window that
// includes it: there, no value of 128 can be more than 11.27 deviations away.
class SpikeDetector {
 public:
  static constexpr size_t kWindow = 128;
  static constexpr size_t kFewest = 20;     // losses before the window is judged by
  static constexpr double kDeviations = 8;  // above the mean
  // Before that the loss falls fast, which makes the deviation of all losses large: only the last few count, and the loss
  // must also exceed the largest of them by a fifth.
  static constexpr size_t kFewestEarly = 4;
  static constexpr double kEarlyTimesTheLargest = 1.2;
  static constexpr double kTimesTheLargest = 10;
  static constexpr int kAccepted = 5;  // this many spikes in a row are accepted as the new level

  struct Spike {
    double deviations = 0;  // above the window's mean; infinite over a flat window
    double mean = 0, largest = 0;
  };

  // Checks the finite loss of a step and then adds it to the window, unless it is a spike. Do not pass the losses of
  // skipped steps.
  std::optional<Spike> look(double loss);

  const std::vector<double>& window() const { return losses_; }
  void restore(std::span<const double> window, int spikes_in_a_row);
  int spikes_in_a_row() const { return spikes_in_a_row_; }

 private:
  std::vector<double> losses_;
  int spikes_in_a_row_ = 0;
};

// Detects a gradient norm far above the recent ones. A diverging run shows it there before its loss does, and from its
// first steps on.
class NormSpikeDetector {
 public:
  static constexpr size_t kWindow = 16;  // short, because norms drift
  static constexpr size_t kFewest = 4;
  static constexpr double kTimesTheMedian = 10;
  static constexpr int kAccepted = 5;

  // The finite norm of a step as a multiple of the median before it, if that is a spike.
  std::optional<double> look(double norm);

 private:
  std::vector<double> norms_;
  int spikes_in_a_row_ = 0;
};

// Says which gradients are not finite. Backward runs from the head down, so the parameter nearest to the head whose
// gradient is not finite is the nearest to the cause. Empty when all are finite. Waits for the device.
std::string describe_nonfinite_gradients(Device& device, const ParameterSet& parameters);

// Says how many weights are not finite. Empty when all are. Waits for the device.
std::string describe_nonfinite_weights(Device& device, const ParameterSet& parameters);

// A run that stops because no gradient is finite any more.
struct NotFiniteEnd {
  int64_t steps_in_a_row = 0;
  int64_t step = 0;         // the last of them
  std::string gradients;    // of describe_nonfinite_gradients
  std::string weights;      // of describe_nonfinite_weights
  bool was_trained = true;  // some step has changed the weights
  double learning_rate = 0;
  float penalty_weight = 0;           // 0: no penalty
  std::optional<int64_t> fp8_margin;  // only in FP8
};

// The error of such a run, and what to change.
std::string no_finite_gradient_text(const NotFiniteEnd& end);

}  // namespace octet
