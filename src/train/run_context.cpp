#include "train/run_context.h"

#include "checkpoint/chat_style.h"

namespace octet {

void restore(RunContext& run, const TrainerState& state) {
  run.loader->set_state(state.loader);
  Outcome& outcome = run.outcome;
  outcome.steps = outcome.first_step = state.step;
  outcome.tokens = state.tokens;
  outcome.skipped_steps = state.skipped_steps;
  outcome.first_loss = state.first_loss;
  outcome.last_loss = state.last_loss;
  outcome.first_eval = state.first_eval;
  outcome.best_eval = state.best_eval;
  outcome.skipped_in_a_row = state.skipped_in_a_row;
  run.log.spikes().restore(state.loss_window, state.spikes_in_a_row);
  run.log.red_flags().restore(state.first_level, state.first_loss, state.loss_window, state.step);
}

TrainerState trainer_state(const RunContext& run) {
  const Outcome& outcome = run.outcome;
  return {.step = outcome.steps,
          .tokens = outcome.tokens,
          .skipped_steps = outcome.skipped_steps,
          .skipped_in_a_row = outcome.skipped_in_a_row,
          .loader = run.loader->state(),
          .first_loss = outcome.first_loss,
          .last_loss = outcome.last_loss,
          .first_eval = outcome.first_eval,
          .best_eval = {},  // the saver knows
          .loss_window = run.log.spikes().window(),
          .spikes_in_a_row = run.log.spikes().spikes_in_a_row(),
          .sequences_per_step = run.spec.plan.sequences_per_step(),
          .first_level = run.log.red_flags().first_level()};
}

namespace {

std::optional<RankSaving> rank_saving(RunContext& run) {
  if (!run.sync || !run.has_ranks()) return std::nullopt;
  RankSync* const sync = run.sync.get();
  return RankSaving{.host = &run.ranks.host(),
                    .sharding = run.model.sharding(),
                    .gather = [sync](Tensor parts, Tensor part,
                                     std::string_view what) { sync->gather(parts, part, what); },
                    .merge_slots = [sync] { sync->merge_slots(); }};
}

}  // namespace

void open_files(RunContext& run, std::vector<NamedText> texts) {
  // What the model must be asked with afterwards.
  if (const auto chat = run.spec.data.data.chat())
    texts.push_back({checkpoint_file::kChat, to_chat_json(*chat)});
  const RunFiles::About about{.model = run.spec.model.config.name,
                              .plan_json = plan_facts_json(plan_facts_of(run.spec, run.model)),
                              .steps_done = run.outcome.steps,
                              .state_bytes = state_bytes(run.model.parameters()),
                              .on_device = run.spec.device->capabilities().separate_memory,
                              .tokenizer = run.spec.data.tokenizer_source,
                              .texts = std::move(texts),
                              .ranks = rank_saving(run)};
  RunFiles& files = run.files;
  if (run.is_first()) files.open(about);
  const EarlierTotals& earlier = files.earlier();
  run.log.red_flags().set_raised(earlier.red_flags);
  if (run.outcome.steps > 0 || earlier.device_seconds)
    run.costs.restore(earlier.device_seconds.value_or(0), earlier.energy_joules);
  const std::string name = run.ranks.host().from_first("run name", files.run_name());
  if (!run.is_first()) files.join(about, name);
  run.outcome.run_folder = files.folder();
}

}  // namespace octet
