#include "plan/run_plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/error.h"
#include "base/log.h"
#include "plan/coverage.h"
#include "plan/numerics.h"
#include "report/text.h"

namespace octet {
namespace {

// A step that sees much of the data, or millions of tokens, trains worse than several small ones.
int64_t sensible_rows(const StepKeys& keys, int64_t length, int64_t fitting, int64_t ranks,
                      std::optional<int64_t> sequences) {
  const int64_t micro_batches = ranks * keys.gradient_accumulation_steps;
  int64_t rows = kAutoStepTokens / (length * micro_batches);
  std::string why = fmt::format("a step then has about {} tokens", kAutoStepTokens);
  if (const int64_t of_data = sequences.value_or(0) / (kAutoStepsPerEpoch * micro_batches);
      sequences && of_data < rows) {
    rows = of_data;
    why = fmt::format("an epoch has only {} sequences, and should have {} steps or more", *sequences,
                      kAutoStepsPerEpoch);
  }
  rows = std::clamp<int64_t>(rows, 1, fitting);
  if (rows < fitting) {
    log_info(
        "auto_batch_size: {} {} per device, although {} would fit: {}. Set per_device_train_batch_size or "
        "target_effective_batch_size for more",
        rows, rows == 1 ? "sequence" : "sequences", fitting, why);
  }
  return rows;
}

// The batch size of the keys, or the largest that fits. Where not even one row fits, it is one.
int64_t choose_rows(const StepKeys& keys, const PlanTarget& target, RunShape shape, const Numerics& numerics,
                    std::optional<int64_t> sequences) {
  if (!keys.auto_batch_size) {
    // Nobody can set both.
    if (keys.max_batch_size == 0) return keys.per_device_train_batch_size;
    return dividing_batch(keys, shape.length, keys.max_batch_size, target.sharding.ranks);
  }
  shape.rows = 1;
  Finetuning finetuning{.adapters = target.adapters, .sharding = target.sharding};
  Transformer smallest(target.model, shape, numerics, target.device, finetuning);
  const int64_t memory = target.limit.bytes - sampling_bytes(target, smallest);
  const OneCopyRange copies = one_copy_range(keys, target.model);
  int64_t rows = 0;
  for (const Checkpointing level : levels_of(keys.gradient_checkpointing)) {
    for (const int64_t one_copy : {copies.fewest, copies.most}) {
      if (rows > 0) break;  // more is recomputed or transposed only where not even one row fits without
      shape.checkpointing = level;
      finetuning.one_copy_layers = one_copy;
      rows = largest_batch(target.model, shape, numerics, target.device, memory, finetuning);
    }
  }
  rows = std::max<int64_t>(rows, 1);
  if (keys.max_batch_size > 0) rows = std::min(rows, keys.max_batch_size);
  const int64_t ranks = target.sharding.ranks;
  if (sequences)
    rows = std::min(rows, std::max<int64_t>(*sequences / ranks, 1));  // more would only repeat them
  // With a target, the user has decided how much a step sees.
  if (keys.target_effective_batch_size == 0) rows = sensible_rows(keys, shape.length, rows, ranks, sequences);
  return dividing_batch(keys, shape.length, rows, ranks);
}

void log_changes(const StepKeys& config, const PlanTarget& target, const StepPlan& plan) {
  if (!plan.first_need || plan.need() > target.limit.bytes) return;
  std::vector<std::string> changes;
  const Checkpointing level = plan.transformer->shape().checkpointing;
  if (level != levels_of(config.gradient_checkpointing).front())
    changes.push_back(fmt::format("gradient_checkpointing is {}", key_text(level)));
  if (plan.transformer->finetuning().one_copy_layers != one_copy_range(config, target.model).fewest) {
    changes.push_back(fmt::format("one FP8 copy of the weights in {} of {} layers",
                                  plan.transformer->transposing_layers(), target.model.layers));
  }
  if (changes.empty()) return;
  log_info("{}: the run then needs {} instead of {}; {} are available", fmt::join(changes, ", "),
           human_bytes(static_cast<double>(plan.need())), human_bytes(static_cast<double>(*plan.first_need)),
           human_bytes(static_cast<double>(target.limit.bytes)));
}

// Says which sums stay exact although fp8_fast_accum asks for fast ones.
void log_exact_sums(const Transformer& transformer, const Device& device) {
  const Fp8Config& fp8 = transformer.numerics().fp8;
  if (device.name() != "cuda" || !has_scale_per_tensor(fp8.recipe)) return;
  bool exact_wgrad = false;
  int64_t exact_forward = 0;
  for (const Linear* linear : transformer.linears()) {
    if (linear->spec.site.kind == WorkKind::Head) continue;
    const auto is_exact = [&](Product product) {
      const ProductChoice& choice = linear->spec.choice[product];
      return choice.fp8 && !choice.fast_accumulation;
    };
    if (fp8.fast_accumulation >= Fp8FastAccum::Forward && is_exact(Product::Forward)) ++exact_forward;
    if (fp8.fast_accumulation == Fp8FastAccum::All && linear->weight.trains() && is_exact(Product::Wgrad))
      exact_wgrad = true;
  }
  if (exact_forward > 0) {
    log_info(
        "fp8_fast_accum: the forward products of {} keep exact sums; sums over more than {} inputs are never fast",
        counted(exact_forward, "layer"), kMostInputsOfFastSums);
  }
  if (exact_wgrad) {
    log_info(
        "fp8_fast_accum all: the gradients of weights keep exact sums, because a micro-batch has {} tokens; sums over "
        "more than {} are never fast",
        transformer.shape().tokens(), kMostTokensOfFastSums);
  }
}

// A sum of an input's gradient has a term for every output of the layer. The largest model whose loss with fast sums was
// compared with BF16's, of Llama-3.2-1B's size, has sums of this many terms (bench/RESULTS.md).
constexpr int64_t kMostTermsCompared = 16384;

// Warns of fast sums in the gradients of inputs that are longer than those.
void warn_of_wide_sums(const Transformer& transformer, const Device& device) {
  if (device.name() != "cuda") return;
  int64_t terms = 0;
  for (const Linear* linear : transformer.linears()) {
    const ProductChoice& dgrad = linear->spec.choice[Product::Dgrad];
    if (dgrad.fp8 && dgrad.fast_accumulation) terms = std::max(terms, linear->spec.site.out);
  }
  if (terms > kMostTermsCompared) {
    log_warning(
        "fp8_fast_accum may cost accuracy: fast sums in gradients of inputs were compared with BF16 only for layers with up to {} "
        "outputs; this model has layers with {}. fp8_fast_accum forward keeps these sums exact",
        kMostTermsCompared, terms);
  }
}

// Trained weights with their exact values and both moments; scales and other small things do not count.
int64_t checkpoint_bytes(const Transformer& transformer) {
  const Numerics& numerics = transformer.numerics();
  const auto moments = 2 * static_cast<int64_t>(size_of(numerics.moments));
  int64_t bytes = 0;
  for (const Parameter& p : transformer.parameters().all()) {
    if (transformer.has_adapters() && !p.spec.is_adapter()) continue;
    bytes += p.spec.shape.numel() * moments;
    const bool exact = p.spec.is_adapter() || p.spec.shape.rank() == 1;
    const RemainderKind remainder = exact ? RemainderKind::Exact : numerics.remainder;
    bytes += 2 * p.spec.shape.numel() + p.spec.shape[0] * remainder_row_bytes(remainder, p.width());
  }
  return bytes;
}

// A launch takes some microseconds, and a micro-step has hundreds of them. Only a long micro-step hides that.
bool wants_graphs(const StepKeys& keys, const ModelConfig& model, const RunShape& shape) {
  if (keys.cuda_graphs != CudaGraphs::Auto) return keys.cuda_graphs == CudaGraphs::On;
  constexpr double kShortStep = 1e14;  // operations: some 150 ms
  return 6.0 * static_cast<double>(model.parameter_count()) * static_cast<double>(shape.tokens()) <
         kShortStep;
}

}  // namespace

RunPlan plan_run(const StepKeys& given, const ModelConfig& model, Device& device,
                 const PlanOptions& options) {
  StepKeys keys = keys_with_native_recipe(given, device);
  if (keys.require_fp8 && keys.mixed_precision == Precision::Fp8 && device.name() == "cpu" &&
      !keys.fp8_emulation) {
    fail_config(
        "[fp8] require_fp8 is set, but the run is on the CPU, which only emulates FP8; set fp8_emulation to true to accept that");
  }
  const PlanTarget target{.model = model,
                          .device = device,
                          .limit = memory_limit(keys, device),
                          .samples = options.samples.at_evaluations ? SampleNeeds{} : options.samples,
                          .adapters = options.adapters,
                          .sharding = options.sharding};
  RunPlan plan;
  plan.limit = target.limit;
  plan.numerics = numerics_from(keys, device);
  if (const std::string note = format_note(plan.numerics.fp8); !note.empty() && plan.is_fp8())
    log_info("{}", note);

  RunShape shape{.rows = 1,
                 .length = options.length,
                 .training = true,
                 .head_chunk_bytes = device.capabilities().logits_bytes};
  shape.rows = choose_rows(keys, target, shape, plan.numerics, options.sequences);
  shape.graphs = wants_graphs(keys, model, shape);
  set_batch_size(keys, shape.rows, options.sharding.ranks);
  plan.accumulation = keys.gradient_accumulation_steps;

  StepPlan step = plan_step(keys, target, shape, plan.numerics);
  log_changes(keys, target, step);
  if (plan.is_fp8()) plan.fallback_reason = no_fp8_reason(*step.transformer);
  const bool falls_back = !plan.fallback_reason.empty();
  if (falls_back) {
    if (keys.require_fp8) fail("[fp8] require_fp8 is set, but {}", plan.fallback_reason);
    log_warning("FP8 cannot run: {}; the run continues in BF16", plan.fallback_reason);
    plan.numerics.precision = Precision::Bf16;
    step = plan_step(keys, target, shape, plan.numerics);
    log_changes(keys, target, step);
  }
  if (plan.is_fp8()) {
    log_exact_sums(*step.transformer, device);
    warn_of_wide_sums(*step.transformer, device);
  }
  if (options.sharding.shares_weights() && options.samples.rows > 0 && !options.samples.at_evaluations) {
    log_warning(
        "no samples are made: with sharding_mode {} no rank has the whole model; run 'octet generate' with a "
        "checkpoint instead",
        name_of(options.sharding.mode));
  }
  if (options.sharding.shares_weights() && plan.is_fp8() && keys.fp8_weight_copies == WeightCopiesKey::Two) {
    log_warning("fp8_weight_copies two has no effect: with sharding_mode {} all layers keep one copy",
                name_of(options.sharding.mode));
  }
  plan.precision_label = falls_back ? "BF16 (fallback)" : precision_label(*step.transformer, device);
  plan.shape = step.transformer->shape();
  plan.finetuning = step.transformer->finetuning();
  plan.memory = step.transformer->plan();
  plan.sampling_bytes = step.sampling_bytes;
  plan.checkpoint_bytes = checkpoint_bytes(*step.transformer);
  plan.evaluates_in_fp8 = std::ranges::any_of(step.transformer->parameters().all(),
                                              [](const Parameter& p) { return p.storage.sends_codes; });
  plan.transposing_layers = step.transformer->transposing_layers();
  plan.fp8_share = fp8_share(work_shares(*step.transformer));
  plan.shortage = memory_shortage({.keys = keys,
                                   .shape = plan.shape,
                                   .precision = plan.numerics.precision,
                                   .fell_back = falls_back,
                                   .precision_is_given = options.precision_is_given,
                                   .step_bytes = plan.memory.peak_bytes(),
                                   .sampling_bytes = plan.sampling_bytes},
                                  target);
  return plan;
}

ScheduleConfig plan_schedule(const ScheduleKeys& keys, int64_t sequences, int64_t sequences_per_step) {
  ScheduleConfig schedule;
  schedule.type = keys.lr_scheduler_type;
  schedule.peak_lr = keys.learning_rate;
  schedule.min_lr_ratio = keys.min_lr_ratio;
  schedule.max_steps = keys.max_steps;
  if (schedule.max_steps == 0) {
    const double steps = std::ceil(keys.num_train_epochs * static_cast<double>(sequences) /
                                   static_cast<double>(sequences_per_step));
    schedule.max_steps = std::max<int64_t>(1, static_cast<int64_t>(steps));
  }
  const auto share = [&](double ratio) {
    return static_cast<int64_t>(std::lround(ratio * static_cast<double>(schedule.max_steps)));
  };
  schedule.warmup_steps = keys.warmup_ratio > 0 ? share(keys.warmup_ratio) : keys.warmup_steps;
  if (keys.lr_scheduler_type == ScheduleType::Wsd) schedule.decay_steps = share(keys.decay_ratio);
  schedule.validate();
  return schedule;
}

}  // namespace octet
