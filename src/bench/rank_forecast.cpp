#include "bench/rank_forecast.h"

#include <algorithm>

#include "report/table.h"
#include "report/text.h"

namespace octet {
namespace {

std::string bytes_text(double bytes) {
  return human_bytes(bytes);
}
std::string ms_text(double seconds) {
  return fmt::format("{:.1f} ms", 1e3 * seconds);
}

// Bytes that AdamW reads and writes for one element: weight, remainder and moments both ways, the gradient, two codes.
double optimizer_bytes(const Numerics& numerics) {
  const auto size = [](DType dtype) { return static_cast<double>(size_of(dtype)); };
  const double weight = numerics.remainder == RemainderKind::Exact     ? 4
                        : numerics.remainder == RemainderKind::Compact ? 2.5
                                                                       : 2;
  const double codes = numerics.precision == Precision::Fp8 ? 2 : 0;
  return 2 * (weight + 2 * size(numerics.moments)) + size(numerics.gradients) + codes;
}

}  // namespace

ComputeTimes compute_times(const Transformer& transformer, const GpuRates& rates) {
  constexpr double kOptimizerShare = 0.9;  // of the bandwidth, as measured for AdamW
  const StepEstimate estimate = estimate_step(transformer, rates, false);
  const RunShape& shape = transformer.shape();
  double products = 0;
  for (const Linear* linear : transformer.linears()) {
    const LinearSite& site = linear->site();
    if (site.kind == WorkKind::Head) continue;
    products += 2 * static_cast<double>(site.out) * static_cast<double>(site.in) *
                static_cast<double>(shape.tokens()) /
                (rate_of(*linear, Product::Forward, rates) * rates.sustained);
  }
  // As estimate_step counts them: forward is two products of attention, a third of the rest without recomputation.
  const double attention = estimate.attention * 2 / (shape.checkpointing == Checkpointing::Block ? 9 : 7);
  const double other = estimate.other * (10.0 / 3) / (shape.checkpointing == Checkpointing::None ? 10 : 13);
  const double forward = products + attention + other + estimate.adapters / 3;
  const double all = estimate.total() - estimate.head;
  const auto layers = static_cast<double>(transformer.config().layers);
  return {.layer_forward = forward / layers,
          .layer_backward = (all - forward) / layers,
          .head = estimate.head,
          .per_updated_element =
              optimizer_bytes(transformer.numerics()) / (kOptimizerShare * 1e12 * rates.bandwidth)};
}

std::vector<ModeMemory> memory_of_modes(const TrainConfig& config, const PlanTarget& given,
                                        const RunShape& shape, const Numerics& numerics,
                                        int64_t local_ranks) {
  std::vector<ModeMemory> modes;
  for (const ShardingMode mode : {ShardingMode::None, ShardingMode::Zero1, ShardingMode::Zero2,
                                  ShardingMode::FsdpFull, ShardingMode::Hsdp}) {
    PlanTarget target = given;
    target.sharding.mode = mode;
    target.sharding.group = mode == ShardingMode::Hsdp ? local_ranks : target.sharding.ranks;
    const StepPlan step = plan_step(config, target, shape, numerics);
    modes.push_back({.mode = mode,
                     .checkpointing = step.transformer->shape().checkpointing,
                     .memory = step.transformer->plan(),
                     .bytes = step.need(),
                     .fits = step.need() <= target.limit.bytes});
  }
  return modes;
}

std::vector<ScalePoint> forecast_scaling(const Transformer& transformer, Device& device,
                                         const GpuRates& rates, const LinkSpeeds& speeds,
                                         int64_t accumulation, int64_t local_ranks, int64_t memory_limit,
                                         OneCopyRange copies, int64_t most_ranks) {
  std::vector<int64_t> counts;
  for (int64_t ranks = 1; ranks < local_ranks && ranks <= most_ranks; ranks *= 2) counts.push_back(ranks);
  for (int64_t ranks = local_ranks; ranks <= most_ranks; ranks *= 2) counts.push_back(ranks);
  std::vector<ScalePoint> points;
  for (const int64_t ranks : counts) {
    const int64_t local = std::min(ranks, local_ranks);
    Finetuning finetuning = transformer.finetuning();
    Sharding& sharding = finetuning.sharding;
    sharding.rank = 0;
    sharding.ranks = ranks;
    sharding.group = sharding.mode == ShardingMode::Hsdp ? local : ranks;
    if (ranks == 1) sharding.mode = ShardingMode::None;
    ScalePoint& point = points.emplace_back();
    point.ranks = ranks;
    point.nodes = ranks / local;
    for (const int64_t layers : {copies.fewest, transformer.finetuning().one_copy_layers, copies.most}) {
      finetuning.one_copy_layers = layers;
      Transformer of(transformer.config(), transformer.shape(), transformer.numerics(), device, finetuning);
      point.bytes = of.plan().peak_bytes();
      point.fits = point.bytes <= memory_limit;
      point.step = forecast_step(rank_traffic(of), compute_times(of, rates), speeds, accumulation, local);
      if (point.fits) break;
    }
    point.tokens_per_second =
        static_cast<double>(ranks * accumulation * transformer.shape().tokens()) / point.step.step;
  }
  return points;
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
      row.push_back(bytes_text(static_cast<double>(bytes)));
    if (has_samples) row.push_back(bytes_text(static_cast<double>(mode.sample_bytes())));
    row.push_back(bytes_text(static_cast<double>(mode.bytes)));
    row.push_back(key_text(mode.checkpointing));
    row.push_back(mode.fits ? "yes" : "no");
    table.add_row(std::move(row));
  }
  return table.str();
}

