#pragma once

#include <string>
#include <vector>

#include "bench/gpu_rates.h"
#include "plan/memory_fit.h"
#include "plan/rank_costs.h"

// What 'octet plan --ranks' predicts: memory of a rank in every mode, and speed for growing numbers of ranks.

namespace octet {

// Computation of one rank at the speeds of a GPU; see estimate_step.
ComputeTimes compute_times(const Transformer& transformer, const GpuRates& rates);

// One rank of a run in one mode.
struct ModeMemory {
  ShardingMode mode = ShardingMode::None;
  Checkpointing checkpointing = Checkpointing::None;  // the first level that fits, or the last
  MemoryPlan memory;
  int64_t bytes = 0;  // with what samples take
  bool fits = false;
  int64_t sample_bytes() const { return bytes - memory.peak_bytes(); }
};
// All modes, in the order of the enum. `target` has the sharding of the run, of which the mode is replaced; hsdp gets
// groups of `local_ranks`.
std::vector<ModeMemory> memory_of_modes(const TrainConfig& config, const PlanTarget& target,
                                        const RunShape& shape, const Numerics& numerics, int64_t local_ranks);

struct ScalePoint {
  int64_t ranks = 1, nodes = 1;
  int64_t bytes = 0;  // of a rank
  bool fits = false;
  StepForecast step;
  double tokens_per_second = 0;  // of all ranks
};
// The step of `transformer` on 1, 2, 4, ... ranks: the same micro-batches on each, full nodes of `local_ranks`. Layers keep
// one FP8 copy of weights as `copies` says: few if that fits, otherwise as many as in `transformer`, otherwise all.
std::vector<ScalePoint> forecast_scaling(const Transformer& transformer, Device& device,
                                         const GpuRates& rates, const LinkSpeeds& speeds,
                                         int64_t accumulation, int64_t local_ranks, int64_t memory_limit,
                                         OneCopyRange copies = {}, int64_t most_ranks = 1024);

std::string modes_text(std::span<const ModeMemory> modes, ShardingMode chosen);
std::string traffic_text(const StepForecast& step);   // bytes of a step
std::string forecast_text(const StepForecast& step);  // where its time goes
std::string scaling_text(std::span<const ScalePoint> points);

}  // namespace octet
