#include "bench/rank_memory.h"

#include <algorithm>

#include "report/table.h"
#include "report/text.h"

namespace octet {

std::vector<ModeMemory> memory_of_modes(const StepKeys& keys, const PlanTarget& given, const RunShape& shape,
                                        const Numerics& numerics, int64_t local_ranks) {
  std::vector<ModeMemory> modes;
  for (const ShardingMode mode : {ShardingMode::None, ShardingMode::Zero1, ShardingMode::Zero2,
                                  ShardingMode::FsdpFull, ShardingMode::Hsdp}) {
    PlanTarget target = given;
    target.sharding.mode = mode;
    target.sharding.group = mode == ShardingMode::Hsdp ? local_ranks : target.sharding.ranks;
    const StepPlan step = plan_step(keys, target, shape, numerics);
    modes.push_back({.mode = mode,
                     .checkpointing = step.transformer->shape().checkpointing,
                     .memory = step.transformer->plan(),
                     .bytes = step.need(),
                     .fits = step.need() <= target.limit.bytes});
  }
  return modes;
}

std::string modes_text(std::span<const ModeMemory> modes, ShardingMode chosen) {
  std::vector<Table::Column> columns = {{"per rank"}};
  for (const MemoryCategory category : kMemoryCategories)
    columns.push_back({std::string(name_of(category)), Align::Right});
  const bool has_samples =
      std::ranges::any_of(modes, [](const ModeMemory& mode) { return mode.sample_bytes() > 0; });
  if (has_samples) columns.push_back({"samples", Align::Right});
  columns.push_back({"total", Align::Right});
  columns.push_back({"recompute"});
  columns.push_back({"fits"});
  Table table(columns);
  for (const ModeMemory& mode : modes) {
    std::vector<std::string> row = {std::string(name_of(mode.mode)) +
                                    (mode.mode == chosen ? " (chosen)" : "")};
    for (const int64_t bytes : mode.memory.bytes_in_arena())
      row.push_back(human_bytes(static_cast<double>(bytes)));
    if (has_samples) row.push_back(human_bytes(static_cast<double>(mode.sample_bytes())));
    row.push_back(human_bytes(static_cast<double>(mode.bytes)));
    row.push_back(key_text(mode.checkpointing));
    row.push_back(mode.fits ? "yes" : "no");
    table.add_row(std::move(row));
  }
  return table.str();
}

}  // namespace octet
