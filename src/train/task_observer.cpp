#include "train/observers.h"

namespace octet {
namespace {

class TaskObserver final : public RunObserver {
 public:
  TaskObserver(RunContext& run, TaskEvaluator tasks) : run_(run), tasks_(std::move(tasks)) {
    if (run.has_ranks()) tasks_.share(run.ranks.host());
  }

  void after_step(StepReport& report) override {
    const EvaluationSpec& spec = run_.spec.evaluation;
    const bool due = spec.task_interval.is_due(report.step) || run_.is_last(report.step);
    if (run_.stop_signal != 0 || tasks_.empty() || !due) return;
    run_.ranks.progress().begin_phase("evaluating tasks");
    // A signal ends it without scores: the run stops after the next step.
    const auto stops = [this] { return run_.stop.number() != 0; };
    report.record.task_scores = named_scores(tasks_.evaluate(run_.model, spec.fp8, stops));
    run_.ranks.progress().begin_phase("");
  }

 private:
  RunContext& run_;
  TaskEvaluator tasks_;
};

}  // namespace

std::unique_ptr<RunObserver> make_task_observer(RunContext& run, TaskEvaluator tasks) {
  return std::make_unique<TaskObserver>(run, std::move(tasks));
}

}  // namespace octet
