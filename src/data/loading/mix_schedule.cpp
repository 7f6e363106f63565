#include "data/loading/mix_schedule.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "data/loading/permutation.h"

namespace octet {
namespace {

constexpr uint64_t kMixStream = 0x6d69786572000001;
constexpr int64_t kCycle = 1 << 16;

// Whole numbers in the proportion of the weights, at least 1 each, that add up to kCycle.
std::vector<int64_t> whole_shares(std::span<const double> weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int64_t> shares;
  for (const double weight : weights)
    shares.push_back(std::max<int64_t>(1, std::llround(weight / sum * static_cast<double>(kCycle))));
  // Rounding is off by less than one per part: the largest part takes it.
  *std::ranges::max_element(shares) += kCycle - std::accumulate(shares.begin(), shares.end(), int64_t{0});
  return shares;
}

}  // namespace

MixSchedule::MixSchedule(std::vector<int64_t> sequences, std::span<const double> weights, bool shuffle)
    : sequences_(std::move(sequences)), starts_{0}, shuffle_(shuffle) {
  require(!sequences_.empty() && sequences_.size() <= std::numeric_limits<uint16_t>::max() / 4,
          "[loader] a mix of {} datasets, expected 1 to {}", sequences_.size(),
          std::numeric_limits<uint16_t>::max() / 4);
  for (const int64_t count : sequences_) {
    require(count > 0, "[loader] a dataset of the mix has {} sequences, expected at least 1", count);
    starts_.push_back(starts_.back() + count);
  }
  if (!weights.empty()) make_cycle(weights);
}

void MixSchedule::make_cycle(std::span<const double> weights) {
  require(weights.size() == sequences_.size(), "[loader] {} weights for {} datasets", weights.size(),
          sequences_.size());
  for (const double weight : weights)
    require(std::isfinite(weight) && weight > 0, "[loader] weight {}, expected a number above 0", weight);
  cycle_counts_ = whole_shares(weights);
  cycle_.reserve(kCycle);
  given_.reserve(kCycle);
  // The part that is furthest behind comes next: the smallest (given + 1/2) / share. This is Webster's method, which
  // ends with exactly these counts and is never far from the shares on the way.
  std::vector<int64_t> given(sequences_.size());
  for (int64_t i = 0; i < kCycle; ++i) {
    size_t next = 0;
    for (size_t p = 1; p < given.size(); ++p) {
      if ((2 * given[p] + 1) * cycle_counts_[next] < (2 * given[next] + 1) * cycle_counts_[p]) next = p;
    }
    cycle_.push_back(static_cast<uint16_t>(next));
    given_.push_back(static_cast<uint32_t>(given[next]++));
  }
}

MixSchedule::Place MixSchedule::find(int64_t sample, uint64_t seed) const {
  if (!cycle_.empty()) {
    const auto at = static_cast<size_t>(sample % kCycle);
    const size_t part = cycle_[at];
    return {part, sample / kCycle * cycle_counts_[part] + given_[at]};
  }
  const int64_t all = samples_per_epoch(), epoch = sample / all;
  int64_t place = sample % all;
  if (shuffle_) place = permuted(place, all, epoch_random(seed, kMixStream, epoch));
  const auto part =
      static_cast<size_t>(std::upper_bound(starts_.begin(), starts_.end(), place) - starts_.begin() - 1);
  return {part, epoch * sequences_[part] + place - starts_[part]};
}

double MixSchedule::share(size_t part) const {
  if (!cycle_.empty()) return static_cast<double>(cycle_counts_[part]) / static_cast<double>(kCycle);
  return static_cast<double>(sequences_[part]) / static_cast<double>(samples_per_epoch());
}

}  // namespace octet
