#include "plan/memory_fit.h"

#include <algorithm>
#include <numeric>

#include "base/log.h"
#include "generate/generate.h"
#include "plan/numerics.h"
#include "report/text.h"

namespace octet {
namespace {

constexpr Checkpointing kLevels[] = {Checkpointing::None, Checkpointing::Act, Checkpointing::Mlp,
                                     Checkpointing::Block};

std::string bytes_text(int64_t bytes) {
  return human_bytes(static_cast<double>(bytes));
}

}  // namespace

MemoryLimit memory_limit(const StepKeys& keys, const Device& device) {
  const int64_t available = device.memory_bytes();
  if (keys.device_memory_limit_gb == 0) return {available, false};
  const double limit = keys.device_memory_limit_gb * static_cast<double>(int64_t{1} << 30);
  if (limit <= static_cast<double>(available)) return {static_cast<int64_t>(limit), true};
  log_warning("device_memory_limit_gb {} has no effect: {} has only {}",
              config_text(keys, "device_memory_limit_gb"), device.description(), bytes_text(available));
  return {available, false};
}

int64_t sampling_rows(const SampleNeeds& samples, const Sharding& sharding) {
  return sharding.shares_weights() ? 0 : samples.rows;
}

int64_t sampling_length(const SampleNeeds& samples, int64_t length) {
  constexpr int64_t kShort = 128;  // a prompt and a few words
  return samples.at_evaluations ? std::min(length, kShort) : length;
}

int64_t sampling_bytes(const PlanTarget& target, Transformer& transformer) {
  const int64_t rows = sampling_rows(target.samples, target.sharding);
  if (rows == 0) return 0;
  return generator_bytes(transformer, target.device, rows,
                         sampling_length(target.samples, transformer.shape().length));
}

// The key's names begin with auto.
std::span<const Checkpointing> levels_of(CheckpointingKey key) {
  if (key == CheckpointingKey::Auto) return kLevels;
  return std::span(kLevels).subspan(static_cast<size_t>(key) - 1, 1);
}
CheckpointingKey key_of(Checkpointing level) {
  return static_cast<CheckpointingKey>(static_cast<int>(level) + 1);
}
std::string key_text(Checkpointing level) {
  StepKeys keys;
  keys.gradient_checkpointing = key_of(level);
  return config_text(keys, "gradient_checkpointing");
}

namespace {

// Whether one FP8 copy of a weight can be enough. The two copies of MXFP8 have different blocks.
bool one_copy_can_do(Precision precision, const StepKeys& keys) {
  return precision == Precision::Fp8 && keys.fp8_recipe != Fp8Recipe::Mxfp8;
}

}  // namespace

OneCopyRange one_copy_range(const StepKeys& keys, const ModelConfig& model) {
  using Wanted = WeightCopiesKey;
  if (!one_copy_can_do(keys.mixed_precision, keys) || keys.fp8_weight_copies == Wanted::Two) return {0, 0};
  return {keys.fp8_weight_copies == Wanted::One ? model.layers : 0, model.layers};
}

namespace {

// Memory for the logits of one chunk, in the order in which a plan tries it. The size of a chunk determines the order of
// sums, so a deterministic run does not let it depend on free memory.
std::vector<int64_t> logits_to_try(const StepKeys& keys, const Device& device) {
  const Capabilities capabilities = device.capabilities();
  if (keys.deterministic || capabilities.most_logits_bytes == capabilities.logits_bytes)
    return {capabilities.logits_bytes};
  return {capabilities.most_logits_bytes, capabilities.logits_bytes};
}

}  // namespace

StepPlan plan_step(const StepKeys& keys, const PlanTarget& target, RunShape shape, const Numerics& numerics) {
  StepPlan plan;
  const auto fits = [&](int64_t one_copy, int64_t logits_bytes, int64_t room = 0) {
    const Finetuning finetuning{
        .adapters = target.adapters, .one_copy_layers = one_copy, .sharding = target.sharding};
    shape.head_chunk_bytes = logits_bytes;
    plan.transformer =
        std::make_unique<Transformer>(target.model, shape, numerics, target.device, finetuning);
    plan.sampling_bytes = sampling_bytes(target, *plan.transformer);
    return plan.need() + room <= target.limit.bytes;
  };
  const OneCopyRange copies = one_copy_range(keys, target.model);
  const std::vector<int64_t> logits = logits_to_try(keys, target.device);
  // With the fewest layers with one copy that make room for these logits. Another layer costs little, so some room is left,
  // which libraries may use. Only if nothing smaller can be tried, all layers may fill the memory.
  const auto fits_with_fewest_copies = [&](int64_t logits_bytes) {
    if (fits(copies.fewest, logits_bytes)) return true;
    if (shape.checkpointing == levels_of(keys.gradient_checkpointing).front()) plan.first_need = plan.need();
    const int64_t room = target.limit.bytes / 128, room_of_most = logits_bytes == logits.back() ? 0 : room;
    if (copies.most == copies.fewest || !fits(copies.most, logits_bytes, room_of_most)) return false;
    int64_t too_few = copies.fewest, enough = copies.most;
    while (enough - too_few > 1) {
      const int64_t middle = too_few + (enough - too_few) / 2;
      (fits(middle, logits_bytes, room) ? enough : too_few) = middle;
    }
    fits(enough, logits_bytes);  // makes its plan
    return true;
  };
  for (const Checkpointing level : levels_of(keys.gradient_checkpointing)) {
    shape.checkpointing = level;
    StepPlan best;
    for (const int64_t bytes : logits) {
      if (!fits_with_fewest_copies(bytes)) continue;
      if (best.transformer &&
          best.transformer->bytes_moved_to_save_memory() <= plan.transformer->bytes_moved_to_save_memory())
        continue;
      best.transformer = std::move(plan.transformer);
      best.sampling_bytes = plan.sampling_bytes;
      if (best.transformer->bytes_moved_to_save_memory() == 0) break;
    }
    if (!best.transformer) continue;
    best.first_need = plan.first_need;
    return best;
  }
  return plan;
}

int64_t largest_batch(const ModelConfig& model, RunShape shape, const Numerics& numerics, Device& device,
                      int64_t memory, const Finetuning& finetuning) {
  const auto fits = [&](int64_t rows) {
    shape.rows = rows;
    return Transformer(model, shape, numerics, device, finetuning).plan().peak_bytes() <= memory;
  };
  constexpr int64_t kMost = 4096;
  if (!fits(1)) return 0;
  int64_t low = 1, high = 2;
  while (high <= kMost && fits(high)) low = high, high *= 2;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return std::min(low, kMost);
}

int64_t dividing_batch(const StepKeys& keys, int64_t length, int64_t most, int64_t ranks) {
  const int64_t of_all = keys.target_effective_batch_size;
  const int64_t target = of_all % ranks == 0 ? of_all / ranks : 0;  // apply_target_batch_size refuses others
  if (target > 0) most = std::min(most, target);
  const int64_t sixteenths = std::gcd<int64_t>(16, length);
  const int64_t step = keys.mixed_precision == Precision::Fp8 ? 16 / sixteenths : 1;
  for (int64_t rows = most - most % step; rows > 0; rows -= step) {
    if (target == 0 || target % rows == 0) return rows;
  }
  while (target > 0 && target % most != 0) --most;
  return most;
}

namespace {

// A way to run. The advice is its difference to the run as it is configured.
struct Way : StepKeys {
  int64_t length = 0;  // of a sequence
};

class RemedySearch {
 public:
  RemedySearch(const PlannedMemory& run, const PlanTarget& target) : run_(run), target_(target) {}

