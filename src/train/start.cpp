#include "train/start.h"

#include "base/clock.h"
#include "base/log.h"
#include "checkpoint/base_identity.h"
#include "checkpoint/resume.h"
#include "hf/hf_folder.h"
#include "hf/peft_folder.h"
#include "report/text.h"

namespace octet {
namespace {

// What other settings do to the rates of a run that continues. Nothing if its schedule is the old one.
void tell_schedule(const Checkpoint& checkpoint, const ResolvedRun& stages, const TrainerState& state,
                   Console& console) {
  const std::optional<TrainConfig> before = settings_of(checkpoint);
  if (!before || state.step == 0) return;
  const int64_t sequences =
      state.sequences_per_step > 0 ? state.sequences_per_step : stages.plan.sequences_per_step();
  const ScheduleConfig was = plan_schedule(*before, stages.data.sequences, sequences), &is = stages.schedule;
  const double last = learning_rate(was, state.step - 1), next = learning_rate(is, state.step);
  if (next == learning_rate(was, state.step) && was.max_steps == is.max_steps) return;
  console.print(fmt::format(
      "  changed schedule: {} over {} steps -> {} over {} steps; the learning rate was {:.2e} in the last step and is {:.2e} "
      "in the next one",
      to_string(was.type), was.max_steps, to_string(is.type), is.max_steps, last, next));
  constexpr double kJump = 1.1;
  if (next <= kJump * last || state.step < was.warmup_steps) return;
  const std::string because = was.max_steps == is.max_steps
                                  ? ""
                                  : fmt::format(", because the schedule now ends at step {} instead of {}",
                                                is.max_steps, was.max_steps);
  log_warning(
      "the learning rate rises from {:.2e} to {:.2e}{}; to continue at the low rate, set lr_scheduler_type to constant and "
      "learning_rate to {:.2e}",
      last, next, because, last);
}

TrainerState resume_from(Env& env, const Checkpoint& checkpoint, const ResolvedRun& stages, Transformer& model,
                         Console& console, Ranks& ranks) {
  const auto start = Clock::now();
  Restored restored = restore_checkpoint(env, checkpoint, *stages.device, model,
                                         ranks.place().ranks > 1 ? &ranks.host() : nullptr);
  console.print(fmt::format("resumed from {} after step {}: {} read in {}", checkpoint.path,
                            restored.state.step, human_bytes(static_cast<double>(checkpoint.total_bytes())),
                            human_duration(seconds_since(start))));
  for (const std::string& remark : restored.remarks) console.print(fmt::format("  {}", remark));
  for (const std::string& change : changed_settings(checkpoint, stages.config)) {
    console.print(fmt::format("  changed setting: {}", change));
  }
  if (ranks.place().is_first()) tell_schedule(checkpoint, stages, restored.state, console);
  const int64_t was = restored.state.sequences_per_step, is = stages.plan.sequences_per_step();
  if (was > 0 && was != is) {
    console.print(
        fmt::format("  changed batch: {} -> {} sequences per step, over all ranks; to keep it, set "
                    "per_device_train_batch_size and gradient_accumulation_steps for {}",
                    was, is, counted(stages.plan.ranks(), "rank")));
  }
  return std::move(restored.state);
}

void load_base(const ResolvedRun& stages, Transformer& model, Console& console) {
  const auto start = Clock::now();
  load_hf_folder(*stages.device, model, stages.model.start->folder);
  console.print(fmt::format("weights: {}, read in {}", stages.model.start->source,
                            human_duration(seconds_since(start))));
}

void load_adapters(Env& env, const ResolvedRun& stages, Transformer& model, Console& console) {
  const PeftAdapter adapter(env, stages.model.adapter_folder, stages.model.config);
  const HfWeights weights = adapter.weights();
  for (Parameter& p : model.parameters().all()) {
    if (p.spec.is_adapter()) ParameterSet::set_weight(*stages.device, p, weights.values(p.spec));
  }
  console.print(fmt::format("adapters: {}", stages.model.adapter_folder));
}

// The identity of the frozen base. Error if the run continues from adapters of another one.
BaseIdentity identity_of_base(Env& env, const ResolvedRun& stages) {
  const ModelChoice& model = stages.model;
  const BaseIdentity now = model.has_weights()
                               ? identity_of_folder(model.start->folder, stages.keys.model_name_or_path,
                                                    parameter_table(model.start->config))
                               : identity_of_random(model.config, static_cast<uint64_t>(stages.keys.seed));
  // The adapters that the run continues or starts from say what they were trained on; those of PEFT do not.
  const std::string path = join_path(model.adapter_folder, checkpoint_file::kBase);
  if (model.adapter_folder.empty() || !env.exists(path)) return now;
  const std::string text = differences(base_identity_from_json(env.read_text(path), path), now);
  if (text.empty()) return now;
  if (model.resumed || !stages.keys.is_set("model_name_or_path")) fail("[{}] {}", path, text);
  log_warning("[{}] {}; training starts from these adapters all the same", path, text);
  return now;
}

}  // namespace

Start start_weights(Env& env, const ResolvedRun& stages, Transformer& model, Console& console, Ranks& ranks) {
  const ModelChoice& choice = stages.model;
  const auto seed = static_cast<uint64_t>(stages.keys.seed);
  Start start;
  const bool adapters = model.has_adapters();
  if (adapters) {
    const BaseIdentity base = identity_of_base(env, stages);
    start.adapter_files = {
        {kAdapterConfigName, to_peft_config(choice.config, choice.adapters, choice.base_name)},
        {checkpoint_file::kBase, to_json(base)}};
  }
  model.allocate();
  if (model.sharding().is_active()) {
    start.sync = std::make_unique<RankSync>(model, *stages.device, ranks);
    console.print(fmt::format("ranks: {}", ranks.description()));
  }
  if (!adapters && choice.resumed) {
    start.state = resume_from(env, *choice.resumed, stages, model, console, ranks);
    return start;
  }
  if (!choice.resumed && !stages.keys.resume.empty())
    console.print("resume: there is no checkpoint yet; the run starts from the beginning");
  model.initialise(seed, !choice.has_weights());
  if (choice.has_weights()) load_base(stages, model, console);
  if (!choice.adapter_folder.empty() && !choice.resumed) load_adapters(env, stages, model, console);
  model.weights_changed();
  if (choice.resumed) start.state = resume_from(env, *choice.resumed, stages, model, console, ranks);
  return start;
}

}  // namespace octet
