#include "plan/resolve.h"

#include <filesystem>

#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "checkpoint/resume.h"
#include "hf/weights_read_ahead.h"
#include "plan/device_choice.h"
#include "plan/memory_fit.h"
#include "plan/resume_config.h"
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
int64_t spare_sampling_bytes(const SampleNeeds& samples, const ModelConfig& model, Device& device,
                             const RunPlan& plan) {
  const PlanTarget target{.model = model,
                          .device = device,
                          .limit = plan.limit,
                          .samples = samples,
                          .sharding = plan.finetuning.sharding};
  Transformer transformer(model, plan.shape, plan.numerics, device, plan.finetuning);
  const int64_t bytes = sampling_bytes(target, transformer);
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

// What a user should know of settings that suit this run badly.
void tell_about_start(const TrainConfig& keys, const ModelChoice& model, const Device& device,
                      const RankPlace& place) {
  if (!model.resumed) warn_of_high_rate(keys, model);
  if (device.name() == "cpu" && place.is_first()) tell_cpu(keys, model.resumed.has_value());
  if (keys.is_lora() && !model.has_weights()) {
    log_warning(
        "finetuning_type is lora, but the base has random weights: set model_name_or_path to train adapters of a "
        "real model");
  }
}

bool is_on_disk(const std::string& name) {
  std::error_code ignored;
  return name.empty() || std::filesystem::exists(name, ignored);
}

// The keys with what follows from the model.
TrainConfig keys_of(const TrainConfig& given, const ModelChoice& model, const Wanted& wanted) {
  TrainConfig keys = given;
  take_model(keys, model.config);
  check_length(model, keys.max_seq_length);
  take_adapter(keys, model);
  if (model.resumed) return keys;  // it has the defaults of its own start
  resolve_start(keys, model.has_weights());
  take_chat(keys, model.start, wanted.data != Wanted::Data::No);
  return keys;
}

// Sequences of an optimizer step, of all ranks. Nothing if they follow from the memory.
std::optional<int64_t> known_sequences_per_step(const StepKeys& keys, const RankPlace& place) {
  if (!keys.auto_batch_size && keys.max_batch_size == 0) {
    StepKeys of_ranks = keys;
    apply_target_batch_size(of_ranks, place.ranks);
    return of_ranks.per_device_train_batch_size * of_ranks.gradient_accumulation_steps * place.ranks;
  }
  if (keys.target_effective_batch_size > 0) return keys.target_effective_batch_size;
  return std::nullopt;
}

SampleNeeds sample_needs(const TrainConfig& keys) {
  constexpr int64_t kDemoRows = 8;  // the demo's exam works on several stories at a time
  return {.rows = keys.is_demo()           ? kDemoRows
                  : keys.sample_steps != 0 ? 1
                                           : 0,
          .at_evaluations = keys.samples_at_evaluations()};
}

// The parts that follow from the keys alone, once these are complete.
void add_settings(ResolvedRun& run, const RankPlace& place) {
  const TrainConfig &keys = run.keys, &config = run.config;
  run.optimizer.beta1 = static_cast<float>(keys.adam_beta1);
  run.optimizer.beta2 = static_cast<float>(keys.adam_beta2);
  run.optimizer.epsilon = static_cast<float>(keys.adam_epsilon);
  run.optimizer.weight_decay = static_cast<float>(keys.weight_decay);
  run.optimizer.max_grad_norm = static_cast<float>(keys.max_grad_norm);
  run.optimizer.seed = run.seed = static_cast<uint64_t>(keys.seed);
  run.optimizer.loraplus_ratio = static_cast<float>(keys.loraplus_lr_ratio);
  run.penalty = {keys.penalty_type, static_cast<float>(keys.penalty_weight)};
  run.loading = loading_options(keys);
  const double steps_per_epoch = run.steps_per_epoch();
  const Interval evaluations =
      make_interval(keys.eval_strategy, keys.eval_steps, keys.evals_per_epoch, steps_per_epoch);
  run.evaluation = {
      .is_wanted = keys.eval_strategy != Strategy::No,
      .interval = evaluations,
      .batches = keys.eval_batches,
      .fp8 = keys.fp8_eval,
      .tasks = keys.eval_tasks,
      .task_interval = keys.eval_task_steps > 0 ? Interval{.steps = keys.eval_task_steps} : evaluations,
      .task_samples = keys.eval_task_samples,
      .threads = static_cast<int>(keys.num_threads)};
  const SampleNeeds samples = sample_needs(config);
  const int64_t rows = sampling_rows(samples, run.plan.finetuning.sharding);
  run.samples = {.rows = rows,
                 .length = sampling_length(samples, config.max_seq_length),
                 .steps = std::max<int64_t>(config.sample_steps, 0),
                 .at_evaluations = config.samples_at_evaluations(),
                 .takes_exam = keys.is_demo() && rows > 0,
                 .prompt = config.sample_prompt,
                 .tokens = config.sample_tokens,
                 .temperature = config.sample_temperature};
  run.saving = make_interval(keys.save_strategy, keys.save_steps, keys.saves_per_epoch, steps_per_epoch);
  run.log = {.progress = keys.progress,
             .logging = {.steps = keys.logging_steps},
             .fp8_stats = {.steps = keys.fp8_stats_steps},
             .profile_steps = keys.profile_steps,
             .price_per_hour = keys.price_per_hour};
  run.files = files_spec(config, run.plan.is_fp8());
  run.ranks = rank_spec(keys, keys.device);
  run.wanted_device = device_spec(keys, keys.deterministic);
  if (run.device) run.gpu = gpu_of_rank(keys.device, place.local_rank);
  if (run.model.resumed) run.changed_settings = changed_settings(*run.model.resumed, config);
  run.dataset = names_text(keys.dataset);
  run.holds_out = keys.eval_dataset.empty();
  run.is_demo = keys.is_demo();
  run.is_dry = keys.dry_run;
  run.names_model = keys.is_set("model_name_or_path");
  run.model_name_or_path = keys.model_name_or_path;
}

}  // namespace

