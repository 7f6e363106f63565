#include "train/observers.h"
#include "train/step_trace.h"

namespace octet {
namespace {

class TraceObserver final : public RunObserver {
 public:
  explicit TraceObserver(const RunContext& run)
      : trace_(steps_to_trace(run.spec.log.profile_steps, run.outcome.steps), *run.spec.device,
               run.ranks.place().rank,
               join_path(run.files.folder(), fmt::format("trace-rank{}.json", run.ranks.place().rank))) {}

  // A step lasts until the next one: what others do after it belongs to it.
  void before_step(int64_t step, StepNote&) override {
    end_step();
    trace_.begin_step(step + 1);
    step_ = step + 1;
  }
  void at_end() override {
    end_step();
    trace_.finish();
  }

 private:
  void end_step() {
    if (step_ > 0) trace_.end_step(step_);
    step_ = 0;
  }

  StepTrace trace_;
  int64_t step_ = 0;  // that is traced, counted from 1; 0: none
};

}  // namespace

std::unique_ptr<RunObserver> make_trace_observer(RunContext& run) {
  return std::make_unique<TraceObserver>(run);
}

}  // namespace octet
