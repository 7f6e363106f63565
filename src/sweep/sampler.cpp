#include "sweep/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/philox.h"
#include "sweep/gaussian_process.h"

namespace octet {
namespace {

// Streams of random numbers: one per run for its draws, and one for the candidates of its search.
double uniform(uint64_t seed, uint64_t stream, uint64_t index) {
  return static_cast<double>(Philox(seed, stream).bits(index) >> 11) * 0x1p-53;
}

SweepValues drawn(const SweepSpec& spec, uint64_t seed, uint64_t stream, uint64_t first) {
  SweepValues values;
  for (size_t i = 0; i < spec.parameters.size(); ++i)
    values.push_back(spec.parameters[i].distribution.value_of(uniform(seed, stream, first + i)));
  return values;
}

SweepValues grid_values(const SweepSpec& spec, int64_t index) {
  SweepValues values(spec.parameters.size());
  for (size_t i = spec.parameters.size(); i-- > 0;) {  // the last parameter changes fastest
    const Distribution& distribution = spec.parameters[i].distribution;
    const int64_t count = distribution.count().value_or(1);
    values[i] = distribution.value_at(index % count);
    index /= count;
  }
  return values;
}

std::vector<double> point_of(const SweepSpec& spec, const SweepValues& values) {
  std::vector<double> point;
  for (size_t i = 0; i < values.size(); ++i) {
    const std::vector<double> part = spec.parameters[i].distribution.coordinates(values[i]);
    point.insert(point.end(), part.begin(), part.end());
  }
  return point;
}

// The search for the largest expected improvement: random points, and steps of shrinking size from the best ones.
class BayesSearch {
 public:
  BayesSearch(const SweepSpec& spec, uint64_t seed, int64_t index, const std::vector<KnownRun>& known)
      : spec_(spec), seed_(seed), stream_(2 * static_cast<uint64_t>(index) + 1), known_(known) {}

  SweepValues run() {
    const GaussianProcess process = model();
    const auto try_values = [&](const SweepValues& values) {
      const double gain = process.expected_improvement(point_of(spec_, values), best_);
      // A run that was made already teaches nothing, unless there are no others.
      if (is_known(values) || !(gain > chosen_gain_)) return;
      chosen_gain_ = gain;
      chosen_ = values;
    };
    constexpr int kRandom = 2000, kNear = 300;
    for (int i = 0; i < kRandom; ++i) try_values(drawn(spec_, seed_, stream_, take()));
    for (const double width : {0.2, 0.05, 0.01}) {
      for (int i = 0; i < kNear; ++i)
        try_values(neighbour(i % 2 == 0 || chosen_.empty() ? best_values_ : chosen_, width));
    }
    return chosen_.empty() ? drawn(spec_, seed_, stream_, take()) : chosen_;
  }

 private:
  GaussianProcess model() {
    std::vector<std::vector<double>> points, pending;
    std::vector<double> results;
    const double sign = spec_.metric->maximize ? -1 : 1;
    double worst = -std::numeric_limits<double>::infinity();
    for (const KnownRun& run : known_) {
      if (!run.result) continue;
      const double result = sign * *run.result;
      worst = std::max(worst, result);
      if (result < best_) {
        best_ = result;
        best_values_ = run.values;
      }
    }
    for (const KnownRun& run : known_) {
      if (!run.result && !run.is_over) {
        pending.push_back(point_of(spec_, run.values));
        continue;
      }
      points.push_back(point_of(spec_, run.values));
      results.push_back(run.result ? sign * *run.result : worst);  // a failed run counts as the worst one
    }
    GaussianProcess process(std::move(points), std::move(results));
    process.believe(pending);
    return process;
  }

  SweepValues neighbour(const SweepValues& values, double width) {
    SweepValues result = values;
    for (size_t i = 0; i < result.size(); ++i) {
      const Distribution& distribution = spec_.parameters[i].distribution;
      if (!distribution.is_searched()) continue;
      const double u = uniform(seed_, stream_, next_++), step = uniform(seed_, stream_, next_++) - 0.5;
      if (distribution.kind == DistributionKind::Categorical) {
        if (u < width) result[i] = distribution.value_of(uniform(seed_, stream_, next_++));
        continue;
      }
      const double place = distribution.coordinates(values[i]).front();
      result[i] = distribution.value_of(std::clamp(place + 2 * width * step, 0.0, 1.0 - 0x1p-53));
    }
    return result;
  }

  bool is_known(const SweepValues& values) const {
    return std::ranges::any_of(known_, [&](const KnownRun& run) { return run.values == values; });
  }

  uint64_t take() {
    const uint64_t first = next_;
    next_ += spec_.parameters.size();
    return first;
  }

  const SweepSpec& spec_;
  uint64_t seed_, stream_, next_ = 0;
  const std::vector<KnownRun>& known_;
  double best_ = std::numeric_limits<double>::infinity();
  SweepValues best_values_, chosen_;
  double chosen_gain_ = -1;
};

}  // namespace

int64_t random_runs_first(const SweepSpec& spec) {
  const auto searched = std::ranges::count_if(
      spec.parameters, [](const SweepParameter& each) { return each.distribution.is_searched(); });
  return std::clamp<int64_t>(2 * searched + 1, 4, 20);
}

std::optional<SweepValues> propose(const SweepSpec& spec, uint64_t seed, int64_t index,
                                   const std::vector<KnownRun>& known) {
  if (spec.method == SweepMethod::Grid)
    return index < spec.grid_size().value_or(0) ? std::optional(grid_values(spec, index)) : std::nullopt;
  const bool has_result =
      std::ranges::any_of(known, [](const KnownRun& run) { return run.result.has_value(); });
  if (spec.method == SweepMethod::Bayes && index >= random_runs_first(spec) && has_result)
    return BayesSearch(spec, seed, index, known).run();
  return drawn(spec, seed, 2 * static_cast<uint64_t>(index), 0);
}

}  // namespace octet
