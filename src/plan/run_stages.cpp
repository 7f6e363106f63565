#include "plan/run_stages.h"

#include "base/error.h"
#include "base/log.h"
#include "config/assumptions.h"
#include "hf/weights_read_ahead.h"
#include "plan/device_choice.h"
#include "plan/memory_fit.h"
#include "plan/sharding_choice.h"

namespace octet {

namespace {

// A rate that suits random weights destroys what a pretrained model knows within a few steps.
void warn_of_high_rate(const TrainConfig& keys, const ModelChoice& model) {
  constexpr double kHighForAll = 3e-4, kHighForAdapters = 3e-3;
  if (!model.has_weights() || !keys.is_set("learning_rate")) return;
  const bool lora = keys.is_lora();
  if (keys.learning_rate < (lora ? kHighForAdapters : kHighForAll)) return;
  log_warning("learning_rate {:g} is high for the pretrained weights of {}: {}; without the key it is {:g}",
              keys.learning_rate, keys.model_name_or_path,
              lora ? "LoRA usually takes 1e-4 to 1e-3" : "fine-tuning all weights usually takes 1e-6 to 5e-5",
              default_learning_rate(keys, true));
}

// Samples at evaluations, which nobody asked for, take what the step leaves: they change no batch and no level of
// recomputation. 0: they do not fit.
int64_t spare_sampling_bytes(const TrainConfig& keys, const ModelConfig& model, Device& device,
                             const RunPlan& plan) {
  const PlanTarget target{
      .model = model, .device = device, .limit = plan.limit, .sharding = plan.finetuning.sharding};
  Transformer transformer(model, plan.shape, plan.numerics, device, plan.finetuning);
  const int64_t bytes = sampling_bytes(keys, target, transformer);
  return plan.memory.peak_bytes() + bytes <= plan.limit.bytes ? bytes : 0;
}

// What a run on a CPU is good for. The demo is made for it.
void tell_cpu(const TrainConfig& keys, bool resumed) {
  if (keys.is_demo()) return;
  if (keys.mixed_precision == Precision::Fp8 && keys.fp8_recipe != Fp8Recipe::Delayed)
    log_info("fp8_recipe {} is emulated on the CPU: with its results, and slower than BF16",
             config_text(keys, "fp8_recipe"));
  if (!resumed && assumes_gpt2(keys) && !sets_model_sizes(keys))
    log_info(
        "on a CPU, GPT-2 124M is slow; for a try: --model_preset llama-tiny or --model_preset gpt2-tiny");
}

}  // namespace

RunStages prepare_run(const TrainConfig& given, std::optional<Checkpoint> resumed, const RankPlace& place) {
  StartTimes times;
  std::unique_ptr<Device> device = timed(times.device, [&] { return make_device(given, place.local_rank); });
  ModelChoice model = timed(times.model, [&] { return choose_model(given, std::move(resumed)); });
  TrainConfig keys = keys_with_adapter(keys_with_model(given, model.config), model);
  // A run that continues has the defaults of its own start.
  if (!model.resumed) resolve_start(keys, model.has_weights());
  if (!model.resumed) keys = keys_with_chat(std::move(keys), model.start);
  if (!model.resumed) warn_of_high_rate(keys, model);
  if (device->name() == "cpu" && place.is_first()) tell_cpu(keys, model.resumed.has_value());
  timed(times.model, [&] { check_weights(model); });
  // The disk is idle while the tokenizer and the data are opened.
  std::optional<FolderReadAhead> reads_ahead;
  if (model.has_weights() && !keys.dry_run && place.local_rank == 0) reads_ahead.emplace(model.start->folder);
  if (keys.is_lora() && !model.has_weights()) {
    log_warning(
        "finetuning_type is lora, but the base has random weights: set model_name_or_path to train adapters of a "
        "real model");
  }
  const auto fitting_plan = [&](PlanOptions options) {
    options.adapters = model.adapters;
    options.sharding = sharding_of(keys, place);
    RunPlan plan = timed(times.plan, [&] { return plan_run(keys, model.config, *device, options); });
    if (plan.shortage) fail_config("{}", plan.shortage->text);
    return plan;
  };
  // Preparing data may take hours, so a run that does not fit is refused first. Only an automatic batch size needs the
  // number of sequences.
  std::optional<RunPlan> early;
  if (!keys.auto_batch_size) early = fitting_plan({});
  DataChoice data = timed(times.data, [&] { return open_data(keys, model); });
  RunPlan plan = early ? *std::move(early) : fitting_plan({.sequences = data.sequences});
  if (keys.samples_at_evaluations() && data.is_plain_text)
    plan.sampling_bytes = spare_sampling_bytes(keys, model.config, *device, plan);
  const ScheduleConfig schedule = plan_schedule(keys, data.sequences, plan.sequences_per_step());
  TrainConfig config = resolved_config(keys, data, plan, schedule);
  if (sampling_rows(config, plan.finetuning.sharding) == 0) plan.sampling_bytes = 0;
  return {.keys = std::move(keys),
          .device = std::move(device),
          .model = std::move(model),
          .data = std::move(data),
          .plan = std::move(plan),
          .schedule = schedule,
          .config = std::move(config),
          .times = times};
}

TrainConfig resolved_config(const TrainConfig& keys, const DataChoice& data, const RunPlan& plan,
                            const ScheduleConfig& schedule) {
  TrainConfig config = with_batch_size(keys, plan.shape.rows, plan.ranks());
  config.tokenizer = data.tokenizer_name;
  if (!plan.shortage) config.gradient_checkpointing = key_of(plan.shape.checkpointing);
  config.max_steps = schedule.max_steps;
  config.fp8_recipe = plan.numerics.fp8.recipe;
  const bool says_nothing =
      data.tokenizer_source.empty() || (keys.samples_at_evaluations() && plan.sampling_bytes == 0);
  if (says_nothing) config.sample_steps = 0;
  return config;
}

}  // namespace octet