  MemoryRemedies search() const {
    MemoryRemedies remedies;
    const auto add = [&](const std::optional<MemoryAdvice>& advice) {
      if (advice) remedies.fitting.push_back(*advice);
      return advice.has_value();
    };
    const Way given{run_.keys, run_.shape.length};
    std::vector<Way> ways = more_sharing(given);
    const std::vector<Way> smaller = smaller_states(ways.back());
    ways.pop_back();  // the first of `smaller`
    ways.insert(ways.end(), smaller.begin(), smaller.end());
    add(first_that_fits(ways));
    // The alternative: only fewer rows.
    if (const int64_t rows = most_rows(given, levels_of(given.gradient_checkpointing)); rows > 0)
      add(with_rows(given, rows));
    if (!remedies.fitting.empty() || add(with_most_rows(ways))) return remedies;
    // The last resort: no FP8 copies of weights, and half the size of fp32. A frozen base is smallest in FP8.
    const bool is_smallest =
        run_.precision == Precision::Bf16 || (run_.precision == Precision::Fp8 && !target_.adapters.empty());
    if (!is_smallest && !given.require_fp8 && !run_.precision_is_given) {
      Way in_bf16 = more_sharing(given).back();
      in_bf16.mixed_precision = Precision::Bf16;
      ways = smaller_states(in_bf16);
      if (add(first_that_fits(ways)) || add(with_most_rows(ways))) return remedies;
    }
    constexpr int64_t kShortest = 128;  // shorter sequences are of no use
    Way smallest = ways.back();
    smallest.per_device_train_batch_size = 1;
    while (smallest.length / 2 >= kShortest) {
      smallest.length /= 2;
      if (add(as_it_is(smallest))) return remedies;
    }
    const Checkpointing last = levels_to_try().back();
    remedies.least = advice_of(smallest, last, need(smallest, last));
    return remedies;
  }

