#include "train/guards.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <limits>

namespace octet {

std::optional<SpikeDetector::Spike> SpikeDetector::look(double loss) {
  std::optional<Spike> spike;
  if (losses_.size() >= kFewestEarly) {
    const bool is_early = losses_.size() < kFewest;
    const std::span<const double> window =
        is_early ? std::span(losses_).last(kFewestEarly) : std::span(losses_);
    double sum = 0, largest = 0;
    for (const double value : window) {
      sum += value;
      largest = std::max(largest, value);
    }
    const double mean = sum / static_cast<double>(window.size());
    double squares = 0;
    for (const double value : window) squares += (value - mean) * (value - mean);
    const double deviation = std::sqrt(squares / static_cast<double>(window.size()));
    const double distance = loss - mean;
    const double deviations =
        deviation > 0 ? distance / deviation : (distance > 0 ? std::numeric_limits<double>::infinity() : 0.0);
    // In a flat window the deviation is tiny: less than a hundredth of the mean is not a spike.
    const bool is_above = is_early ? loss > kEarlyTimesTheLargest * largest : distance > 0.01 * mean;
    const bool far = deviations > kDeviations && is_above;
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

std::optional<double> NormSpikeDetector::look(double norm) {
  std::optional<double> times;
  if (norms_.size() >= kFewest) {
    std::vector<double> sorted = norms_;
    const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
    std::nth_element(sorted.begin(), middle, sorted.end());
    if (*middle > 0 && norm >= kTimesTheMedian * *middle) times = norm / *middle;
  }
  spikes_in_a_row_ = times ? spikes_in_a_row_ + 1 : 0;
  if (!times || spikes_in_a_row_ >= kAccepted) {
    norms_.push_back(norm);
    if (norms_.size() > kWindow) norms_.erase(norms_.begin());
  }
  return times;
}

std::string describe_nonfinite_gradients(Device& device, const ParameterSet& parameters) {
  int64_t bad = 0, total = 0;
  const Parameter* uppermost = nullptr;
  std::vector<std::byte> bytes;
  for (const Parameter& parameter : parameters.all()) {
    const Tensor gradient = parameter.summed_gradient();
    if (!gradient) continue;  // frozen
    ++total;
    bytes.resize(static_cast<size_t>(gradient.bytes()));
    device.copy_to_host(bytes.data(), gradient);
    if (all_finite(bytes, gradient.dtype)) continue;
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

std::string describe_nonfinite_weights(Device& device, const ParameterSet& parameters) {
  int64_t bad = 0, total = 0;
  std::vector<std::byte> bytes;
  for (const Parameter& parameter : parameters.all()) {
    if (!parameter.own_rows) continue;
    ++total;
    bytes.resize(static_cast<size_t>(parameter.own_rows.bytes()));
    device.copy_to_host(bytes.data(), parameter.own_rows);
    bad += !all_finite(bytes, parameter.own_rows.dtype);
  }
  return bad == 0 ? "" : fmt::format("{} of {} weights are not finite", bad, total);
}

std::string no_finite_gradient_text(const NotFiniteEnd& end) {
  std::string text = end.steps_in_a_row == 1
                         ? fmt::format("step {} had no finite gradient", end.step)
                         : fmt::format("{} steps in a row up to step {} had no finite gradient",
                                       end.steps_in_a_row, end.step);
  if (!end.gradients.empty()) text += fmt::format("; {}", end.gradients);
  text += ". ";
  // Smaller steps from weights that are broken, or that no step has changed, lead nowhere.
  if (!end.weights.empty() && !end.was_trained)
    return text + fmt::format("{}, as the run has read them: start from other weights", end.weights);
  if (!end.weights.empty()) {
    return text +
           fmt::format(
               "{}: no further step can mend that. Continue from an older checkpoint, or start again, with "
               "a lower learning_rate (it was {})",
               end.weights, end.learning_rate);
  }
  std::vector<std::string> advice;
  if (end.was_trained) advice.push_back(fmt::format("lower learning_rate (now {})", end.learning_rate));
  if (end.penalty_weight > 0)
    advice.push_back(fmt::format("lower penalty_weight (now {})", end.penalty_weight));
  if (end.fp8_margin) {
    advice.push_back(fmt::format("raise fp8_margin (now {})", *end.fp8_margin));
    advice.emplace_back("try fp8_recipe current");
    advice.emplace_back("add layers to fp8_skip_layers");
    advice.emplace_back("train in BF16 with mixed_precision bf16");
  }
  if (!end.was_trained) {
    text += "No step has changed the weights yet, so learning_rate is not the cause. ";
    advice.emplace_back("look at the weights that the run started from, and at its data");
  }
  if (advice.size() > 1) advice.back() = "or " + advice.back();
  std::string list = fmt::format("{}", fmt::join(advice, ", "));
  list.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(list.front())));
  return text + list;
}

}  // namespace octet
