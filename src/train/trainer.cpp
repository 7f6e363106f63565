#include "train/trainer.h"

#include "base/clock.h"
#include "base/exit_codes.h"
#include "base/input_errors.h"
#include "base/log.h"
#include "base/print.h"
#include "config/notes.h"
#include "plan/device_choice.h"
#include "plan/overview.h"
#include "plan/resolve.h"
#include "train/observers.h"
#include "train/rank_prepare.h"
#include "train/rank_start.h"
#include "train/start.h"

namespace octet {
namespace {

// The last stage: training. What happens besides its steps is in the observers.
class Run {
 public:
  Run(const RunSpec& spec, RunFiles files, TaskEvaluator tasks, Env& env, Ranks& ranks)
      : log_file_(ranks), run_(spec, std::move(files), env, ranks), tasks_(std::move(tasks)) {}

  // Everything before the first step, up to the files of the run. False if nothing is left to train.
  bool start() {
    const RunSpec& spec = run_.spec;
    run_.console.print(overview_text(spec));
    if (!spec.model.resumed && run_.is_first()) show_example(spec, run_.console);
    if (const auto& resumed = spec.model.resumed; resumed && resumed->step >= spec.schedule().max_steps) {
      run_.console.print(fmt::format(
          "step {} of {} is done: nothing is left to train; a larger max_steps or num_train_epochs "
          "continues the run ({})",
          resumed->step, spec.schedule().max_steps, spec.files.run_folder()));
      return false;
    }
    const RankPlace& place = run_.ranks.place();
    run_.loader = make_train_loader(spec.loading, spec.data, spec.plan.shape.rows, place.rank, place.ranks);
    run_.ranks.progress().begin_phase("loading weights");
    Start begun = timed(run_.times.weights, [&] {
      return start_weights(run_.env, spec, run_.model, run_.console, run_.ranks);
    });
    run_.sync = std::move(begun.sync);
    if (begun.state) restore(run_, *begun.state);
    runner_.emplace(run_.model, *spec.device, *run_.loader, spec.plan.accumulation, spec.optimizer,
                    spec.penalty, run_.sync.get());
    if (const std::string reason = no_evaluation_reason(spec.loading, spec.data.data);
        !reason.empty() && spec.evaluation.is_wanted)
      log_warning("no evaluation: {}", reason);
    open_files(run_, std::move(begun.adapter_files));  // last: a start that fails leaves no folder
    log_file_.open(join_path(run_.files.folder(), fmt::format("rank_{}.log", place.rank)));
    return true;
  }

  int train_and_report() {
    make_observers();
    const int exit_code = train();
    run_.files.end_reports(exit_code);
    return exit_code;
  }

 private:
  // In the order in which each of them sees a step.
  void make_observers() {
    std::unique_ptr<RunObserver> crashes = make_crash_observer(run_);  // first: it counts crashes of the others
    observers_.push_back(make_trace_observer(run_));
    observers_.push_back(make_rank_observer(run_));
    observers_.push_back(make_cost_observer(run_));
    observers_.push_back(make_log_observer(run_));
    observers_.push_back(make_evaluation_observer(run_));
    observers_.push_back(make_task_observer(run_, std::move(tasks_)));
    // Only the first rank, and only if it has all weights whole.
    if (run_.is_first() && !run_.model.sharding().shares_weights())
      observers_.push_back(make_sample_observer(run_));
    observers_.push_back(make_saving_observer(run_));
    observers_.push_back(std::move(crashes));
    observers_.push_back(make_verdict_observer(run_));
  }

