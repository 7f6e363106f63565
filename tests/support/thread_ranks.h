#pragma once

#include <functional>

#include "dist/ranks.h"

namespace octet {

// Runs `body` once per rank, each in a thread of its own, and returns when all have ended. For tests: the ranks share one
// process, and their collectives are copies between host memory.
//
// If one body throws, the others get a RankError with its rank and its message as soon as they wait in a collective or
// a host call. A rank that waits for one whose body has returned gets a RankError too. The first failure is thrown
// again when all threads have ended.
void run_thread_ranks(int ranks, int local_ranks, const std::function<void(Ranks&)>& body);

}  // namespace octet