std::string traffic_text(const StepForecast& step) {
  return fmt::format(
      "a rank receives {} per step: {} of weights, {} of gradients; {} of it from other nodes\n",
      bytes_text(step.gather_bytes + step.reduce_bytes), bytes_text(step.gather_bytes),
      bytes_text(step.reduce_bytes), bytes_text(step.between_nodes));
}

std::string forecast_text(const StepForecast& step) {
  Table table({{"predicted time of a step"},
               {"total", Align::Right},
               {"hidden", Align::Right},
               {"not hidden", Align::Right}});
  const auto add = [&](const char* what, double total, double waits) {
    table.add_row({what, ms_text(total), ms_text(std::max(0.0, total - waits)), ms_text(waits)});
  };
  table.add_row({"computation and optimizer", ms_text(step.compute), "", ms_text(step.compute)});
  add("gathering weights, behind forward, backward and optimizer", step.gather, step.gather_waits);
  add("reducing gradients, behind backward", step.reduce, step.reduce_waits);
  add("counts, norms and FP8 scales, behind nothing", step.small, step.small);
  table.add_row({"slower computation next to communication", "", "", ms_text(step.slowdown)});
  table.add_row({"waiting for the slowest rank", "", "", ms_text(step.stragglers)});
  table.add_rule();
  table.add_row({"step", "", "", ms_text(step.step)});
  return table.str();
}

std::string scaling_text(std::span<const ScalePoint> points) {
  Table table({{"GPUs", Align::Right},
               {"nodes", Align::Right},
               {"memory per GPU", Align::Right},
               {"fits"},
               {"predicted ms/step", Align::Right},
               {"predicted tokens/s", Align::Right},
               {"predicted efficiency", Align::Right}});
  for (const ScalePoint& point : points) {
    table.add_row({fmt::format("{}", point.ranks), fmt::format("{}", point.nodes),
                   bytes_text(static_cast<double>(point.bytes)), point.fits ? "yes" : "no",
                   fmt::format("{:.1f}", 1e3 * point.step.step),
                   fmt::format("{:.0f}", point.tokens_per_second),
                   fmt::format("{:.1f} %", 100 * point.step.efficiency())});
  }
  return table.str();
}

}  // namespace octet