  int train() {
    Outcome& outcome = run_.outcome;
    const int64_t max_steps = run_.spec.schedule().max_steps;
    for (const auto& observer : observers_) observer->before_run();
    run_.ranks.progress().begin_phase("");
    outcome.start = start_times_text(run_.times, process_seconds());
    run_.console.print(fmt::format("ready after {}", outcome.start));
    run_.console.begin(outcome.steps, max_steps);
    for (int64_t step = outcome.steps; step < max_steps && run_.goes_on(); ++step) train_step(step);
    outcome.stopped = run_.stop_signal != 0;
    for (const auto& observer : observers_) observer->at_end();
    run_.console.finish();
    for (const auto& observer : observers_) observer->after_end();
    run_.console.print(fmt::format("\n{}", summary_text(run_.spec, outcome)));
    if (run_.spec.is_demo && run_.ended_well()) run_.console.print(what_next_text(run_.spec, outcome));
    if (run_.verdict) return *run_.verdict;
    if (run_.files.is_displaced()) return kExitFailure;
    if (!outcome.stopped) return kExitDone;
    return run_.files.saver() ? kExitRequeue : 128 + run_.stop_signal;
  }

  void train_step(int64_t step) {
    StepReport report{.step = step};
    report.has_fp8_stats = run_.spec.plan.is_fp8() && run_.spec.log.fp8_stats.is_due(step);
    StepNote note;
    const auto start = Clock::now();
    for (const auto& observer : observers_) observer->before_step(step, note);
    report.result = runner_->train_step(step, report.has_fp8_stats, note);
    report.seconds = seconds_since(start);
    for (const auto& observer : observers_) observer->after_step(report);
    for (const auto& observer : observers_) observer->after_record(report);
  }

  RankLog log_file_;
  RunContext run_;
  TaskEvaluator tasks_;
  std::optional<StepRunner> runner_;
  std::vector<std::unique_ptr<RunObserver>> observers_;
};

// The stages of a run before its first step.
RunSpec prepare_as_rank(TrainConfig keys, Env& env, Ranks& ranks, std::optional<RunLock>& lock) {
  const RankPlace& place = ranks.place();
  if (place.is_first()) tell_of_settings({&keys, 1}, runs_on_gpu(keys.device));
  ranks.progress().begin_phase("preparing the run");
  const FilesSpec files = files_spec(keys, keys.mixed_precision == Precision::Fp8);
  std::optional<Checkpoint> resumed = prepare_files(keys, files, env, ranks, lock);
  // The first rank of a node verifies its files for all of them.
  keys.verify = keys.verify && place.local_rank == 0;
  return resolve(keys, Wanted::by_train(place, std::move(resumed)));
}

int train_as_rank(const TrainConfig& keys, Env& env, Ranks& ranks) {
  const bool first = ranks.place().is_first();
  std::optional<RunLock> lock;
  const RunSpec spec = reading_input([&] { return prepare_as_rank(keys, env, ranks, lock); });
  // In this order, so that only the first rank downloads questions.
  TaskEvaluator tasks = reading_input([&] { return make_task_evaluator(spec); });
  reading_input([&] { check_prepared(spec, env, ranks); });
  if (spec.is_dry) {
    if (first) print_stdout("{}", dry_run_text(spec));
    return kExitDone;
  }
  Run run(spec, RunFiles(env, spec.files, std::move(lock), spec.model.resumed), std::move(tasks), env, ranks);
  try {
    // Ranks that have met fail together, with the words of the first that fails.
    const bool alone = ranks.place().ranks == 1;
    const bool goes_on = alone ? reading_input([&] { return run.start(); }) : run.start();
    return goes_on ? run.train_and_report() : kExitDone;
  } catch (const ConfigError&) {
    throw;
  } catch (const std::exception& error) {
    // While the groups of ranks are still there: others would only see closed connections, and report that first.
    ranks.report_failure(error.what());
    throw;
  }
}

}  // namespace

int train(TrainConfig keys, Env& env) {
  const std::unique_ptr<Ranks> ranks = join_ranks(rank_spec(keys, keys.device), to_yaml(keys));
  if (!ranks->place().is_first()) keys.progress = ConsoleMode::Plain;
  try {
    return train_as_rank(keys, env, *ranks);
  } catch (const ConfigError& error) {
    ranks->set_failure_code(kExitUsage);
    ranks->report_failure(error.what());
    throw;
  } catch (const std::exception& error) {
    ranks->report_failure(error.what());  // returns only if there are no other ranks
    throw;
  }
}

}  // namespace octet
