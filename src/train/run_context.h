#pragma once

#include <memory>
#include <optional>

#include "base/signals.h"
#include "plan/run_spec.h"
#include "report/console.h"
#include "train/cost_meter.h"
#include "step/rank_sync.h"
#include "train/run_files.h"
#include "train/step_log.h"
#include "train/summary.h"

namespace octet {

// The parts of a run that all its observers see.
struct RunContext {
  RunContext(const RunSpec& of_run, RunFiles of_files, Env& in, Ranks& with)
      : spec(of_run),
        env(in),
        ranks(with),
        model(of_run.model.config, of_run.plan.shape, of_run.plan.numerics, *of_run.device,
              of_run.plan.finetuning),
        files(std::move(of_files)),
        console(of_run.log.progress),
        log(of_run, files, console, costs) {}
  RunContext(const RunContext&) = delete;

  const RunSpec& spec;
  Env& env;
  Ranks& ranks;
  Transformer model;
  std::unique_ptr<RankSync> sync = nullptr;  // null if no ranks share
  RunFiles files;  // after the model: a save that is still being written looks at its parameters
  Console console;
  const StopSignal stop = {};
  std::unique_ptr<BatchSource> loader = nullptr;
  CostMeter costs = {};
  StepLog log;
  Outcome outcome = {};
  StartTimes times = spec.times;
  int save_failures = 0;                // in a row, on any rank, as all ranks knew before the last step
  int stop_signal = 0;                  // that all ranks have agreed to follow
  std::optional<int> verdict = {};      // the exit code of a run that must stop

  bool is_first() const { return ranks.place().is_first(); }
  bool has_ranks() const { return ranks.place().ranks > 1; }
  bool is_last(int64_t step) const { return step + 1 == spec.schedule().max_steps; }
  bool saves_after(int64_t step) { return files.saver() && spec.saving.is_due(step); }
  int own_save_failures() { return files.saver() ? files.saver()->failures_in_a_row() : 0; }
  bool ended_well() const { return outcome.steps > outcome.first_step && !outcome.stopped && !verdict; }
  bool goes_on() const { return stop_signal == 0 && !verdict && !files.is_displaced(); }
};

// What a checkpoint keeps of a run besides its tensors, and a run that begins there.
TrainerState trainer_state(const RunContext& run);
void restore(RunContext& run, const TrainerState& state);

// Opens the files of the run, and joins those of the first rank. `texts` go into every checkpoint.
void open_files(RunContext& run, std::vector<NamedText> texts);

}  // namespace octet
