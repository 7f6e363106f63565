#pragma once

#include <cstdint>

namespace octet {

// How the ranks of a run meet and talk. What they share is in StepKeys.
struct RankKeys {
  int64_t check_ranks_steps = 500;  // 0: never
  double comm_timeout = 100;        // seconds
  double rendezvous_timeout = 300;  // seconds
  int64_t pretend_ranks = 0;        // 0: the ranks that there are
  double pretend_bandwidth_gb = 300;
};

}  // namespace octet
