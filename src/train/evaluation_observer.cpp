#include <algorithm>

#include "base/log.h"
#include "base/trace.h"
#include "train/evaluate.h"
#include "train/observers.h"

namespace octet {
namespace {

class EvaluationObserver final : public RunObserver {
 public:
  explicit EvaluationObserver(RunContext& run)
      : run_(run),
        evaluator_(make_eval_sets(run.spec.loading, run.spec.data.data.eval, run.spec.data.tokenizer.get()),
                   run.spec.evaluation.batches) {
    if (run.has_ranks()) evaluator_.share(run.ranks.host());
  }

  void before_run() override {
    if (run_.spec.model.resumed) return;
    const PhaseTimer timer(run_.times.evaluation);
    if (run_.sync) run_.sync->settle();
    evaluate();
  }

  // Every checkpoint has an evaluation loss, because the lowest one decides which checkpoint is the best. A run that was
  // asked to stop makes no evaluation.
  void after_step(StepReport& report) override {
    const int64_t step = report.step;
    const bool due =
        run_.spec.evaluation.interval.is_due(step) || run_.saves_after(step) || run_.is_last(step);
    if (run_.stop_signal != 0 || !due) return;
    const std::optional<Evaluation> evaluation = evaluate();
    if (!evaluation) return;
    report.record.eval_loss = evaluation->loss;
    for (const auto& [name, part] : evaluation->parts)
      report.record.eval_losses.emplace_back(name, part.loss);
  }

 private:
  std::optional<Evaluation> evaluate() {
    if (!run_.spec.evaluation.is_wanted) return std::nullopt;
    const TraceSpan span("training", "evaluate");
    std::optional<Evaluation> evaluation = evaluator_.evaluate(run_.model, run_.spec.evaluation.fp8);
    if (!evaluation) return evaluation;
    const double loss = evaluation->loss;
    Outcome& outcome = run_.outcome;
    if (!outcome.first_eval) outcome.first_eval = loss;
    outcome.last_eval = loss;
    outcome.last_eval_step = outcome.steps;
    outcome.best_eval = std::min(outcome.best_eval.value_or(loss), loss);
    return evaluation;
  }

  RunContext& run_;
  Evaluator evaluator_;
};

}  // namespace

std::unique_ptr<RunObserver> make_evaluation_observer(RunContext& run) {
  return std::make_unique<EvaluationObserver>(run);
}

}  // namespace octet