Wanted Wanted::by_train(const RankPlace& place, std::optional<Checkpoint> resumed) {
  return {.data = Data::Opened,
          .plan = Plan::MustFit,
          .schedule = true,
          .start = true,
          .place = place,
          .resumed = std::move(resumed)};
}

Wanted Wanted::by_session(bool has_data, bool has_schedule) {
  return {.data = has_data ? Data::Opened : Data::No,
          .plan = Plan::MustFit,
          .schedule = has_schedule,
          .start = true,
          .makes_samples = false};
}

Wanted Wanted::by_plan(const RankPlace& place, std::shared_ptr<Device> device) {
  return {.plan = Plan::MayNotFit, .place = place, .device = std::move(device)};
}

Wanted Wanted::by_bench(std::shared_ptr<Device> device) {
  return {.plan = Plan::MustFit,
          .makes_samples = false,
          .precision_is_given = true,
          .device = std::move(device)};
}

Wanted Wanted::by_bench_of_ranks(const RankPlace& place) {
  return {.plan = Plan::MayNotFit,
          .makes_samples = false,
          .precision_is_given = true,
          .place = place,
          .mode_if_alone = ShardingMode::Zero1};
}

Wanted Wanted::by_doctor(std::shared_ptr<Device> device) {
  return {.plan = Plan::MayNotFit, .device = std::move(device)};
}

Wanted Wanted::by_lr(const ScheduleKeys& given, const RankPlace& place) {
  const bool counts_data = given.max_steps == 0;
  return {.model = counts_data ? Model::AnyPlace : Model::OnDisk,
          .data = counts_data ? Data::Opened : Data::No,
          .plan = counts_data ? Plan::ForBatchSize : Plan::No,
          .schedule = true,
          .place = place};
}

Wanted Wanted::by_prepare() {
  return {.data = Data::Tokenizer};
}

Wanted Wanted::by_sweep() {
  return {.model = Model::OnDisk};
}

RankPlace place_alone(const RankKeys& keys) {
  if (keys.pretend_ranks == 0) return {};
  const int ranks = narrow<int>(keys.pretend_ranks);
  return {.ranks = ranks, .local_ranks = ranks};
}

PlanOptions plan_options(const TrainConfig& keys) {
  return {.length = keys.max_seq_length, .samples = sample_needs(keys)};
}

HParams hparams_of(const TrainConfig& config) {
  HParams values;
  const KeyTable<TrainConfig>& table = train_keys();
  for (size_t i = 0; i < table.keys().size(); ++i) {
    const Key& key = table.keys()[i];
    if (key.transient) continue;
    const KeyValue value = table.get(config, i);
    if (const bool* flag = std::get_if<bool>(&value)) {
      values.emplace_back(key.name, *flag);
    } else if (const int64_t* integer = std::get_if<int64_t>(&value)) {
      values.emplace_back(key.name, *integer);
    } else if (const double* number = std::get_if<double>(&value)) {
      values.emplace_back(key.name, *number);
    } else {
      values.emplace_back(key.name, value_text(value));
    }
  }
  return values;
}

