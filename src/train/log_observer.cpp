#include "base/log.h"
#include "train/observers.h"

namespace octet {
namespace {

class LogObserver final : public RunObserver {
 public:
  explicit LogObserver(RunContext& run) : run_(run) {}

  void after_step(StepReport& report) override {
    note_outcome(report);
    report.record =
        run_.log.make_record(report.result, report.step, report.seconds, run_.loader->epoch(), run_.outcome);
    report.record.memory_bytes = run_.model.allocated_bytes();
    if (report.has_fp8_stats) run_.log.add_fp8_stats(report.record, run_.model);
  }

  void after_record(const StepReport& report) override {
    const StepRecord& record = report.record;
    const bool shown = run_.spec.log.logging.is_due(report.step) || run_.is_last(report.step) ||
                       record.eval_loss || !record.task_scores.empty() || !record.samples.empty() ||
                       record.loss_spike || record.grad_norm_spike || report.result.skipped;
    run_.log.write(record, shown);
  }

  void at_end() override { run_.log.write_last(); }

  void after_end() override {
    run_.outcome.red_flags = run_.log.red_flags().raised();
    run_.outcome.allocated_bytes = run_.model.allocated_bytes();
  }

 private:
  void note_outcome(const StepReport& report) {
    const StepResult& result = report.result;
    Outcome& outcome = run_.outcome;
    if (report.step == 0) outcome.first_loss = result.loss;
    outcome.last_loss = result.loss;
    outcome.steps = report.step + 1;
    outcome.seconds += report.seconds;
    outcome.tokens += result.tokens;
    outcome.tokens_timed += result.tokens;
    outcome.skipped_in_a_row = result.skipped ? outcome.skipped_in_a_row + 1 : 0;
    if (!result.skipped) return;
    ++outcome.skipped_steps;
    log_warning(
        "step {}: the gradient is not finite (loss {}, norm {}); the step is skipped and changes no weight",
        report.step + 1, result.loss, result.grad_norm);
  }

  RunContext& run_;
};

}  // namespace

std::unique_ptr<RunObserver> make_log_observer(RunContext& run) {
  return std::make_unique<LogObserver>(run);
}

}  // namespace octet
