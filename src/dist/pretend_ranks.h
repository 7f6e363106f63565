#pragma once

#include <memory>

#include "dist/ranks.h"

namespace octet {

// Rank 0 of `ranks`, without the others: to measure memory and schedule of one rank of many on a single device. Every
// collective copies as many bytes as would arrive, and takes as long as they would take at this bandwidth. What "arrives"
// is this rank's own data, so the numbers of a run are not those of a real one.
std::unique_ptr<Ranks> make_pretended_ranks(int ranks, int local_ranks, double gigabytes_per_second);

}  // namespace octet