 private:
  // Several ranks may share more than they do. The configuration itself comes first.
  std::vector<Way> more_sharing(const Way& config) const {
    using Key = ShardingKey;
    std::vector<Way> ways = {config};
    if (target_.sharding.ranks == 1) return ways;
    for (const Key key : {Key::Zero1, Key::Zero2, Key::FsdpFull}) {
      if (mode_of(key) <= target_.sharding.mode) continue;
      ways.push_back(config);
      ways.back().sharding_mode = key;
    }
    return ways;
  }
  // The key's names begin with auto.
  static ShardingMode mode_of(ShardingKey key) {
    return static_cast<ShardingMode>(static_cast<int>(key) - 1);
  }
  Sharding sharding_of(const Way& way) const {
    Sharding sharding = target_.sharding;
    if (way.sharding_mode != run_.keys.sharding_mode) sharding.mode = mode_of(way.sharding_mode);
    return sharding;
  }

  // Variants with less memory for the optimizer state and the head. The configuration itself comes first, then the
  // smallest change. None insists on two FP8 copies of weights: giving up one costs the least.
  std::vector<Way> smaller_states(Way config) const {
    using State = OptimizerState;
    using Master = MasterWeights;
    const Precision precision = numerics_of(config).precision;
    if (one_copy_can_do(precision, config) && config.fp8_weight_copies == WeightCopiesKey::Two)
      config.fp8_weight_copies = WeightCopiesKey::One;
    std::vector<Way> ways;
    if (!target_.adapters.empty()) {  // the state is small
      ways.push_back(config);
      return ways;
    }
    for (const Master master : {Master::Exact, Master::Compact, Master::Stochastic}) {
      if (master < config.master_weights) continue;
      if (master != config.master_weights && precision == Precision::Fp32) continue;
      for (const State state : {State::Fp32, State::Bf16, State::Fp8}) {
        if (state < config.optimizer_state) continue;
        // FP8 moments save more than fewer bits of weights, so they come first.
        if (master != config.master_weights && state != State::Fp8) continue;
        Way way = config;
        way.master_weights = master;
        way.optimizer_state = state;
        ways.push_back(way);
        if (config.fp8_head == Fp8Head::None || precision != Precision::Fp8) continue;
        way.fp8_head = Fp8Head::None;  // no FP8 copies of its weights
        ways.push_back(std::move(way));
      }
    }
    return ways;
  }

  // The level of the configuration, and those that need less memory.
  std::span<const Checkpointing> levels_to_try() const {
    const Checkpointing first = levels_of(run_.keys.gradient_checkpointing).front();
    return std::span(kLevels).subspan(static_cast<size_t>(first));
  }

  Numerics numerics_of(const Way& way) const {
    Numerics numerics = numerics_from(way, target_.device);
    if (run_.fell_back) numerics.precision = run_.precision;
    return numerics;
  }
  RunShape shape_of(const Way& way, Checkpointing level) const {
    RunShape shape = run_.shape;
    shape.rows = way.per_device_train_batch_size;
    shape.length = way.length;
    shape.checkpointing = level;
    return shape;
  }

  // With as few copies as the key allows.
  Finetuning finetuning_of(const Way& way) const {
    return {.adapters = target_.adapters,
            .one_copy_layers = one_copy_range(way, target_.model).most,
            .sharding = sharding_of(way)};
  }
  int64_t need(const Way& way, Checkpointing level) const {
    PlanTarget target = target_;
    target.sharding = sharding_of(way);
    Way at_level = way;
    at_level.gradient_checkpointing = key_of(level);
    return plan_step(at_level, target, shape_of(way, level), numerics_of(way)).need();
  }

  MemoryAdvice advice_of(Way way, Checkpointing level, int64_t bytes) const {
    const bool automatic = way.gradient_checkpointing == CheckpointingKey::Auto;
    if (!automatic) way.gradient_checkpointing = key_of(level);
    MemoryAdvice advice{{}, bytes};
    for (const char* key : {"mixed_precision", "sharding_mode", "fp8_weight_copies", "gradient_checkpointing",
                            "fp8_head", "optimizer_state", "master_weights", "per_device_train_batch_size"}) {
      const std::string value = config_text(way, key);
      if (value != config_text(run_.keys, key)) advice.changes.push_back({key, value});
    }
    if (way.length != run_.shape.length)
      advice.changes.push_back({"max_seq_length", fmt::format("{}", way.length)});
    return advice;
  }

