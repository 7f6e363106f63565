#pragma once

#include <span>
#include <string>
#include <vector>

#include "plan/memory_fit.h"

// Memory of a rank in every mode, for 'octet plan --ranks'.

namespace octet {

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
std::vector<ModeMemory> memory_of_modes(const StepKeys& keys, const PlanTarget& target, const RunShape& shape,
                                        const Numerics& numerics, int64_t local_ranks);

std::string modes_text(std::span<const ModeMemory> modes, ShardingMode chosen);

}  // namespace octet
