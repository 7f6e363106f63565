#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sweep/sweep_spec.h"

namespace octet {

// One value per parameter of the sweep, in its order.
using SweepValues = std::vector<std::string>;

// An earlier run, as it is known when the next one is proposed.
struct KnownRun {
  SweepValues values;
  // None while it runs. A failed run has none and `is_over`.
  std::optional<double> result = std::nullopt;
  bool is_over = false;
};

// How many runs of a bayes sweep are drawn at random before the model decides.
int64_t random_runs_first(const SweepSpec& spec);

// The values of run `index`, from 0. A pure function of its arguments: which agent asks does not matter. `known`, only for
// bayes: the runs before this one. Nothing if a grid has no such run.
std::optional<SweepValues> propose(const SweepSpec& spec, uint64_t seed, int64_t index,
                                   const std::vector<KnownRun>& known);

}  // namespace octet
