#include "base/exit_codes.h"
#include "train/observers.h"
#include "train/saving.h"

namespace octet {
namespace {

class SavingObserver final : public RunObserver {
 public:
  explicit SavingObserver(RunContext& run)
      : run_(run),
        saving_(run.spec, run.model, run.files.saver(), run.files.settings().yaml, run.outcome.steps,
                run.has_ranks() ? &run.ranks.host() : nullptr) {}

  void after_step(StepReport& report) override { report.record.checkpoint = saving_.take_cost(); }

  void after_record(const StepReport& report) override {
    if (!saving_.is_due(report.step)) return;
    restore_files();
    saving_.save(trainer_state(run_), fresh_eval());
  }

  // Saves the state at the end. A run that became non-finite keeps its last good checkpoint as the latest.
  void at_end() override {
    run_.ranks.progress().begin_phase("saving the last checkpoint");
    restore_files();
    Outcome& outcome = run_.outcome;
    if (run_.verdict) {
      saving_.finish();
    } else if (!saving_.save_last(trainer_state(run_), fresh_eval(), outcome.stopped)) {
      run_.verdict = kExitSaveFailed;
    }
    outcome.save_failed = run_.verdict == kExitSaveFailed;
    outcome.save = saving_.last_cost();
    if (outcome.save) outcome.checkpoints = saving_.directory();
  }

 private:
  // The evaluation loss of the current weights; empty if they changed after the last evaluation.
  std::optional<double> fresh_eval() const {
    const Outcome& outcome = run_.outcome;
    return outcome.last_eval_step == outcome.steps ? outcome.last_eval : std::nullopt;
  }

  // All ranks save into the same folder, whatever somebody has done to that of the run meanwhile.
  void restore_files() {
    RunFiles& files = run_.files;
    const bool is_new = files.restore_if_gone();
    const std::string name =
        run_.ranks.host().from_first("run with a new folder", is_new ? files.run_name() : "");
    if (name.empty()) return;
    files.save_as(name);
    saving_.start_anew(files.settings().yaml);
    run_.outcome.run_folder = files.folder();
  }

  RunContext& run_;
  Saving saving_;
};

}  // namespace

std::unique_ptr<RunObserver> make_saving_observer(RunContext& run) {
  return std::make_unique<SavingObserver>(run);
}

}  // namespace octet
