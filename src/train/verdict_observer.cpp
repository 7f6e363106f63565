#include "base/exit_codes.h"
#include "base/log.h"
#include "train/observers.h"

namespace octet {
namespace {

class VerdictObserver final : public RunObserver {
 public:
  explicit VerdictObserver(RunContext& run) : run_(run) {}

  void after_record(const StepReport& report) override {
    const Outcome& outcome = run_.outcome;
    // A run that ends without a single update has trained nothing, however short it was.
    const bool is_over = run_.is_last(report.step) && run_.stop_signal == 0;
    if (outcome.skipped_in_a_row >= kMaxFailuresInARow ||
        (is_over && outcome.skipped_steps == outcome.steps)) {
      end_not_finite();
    } else if (const int failures = run_.sync ? run_.save_failures : run_.own_save_failures();
               failures >= kMaxFailuresInARow) {
      run_.verdict = kExitSaveFailed;
      log_line(LogLevel::Error,
               fmt::format("{} checkpoints in a row could not be saved into {}; the run stops at step {}",
                           failures, run_.files.saver()->directory(), outcome.steps));
    }
  }

 private:
  void end_not_finite() {
    run_.verdict = kExitNotFinite;
    const RunSpec& spec = run_.spec;
    const bool has_penalty = spec.penalty.kind != PenaltyKind::None;
    log_line(LogLevel::Error,
             no_finite_gradient_text(
                 {.steps_in_a_row = run_.outcome.skipped_in_a_row,
                  .step = run_.outcome.steps,
                  .gradients = describe_nonfinite_gradients(*spec.device, run_.model.parameters()),
                  .weights = describe_nonfinite_weights(*spec.device, run_.model.parameters()),
                  .was_trained = run_.outcome.skipped_steps < run_.outcome.steps,
                  .learning_rate = spec.schedule().peak_lr,
                  .penalty_weight = has_penalty ? spec.penalty.weight : 0,
                  .fp8_margin =
                      spec.plan.is_fp8() ? std::optional<int64_t>(spec.plan.numerics.fp8.margin) : std::nullopt}));
  }

  RunContext& run_;
};

}  // namespace

std::unique_ptr<RunObserver> make_verdict_observer(RunContext& run) {
  return std::make_unique<VerdictObserver>(run);
}

}  // namespace octet
