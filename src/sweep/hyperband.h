#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sweep/sweep_spec.h"

namespace octet {

struct HyperbandVerdict {
  int64_t rung = 0;      // the number of logged values at which the run was judged
  double value = 0;      // of the run
  double threshold = 0;  // that it had to reach
};

// Whether a run is to be stopped. `histories`: the logged values of all runs, those of this run and of finished and stopped
// ones included. At its last rung the run must be in the best 1 / eta of all runs that have reached it; it is judged by its
// best value so far or, if strict, by its value at that rung.
std::optional<HyperbandVerdict> judge_run(const Hyperband& hyperband, bool maximize,
                                          const std::vector<double>& run,
                                          const std::vector<std::vector<double>>& histories);

}  // namespace octet
