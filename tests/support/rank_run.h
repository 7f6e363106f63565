#pragma once

#include <map>
#include <string>
#include <vector>

#include "support/tiny_run.h"

namespace octet::test {

// The end of a run of several ranks that are threads.
struct RankOutcome {
  std::vector<double> losses, norms;                      // per step, as rank 0 reports them
  std::map<std::string, std::vector<float>> weights;      // by parameter: whole, exact
  std::map<std::string, std::vector<std::byte>> moments;  // m and v by name, whole, as stored
  std::vector<std::byte> fp8_state;                       // of rank 0; the same on all ranks
  std::vector<uint64_t> hashes;                           // RankSync::weights_hash of every rank
  std::vector<int64_t> allocated;                         // bytes of every rank
  bool operator==(const RankOutcome& other) const = default;
};

struct RankRunOptions {
  TinyRunOptions run;
  ShardingMode mode = ShardingMode::Zero1;
  int ranks = 2;
  int group = 0;  // 0: all ranks
  DType wire = DType::F32;
  int steps = 3;
  bool evaluates = false;  // after every step
};

Sharding sharding_of(const RankRunOptions& options, int rank);
RankOutcome run_ranks(const RankRunOptions& options);
// The same of a single rank without any of the code for ranks.
RankOutcome run_alone(const TinyRunOptions& options, int steps);

}  // namespace octet::test
