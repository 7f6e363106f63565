#include "base/trace.h"
#include "train/observers.h"
#include "train/samples.h"

namespace octet {
namespace {

class SampleObserver final : public RunObserver {
 public:
  explicit SampleObserver(RunContext& run) : run_(run), samples_(run.spec, run.model) { samples_.reserve(); }

  void before_run() override {
    if (run_.spec.model.resumed) return;
    const PhaseTimer timer(run_.times.evaluation);
    settle();
    samples_.before();
  }

  void after_step(StepReport& report) override {
    // A run that was asked to stop makes no samples.
    const bool due = samples_.is_due(report.step, report.record.eval_loss.has_value());
    if (run_.stop_signal == 0 && due) {
      run_.ranks.progress().begin_phase("generating samples");
      const TraceSpan span("training", "generate samples");
      settle();
      if (auto text = samples_.make()) report.record.samples = {*std::move(text)};
      run_.ranks.progress().begin_phase("");
    }
    *report.record.memory_bytes += samples_.allocated_bytes();
  }

  void after_end() override {
    if (run_.ended_well()) {
      settle();
      run_.outcome.demo_score = samples_.after(run_.console);
    }
    run_.outcome.allocated_bytes += samples_.allocated_bytes();
  }

 private:
  void settle() {
    if (run_.sync) run_.sync->settle();
  }

  RunContext& run_;
  Samples samples_;
};

}  // namespace

std::unique_ptr<RunObserver> make_sample_observer(RunContext& run) {
  return std::make_unique<SampleObserver>(run);
}

}  // namespace octet
