#include <cstdlib>
#include <fstream>

#include "base/exit_codes.h"
#include "base/log.h"
#include "io/mapping_faults.h"
#include "train/observers.h"
#include "train/rank_start.h"

namespace octet {
namespace {

class CrashObserver final : public RunObserver {
 public:
  explicit CrashObserver(RunContext& run) : run_(run) {
    if (!run.has_ranks()) return;
    crashes_.emplace(run.env, run.ranks, run.files.folder(), run.outcome.steps);
    if (const int count = crashes_->crashes(); count > 0)
      log_warning("{} from step {} crashed",
                  count == 1 ? "the last start" : fmt::format("the last {} starts", count),
                  run.outcome.steps);
  }

  void before_run() override {
    if (run_.spec.model.resumed) checkpoint_exists();
  }

  void after_record(const StepReport&) override {
    if (CheckpointSaver* saver = run_.files.saver(); saver && saver->has_published()) {
      if (crashes_) crashes_->saved();
      checkpoint_exists();
    }
    write_progress();
  }

  void at_end() override {
    if (crashes_ && !run_.files.is_displaced()) crashes_->finish();
  }

 private:
  // From now on a failure of any rank is worth another start.
  void checkpoint_exists() {
    const bool is_worth = run_.files.saver() && !(crashes_ && crashes_->is_hopeless());
    if (is_worth) run_.ranks.set_failure_code(kExitRequeue);
    // All ranks end with the same code. A process on its own has no launcher that knows this one.
    set_mapping_fault_advice("; the last checkpoint is whole, and --resume latest continues from it",
                             is_worth && run_.has_ranks() ? kExitRequeue : kExitFailure);
  }

  // For a launcher that starts a run again only if it had made progress.
  void write_progress() const {
    // Every node has a launcher. The file needs no sync: it is of no use after a crash of the machine.
    if (const char* path = std::getenv("OCTET_PROGRESS_FILE"); path && run_.ranks.place().local_rank == 0)
      std::ofstream(path) << run_.outcome.steps << "\n";
  }

  RunContext& run_;
  std::optional<CrashCounter> crashes_;
};

}  // namespace

std::unique_ptr<RunObserver> make_crash_observer(RunContext& run) {
  return std::make_unique<CrashObserver>(run);
}

}  // namespace octet
