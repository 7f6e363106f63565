#include "train/guards.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace octet {

std::optional<SpikeDetector::Spike> SpikeDetector::look(double loss) {
  std::optional<Spike> spike;
  if (losses_.size() >= kFewest) {
    double sum = 0, largest = 0;
    for (const double value : losses_) {
      sum += value;
      largest = std::max(largest, value);
    }
    const double mean = sum / static_cast<double>(losses_.size());
    double squares = 0;
    for (const double value : losses_) squares += (value - mean) * (value - mean);
    const double deviation = std::sqrt(squares / static_cast<double>(losses_.size()));
    const double distance = loss - mean;
    const double deviations =
        deviation > 0 ? distance / deviation : (distance > 0 ? std::numeric_limits<double>::infinity() : 0.0);
    // In a flat window the deviation is tiny: less than a hundredth of the mean is not a spike.
    const bool far = deviations > kDeviations && distance > 0.01 * mean;
    if (far || loss >= kTimesTheLargest * largest) spike = Spike{deviations, mean, largest};
  }
  spikes_in_a_row_ = spike ? spikes_in_a_row_ + 1 : 0;
  if (!spike || spikes_in_a_row_ >= kAccepted) {
    losses_.push_back(loss);
    if (losses_.size() > kWindow) losses_.erase(losses_.begin());
  }
  return spike;
}

void SpikeDetector::restore(std::span<const double> window, int spikes_in_a_row) {
  losses_.assign(window.begin(), window.end());
  spikes_in_a_row_ = spikes_in_a_row;
}

std::string describe_nonfinite_gradients(Device& device, const ParameterSet& parameters) {
  int64_t bad = 0, total = 0;
  const Parameter* uppermost = nullptr;
  std::vector<std::byte> bytes;
  for (const Parameter& parameter : parameters.all()) {
    if (!parameter.update) continue;  // frozen
    ++total;
    bytes.resize(static_cast<size_t>(parameter.update.bytes()));
    device.copy_to_host(bytes.data(), parameter.update);
    if (all_finite(bytes, parameter.update.dtype)) continue;
    ++bad;
    // The table lists the embedding first; with a tied head its gradient is the sum of both ends.
    uppermost = &parameter;
  }
  if (!uppermost) return "";
  if (bad == total) {
    return "no parameter has a finite gradient, so the loss itself or the output of the head is not finite";
  }
  return fmt::format("{} of {} gradients are not finite; the one nearest to the head is {}", bad, total,
                     uppermost->spec.name);
}

std::string no_finite_gradient_text(int steps_in_a_row, int64_t step, const std::string& where,
                                    double learning_rate, std::optional<int64_t> fp8_margin) {
  std::string text =
      fmt::format("{} steps in a row up to step {} had no finite gradient", steps_in_a_row, step);
  if (!where.empty()) text += fmt::format("; {}", where);
  text += fmt::format(". Lower learning_rate (now {})", learning_rate);
  if (fp8_margin) {
    text += fmt::format(
        ", raise fp8_margin (now {}), try fp8_recipe current, or add layers to fp8_skip_layers", *fp8_margin);
  }
  return text;
}

}  // namespace octet