FilesSpec files_spec(const TrainConfig& config, bool fp8) {
  return {.folders = folders_of(config),
          .resume = config.resume,
          .fp8 = fp8,
          .precision = precision_of_name(config, fp8),
          // A run with pretended ranks has nothing worth saving.
          .saves = config.save_strategy != Strategy::No && config.pretend_ranks == 0,
          .save_total_limit = config.save_total_limit,
          .save_async = config.save_async,
          .tensorboard = config.use_tensorboard,
          .wandb = {.is_wanted = config.use_wandb,
                    .mode = config.wandb_mode,
                    .project = config.wandb_project,
                    .entity = config.wandb_entity,
                    .run_name = config.wandb_run_name},
          .settings = [config](const std::string& run_name) {
            TrainConfig named = config;
            named.run_name = run_name;
            return StoredSettings{to_yaml(named), hparams_of(named)};
          }};
}

void resolve_stages(ResolvedRun& run, Wanted wanted) {
  using Plan = Wanted::Plan;
  const TrainConfig given = run.keys;
  const TrainConfig& keys = run.keys;
  const RankPlace place = wanted.place.ranks > 1 ? wanted.place : place_alone(given);
  const bool plans_later = wanted.plan == Plan::ForBatchSize && !known_sequences_per_step(given, place);
  const bool plans = wanted.plan >= Plan::MayNotFit || plans_later;
  run.device = std::move(wanted.device);
  if (plans && !run.device)
    run.device = timed(run.times.device, [&] {
      return make_device(device_spec(given, given.deterministic), wanted.place.local_rank);
    });
  const bool looks_at_model = wanted.model == Wanted::Model::AnyPlace ||
                              (is_on_disk(given.model_name_or_path) && is_on_disk(given.adapter_name_or_path));
  if (looks_at_model) {
    run.model = timed(run.times.model, [&] { return choose_model(given, std::move(wanted.resumed)); });
    run.keys = keys_of(given, run.model, wanted);
  }
  // The disk is idle while the tokenizer and the data are opened.
  std::optional<FolderReadAhead> reads_ahead;
  if (wanted.start) {
    tell_about_start(keys, run.model, *run.device, place);
    timed(run.times.model, [&] { check_weights(run.model); });
    if (run.model.has_weights() && !keys.dry_run && place.local_rank == 0)
      reads_ahead.emplace(run.model.start->folder);
  }
  const auto make_plan = [&](std::optional<int64_t> sequences) {
    PlanOptions options = plan_options(keys);
    if (!wanted.makes_samples) options.samples = {};
    options.sequences = sequences;
    options.precision_is_given = wanted.precision_is_given;
    options.adapters = run.model.adapters;
    options.sharding = sharding_of(keys, place);
    if (wanted.mode_if_alone && !options.sharding.is_active()) options.sharding.mode = *wanted.mode_if_alone;
    run.plan = timed(run.times.plan, [&] { return plan_run(keys, run.model.config, *run.device, options); });
    if (run.plan.shortage && wanted.plan != Plan::MayNotFit) fail_config("{}", run.plan.shortage->text);
  };
  const bool opens_data = wanted.data == Wanted::Data::Opened;
  // Preparing data may take hours, so a run that does not fit is refused first. Only an automatic batch size needs the
  // number of sequences.
  const bool needs_sequences = opens_data && keys.auto_batch_size;
  if (plans && !needs_sequences) make_plan(std::nullopt);
  if (opens_data) run.data = timed(run.times.data, [&] { return open_data(keys, run.model); });
  if (plans && needs_sequences) make_plan(run.data.sequences);
  if (plans && keys.samples_at_evaluations() && run.data.is_plain_text)
    run.plan.sampling_bytes =
        spare_sampling_bytes(sample_needs(keys), run.model.config, *run.device, run.plan);
  if (wanted.schedule) {
    const int64_t per_step = plans        ? run.plan.sequences_per_step()
                             : opens_data ? *known_sequences_per_step(keys, place)
                                          : 1;  // max_steps decides alone
    run.optimizer.schedule = plan_schedule(keys, run.data.sequences, per_step);
  }
  run.config = plans && opens_data ? resolved_config(keys, run.data, run.plan, run.schedule()) : keys;
  if (plans && sampling_rows(sample_needs(run.config), run.plan.finetuning.sharding) == 0)
    run.plan.sampling_bytes = 0;
  add_settings(run, place);
}

ResolvedRun resolve(const TrainConfig& given, Wanted wanted) {
  ResolvedRun run;
  run.keys = given;
  resolve_stages(run, std::move(wanted));
  return run;
}

std::optional<ScheduleConfig> schedule_of_checkpoint(const Checkpoint& checkpoint, int64_t sequences,
                                                     int64_t sequences_per_step) {
  const std::optional<TrainConfig> keys = settings_of(checkpoint);
  if (!keys) return std::nullopt;
  return plan_schedule(*keys, sequences, sequences_per_step);
}

TrainConfig resolved_config(const TrainConfig& keys, const DataChoice& data, const RunPlan& plan,
                            const ScheduleConfig& schedule) {
  TrainConfig config = keys;
  set_batch_size(config, plan.shape.rows, plan.ranks());
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
