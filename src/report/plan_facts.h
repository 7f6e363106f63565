#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace octet {

// The plan of a run, for whoever looks at it later: the file plan.json in its folder.
struct PlanFacts {
  std::string model;         // name of the architecture or preset
  int64_t parameters = 0;    // of the model
  std::string device;        // "NVIDIA H200"
  std::string precision;     // as in the metrics: "FP8 (emulated)"
  std::string fallback;      // why the precision is not the one that was asked for; empty: it is
  double fp8_share = 0;      // of all FLOPs of a training step, 0 to 1
  int64_t memory_bytes = 0;  // that one rank allocates on its device
  int64_t memory_limit = 0;  // that it may allocate
  int64_t sequences_per_step = 0, sequence_length = 0;  // of all ranks
  int64_t ranks = 1;
  int64_t max_steps = 0;  // that the run will do, also where num_train_epochs says it; 0: not known

  struct Work {
    std::string kind;   // "base matrices", "head", "attention", ...
    double share = 0;   // of all FLOPs, 0 to 1
    double in_fp8 = 0;  // of the FLOPs of this kind, 0 to 1
  };
  std::vector<Work> work = {};
};

std::string plan_facts_json(const PlanFacts& facts);

// Nothing for a run that has no plan.json, as runs of older versions. Error naming the file if it is broken.
std::optional<PlanFacts> read_plan_facts(const std::string& run_folder);

}  // namespace octet
