#include "train/start.h"

#include "base/clock.h"
#include "base/log.h"
#include "checkpoint/base_identity.h"
#include "hf/hf_folder.h"
#include "hf/peft_folder.h"
#include "plan/resolve.h"
#include "report/text.h"

namespace octet {
namespace {

// What other settings do to the rates of a run that continues. Nothing if its schedule is the old one.
void tell_schedule(const Checkpoint& checkpoint, const RunSpec& run, const TrainerState& state,
                   Console& console) {
  if (state.step == 0) return;
  const int64_t sequences =
      state.sequences_per_step > 0 ? state.sequences_per_step : run.plan.sequences_per_step();
  const std::optional<ScheduleConfig> before =
      schedule_of_checkpoint(checkpoint, run.data.sequences, sequences);
  if (!before) return;
  const ScheduleConfig &was = *before, &is = run.schedule();
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

TrainerState resume_from(Env& env, const Checkpoint& checkpoint, const RunSpec& run, Transformer& model,
                         Console& console, Ranks& ranks) {
  const auto start = Clock::now();
  Restored restored = restore_checkpoint(env, checkpoint, *run.device, model,
                                         ranks.place().ranks > 1 ? &ranks.host() : nullptr);
  console.print(fmt::format("resumed from {} after step {}: {} read in {}", checkpoint.path,
                            restored.state.step, human_bytes(static_cast<double>(checkpoint.total_bytes())),
                            human_duration(seconds_since(start))));
  for (const std::string& remark : restored.remarks) console.print(fmt::format("  {}", remark));
  for (const std::string& change : run.changed_settings) {
    console.print(fmt::format("  changed setting: {}", change));
  }
  if (ranks.place().is_first()) tell_schedule(checkpoint, run, restored.state, console);
  const int64_t was = restored.state.sequences_per_step, is = run.plan.sequences_per_step();
  if (was > 0 && was != is) {
    console.print(
        fmt::format("  changed batch: {} -> {} sequences per step, over all ranks; to keep it, set "
                    "per_device_train_batch_size and gradient_accumulation_steps for {}",
                    was, is, counted(run.plan.ranks(), "rank")));
  }
  return std::move(restored.state);
}

void load_base(const RunSpec& run, Transformer& model, Console& console) {
  const auto start = Clock::now();
  load_hf_folder(*run.device, model, run.model.start->folder);
  console.print(fmt::format("weights: {}, read in {}", run.model.start->source,
                            human_duration(seconds_since(start))));
}

void load_adapters(Env& env, const RunSpec& run, Transformer& model, Console& console) {
  const PeftAdapter adapter(env, run.model.adapter_folder, run.model.config);
  const HfWeights weights = adapter.weights();
  for (Parameter& p : model.parameters().all()) {
    if (p.spec.is_adapter()) ParameterSet::set_weight(*run.device, p, weights.values(p.spec));
  }
  console.print(fmt::format("adapters: {}", run.model.adapter_folder));
}

// The identity of the frozen base. Error if the run continues from adapters of another one.
BaseIdentity identity_of_base(Env& env, const RunSpec& run) {
  const ModelChoice& model = run.model;
  const BaseIdentity now = model.has_weights()
                               ? identity_of_folder(model.start->folder, run.model_name_or_path,
                                                    parameter_table(model.start->config))
                               : identity_of_random(model.config, run.seed);
  // The adapters that the run continues or starts from say what they were trained on; those of PEFT do not.
  const std::string path = join_path(model.adapter_folder, checkpoint_file::kBase);
  if (model.adapter_folder.empty() || !env.exists(path)) return now;
  const std::string text = differences(base_identity_from_json(env.read_text(path), path), now);
  if (text.empty()) return now;
  if (model.resumed || !run.names_model) fail("[{}] {}", path, text);
  log_warning("[{}] {}; training starts from these adapters all the same", path, text);
  return now;
}

}  // namespace

void show_example(const RunSpec& run, Console& console) {
  const DataChoice& data = run.data;
  if (data.data.train.empty() || !data.data.train[0].note || data.tokenizer_source.empty()) return;
  console.print_coloured(fmt::format(
      "\n{}", first_example_text(*data.data.train[0].note, *data.tokenizer, console.traits().color)));
}

Start start_weights(Env& env, const RunSpec& run, Transformer& model, Console& console, Ranks& ranks) {
  const ModelChoice& choice = run.model;
  Start start;
  const bool adapters = model.has_adapters();
  if (adapters) {
    const BaseIdentity base = identity_of_base(env, run);
    start.adapter_files = {
        {kAdapterConfigName, to_peft_config(choice.config, choice.adapters, choice.base_name)},
        {checkpoint_file::kBase, to_json(base)}};
  }
  model.allocate();
  if (model.sharding().is_active()) {
    start.sync = std::make_unique<RankSync>(model, *run.device, ranks);
    console.print(fmt::format("ranks: {}", ranks.description()));
  }
  if (!adapters && choice.resumed) {
    start.state = resume_from(env, *choice.resumed, run, model, console, ranks);
    return start;
  }
  if (!choice.resumed && !run.files.resume.empty())
    console.print("resume: there is no checkpoint yet; the run starts from the beginning");
  model.initialise(run.seed, !choice.has_weights());
  if (choice.has_weights()) load_base(run, model, console);
  if (!choice.adapter_folder.empty() && !choice.resumed) load_adapters(env, run, model, console);
  model.weights_changed();
  if (choice.resumed) start.state = resume_from(env, *choice.resumed, run, model, console, ranks);
  return start;
}

}  // namespace octet
