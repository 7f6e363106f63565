#include "train/observers.h"

namespace octet {
namespace {

class CostObserver final : public RunObserver {
 public:
  explicit CostObserver(RunContext& run) : run_(run) {}

  void before_step(int64_t, StepNote& note) override {
    begin();
    run_.costs.begin_step(note);
  }
  void after_step(StepReport& report) override { run_.costs.end_step(report.result); }
  void at_end() override {
    begin();
    run_.costs.finish(&run_.ranks.host());
    run_.outcome.device_seconds = run_.costs.device_seconds();
    run_.outcome.energy_joules = run_.costs.energy_joules();
  }

 private:
  // With the first step: what comes before it is no training.
  void begin() {
    if (has_begun_) return;
    has_begun_ = true;
    run_.costs.begin(GpuSampler::start(run_.spec.gpu),
                     run_.spec.ranks.pretended > 0 ? 1 : run_.ranks.place().ranks);
  }

  RunContext& run_;
  bool has_begun_ = false;
};

}  // namespace

std::unique_ptr<RunObserver> make_cost_observer(RunContext& run) {
  return std::make_unique<CostObserver>(run);
}

}  // namespace octet
