#include "train/observers.h"
#include "train/rank_watch.h"

namespace octet {
namespace {

class RankObserver final : public RunObserver {
 public:
  explicit RankObserver(RunContext& run) : run_(run), watch_(run.sync.get(), run.spec.ranks.check_steps) {}

  void before_step(int64_t step, StepNote& note) override {
    run_.ranks.progress().begin_step(step + 1);
    note = watch_.note(step, run_.stop.number(), run_.own_save_failures());
  }
  void after_step(StepReport& report) override {
    watch_.look(report.step, report.result);
    // Those of this rank alone.
    if (run_.spec.ranks.pretended > 0) report.result.tokens /= run_.spec.ranks.pretended;
    run_.stop_signal = watch_.agreed_signal(run_.stop.number());
    run_.save_failures = watch_.agreed_failures(run_.own_save_failures());
  }

 private:
  RunContext& run_;
  RankWatch watch_;
};

}  // namespace

std::unique_ptr<RunObserver> make_rank_observer(RunContext& run) {
  return std::make_unique<RankObserver>(run);
}

}  // namespace octet