  std::optional<MemoryAdvice> as_it_is(const Way& way) const {
    // Where more is recomputed, there may be room for all copies again.
    Way with_all_copies = way;
    with_all_copies.fp8_weight_copies = run_.keys.fp8_weight_copies;
    const bool gives_up_copies = way.fp8_weight_copies != run_.keys.fp8_weight_copies;
    for (const Checkpointing level : levels_to_try()) {
      if (gives_up_copies) {
        const int64_t bytes = need(with_all_copies, level);
        if (bytes <= target_.limit.bytes) return advice_of(with_all_copies, level, bytes);
      }
      const int64_t bytes = need(way, level);
      if (bytes <= target_.limit.bytes) return advice_of(way, level, bytes);
    }
    return std::nullopt;
  }

  std::optional<MemoryAdvice> first_that_fits(const std::vector<Way>& ways) const {
    for (const Way& way : ways) {
      if (const std::optional<MemoryAdvice> advice = as_it_is(way)) return advice;
    }
    return std::nullopt;
  }

  // The largest number of rows that fits with the last of the levels; 0 if none fits.
  int64_t most_rows(const Way& way, std::span<const Checkpointing> levels) const {
    const int64_t rows =
        largest_batch(target_.model, shape_of(way, levels.back()), numerics_of(way), target_.device,
                      target_.limit.bytes - run_.sampling_bytes, finetuning_of(way));
    return rows == 0 ? 0 : dividing_batch(way, way.length, rows, target_.sharding.ranks);
  }
  std::optional<MemoryAdvice> with_rows(Way way, int64_t rows) const {
    way.per_device_train_batch_size = rows;
    return as_it_is(way);
  }

  // The variant with the most rows; on a tie the one with the smallest change. Weights in BF16 only cost accuracy: they
  // are taken where nothing else fits, not for some rows more.
  std::optional<MemoryAdvice> with_most_rows(const std::vector<Way>& ways) const {
    std::optional<MemoryAdvice> best;
    int64_t most = 0;
    for (const Way& way : ways) {
      const bool costly =
          way.master_weights == MasterWeights::Stochastic && way.master_weights != run_.keys.master_weights;
      if (costly && best) continue;
      const int64_t rows = most_rows(way, levels_to_try());
      if (rows <= most) continue;
      most = rows;
      best = with_rows(way, rows);
    }
    return best;
  }

  const PlannedMemory& run_;
  const PlanTarget& target_;
};

// "optimizer_state to fp8, master_weights to compact and ..."
std::string changes_text(const std::vector<KeyChange>& changes, const char* between) {
  std::string text;
  for (size_t i = 0; i < changes.size(); ++i) {
    const char* joint = i == 0 ? "" : i + 1 == changes.size() ? " and " : ", ";
    text += fmt::format("{}{}{}{}", joint, changes[i].key, between, changes[i].value);
  }
  return text;
}

std::string remedies_text(const MemoryRemedies& remedies, const MemoryLimit& limit, bool is_lora) {
  std::string text;
  for (const MemoryAdvice& advice : remedies.fitting) {
    text += fmt::format("{}set {} (then it needs {})", text.empty() ? "" : ", or ",
                        changes_text(advice.changes, " to "), bytes_text(advice.need));
  }
  if (!text.empty()) return text;
  const MemoryAdvice& least = remedies.least;
  if (!least.changes.empty()) {
    text =
        fmt::format(": with {} it still needs {}", changes_text(least.changes, " "), bytes_text(least.need));
  }
  return fmt::format("no setting makes it fit{}; use a smaller model or {}{}", text,
                     limit.by_key ? "raise the limit" : "a larger device",
                     is_lora ? "" : ", or fine-tune it with LoRA, which needs less (finetuning_type lora)");
}

}  // namespace

MemoryRemedies find_remedies(const PlannedMemory& run, const PlanTarget& target) {
  return RemedySearch(run, target).search();
}

std::optional<MemoryShortage> memory_shortage(const PlannedMemory& run, const PlanTarget& target) {
  const int64_t need = run.need(), memory = target.limit.bytes;
  if (need <= memory) return std::nullopt;
  const std::string who = run.keys.auto_batch_size && run.shape.rows == 1
                              ? fmt::format("even one sequence of {} tokens", run.shape.length)
                              : "the run";
  MemoryShortage shortage{.remedies = find_remedies(run, target), .text = ""};
  shortage.text = fmt::format("{} needs {}, but the {} {} ({} too little); {}", who, bytes_text(need),
                              target.limit.by_key ? "limit is" : "device has", bytes_text(memory),
                              bytes_text(need - memory),
                              remedies_text(shortage.remedies, target.limit, !target.adapters.empty()));
  return shortage;
}

}  // namespace octet
