#include "train/trainer.h"

#include <cstdlib>
#include <fstream>

#include "base/clock.h"
#include "base/exit_codes.h"
#include "base/input_errors.h"
#include "base/log.h"
#include "base/print.h"
#include "base/signals.h"
#include "checkpoint/chat_style.h"
#include "checkpoint/resume.h"
#include "config/step_range.h"
#include "io/mapping_faults.h"
#include "plan/data_loaders.h"
#include "plan/data_prepare.h"
#include "plan/device_choice.h"
#include "plan/overview.h"
#include "report/text.h"
#include "train/cost_meter.h"
#include "train/evaluate.h"
#include "train/evaluate_tasks.h"
#include "train/interval.h"
#include "train/rank_prepare.h"
#include "train/rank_start.h"
#include "train/rank_watch.h"
#include "train/samples.h"
#include "train/saving.h"
#include "train/start.h"
#include "train/step_log.h"
#include "train/step_trace.h"
#include "train/summary.h"

namespace octet {
namespace {

OptimizerOptions optimizer_options(const TrainConfig& keys, const ScheduleConfig& schedule) {
  return {.schedule = schedule,
          .beta1 = static_cast<float>(keys.adam_beta1),
          .beta2 = static_cast<float>(keys.adam_beta2),
          .epsilon = static_cast<float>(keys.adam_epsilon),
          .weight_decay = static_cast<float>(keys.weight_decay),
          .max_grad_norm = static_cast<float>(keys.max_grad_norm),
          .seed = static_cast<uint64_t>(keys.seed),
          .loraplus_ratio = static_cast<float>(keys.loraplus_lr_ratio)};
}

// The last stage: training, with logging, evaluation, samples and checkpoints.
class Run {
 public:
  Run(const ResolvedRun& stages, RunFiles files, TaskEvaluator tasks, Env& env, Ranks& ranks)
      : stages_(stages),
        keys_(stages.keys),
        max_steps_(stages.schedule.max_steps),
        env_(env),
        ranks_(ranks),
        log_file_(ranks),
        model_(stages.model.config, stages.plan.shape, stages.plan.numerics, *stages.device,
               stages.plan.finetuning),
        files_(std::move(files)),
        console_(keys_.progress),
        eval_interval_(make_interval(keys_.eval_strategy, keys_.eval_steps, keys_.evals_per_epoch,
                                     stages.steps_per_epoch())),
        evaluator_(make_eval_sets(keys_, stages.data.data.eval, stages.data.tokenizer.get()),
                   keys_.eval_batches),
        tasks_(std::move(tasks)),
        samples_(stages, model_),
        log_(stages, files_, console_, costs_) {}

  // Everything before the first step, up to the files of the run. False if nothing is left to train.
  bool start() {
    console_.print(overview_text(stages_));
    if (!stages_.model.resumed && is_first()) show_example();
    if (ranks_.place().ranks > 1) {
      evaluator_.share(ranks_.host());
      tasks_.share(ranks_.host());
    }
    const std::optional<Checkpoint>& resumed = stages_.model.resumed;
    if (resumed && resumed->step >= max_steps_) {
      console_.print(fmt::format(
          "step {} of {} is done: nothing is left to train; a larger max_steps or num_train_epochs "
          "continues the run ({})",
          resumed->step, max_steps_, run_folder(keys_)));
      return false;
    }
    const RankPlace& place = ranks_.place();
    loader_ = make_train_loader(keys_, stages_.data, stages_.plan.shape.rows, place.rank, place.ranks);
    ranks_.progress().begin_phase("loading weights");
    Start begun =
        timed(times_.weights, [&] { return start_weights(env_, stages_, model_, console_, ranks_); });
    sync_ = std::move(begun.sync);
    if (begun.state) restore(*begun.state);
    extra_files_ = std::move(begun.adapter_files);
    runner_.emplace(model_, *stages_.device, *loader_, stages_.plan.accumulation,
                    optimizer_options(keys_, stages_.schedule),
                    PenaltyOptions{keys_.penalty_type, static_cast<float>(keys_.penalty_weight)},
                    sync_.get());
    if (const std::string reason = no_evaluation_reason(keys_, stages_.data.data);
        !reason.empty() && keys_.eval_strategy != TrainConfig::Strategy::No)
      log_warning("no evaluation: {}", reason);
    open_files();  // last: a start that fails leaves no folder
    return true;
  }

  int train_and_report() {
    const int exit_code = train();
    files_.end_reports(exit_code);
    return exit_code;
  }

 private:
  int train() {
    RankWatch watch(sync_.get(), keys_.check_ranks_steps);
    if (makes_samples()) samples_.reserve();
    if (stages_.model.resumed) {
      checkpoint_exists();
    } else {
      first_look();
    }
    ranks_.progress().begin_phase("");
    StepTrace trace(steps_to_trace(keys_.profile_steps, outcome_.steps), *stages_.device, ranks_.place().rank,
                    join_path(files_.folder(), fmt::format("trace-rank{}.json", ranks_.place().rank)));
    costs_.begin(GpuSampler::start(gpu_of_rank(keys_, ranks_.place().local_rank)),
                 keys_.pretend_ranks > 0 ? 1 : ranks_.place().ranks);

    outcome_.start = start_times_text(times_, process_seconds());
    console_.print(fmt::format("ready after {}", outcome_.start));
    console_.begin(outcome_.steps, max_steps_);
    for (int64_t step = outcome_.steps;
         step < max_steps_ && stop_signal_ == 0 && !verdict_ && !files_.is_displaced(); ++step) {
      const bool stats = wants_stats(step);
      trace.begin_step(step + 1);
      const auto start = Clock::now();
      ranks_.progress().begin_step(step + 1);
      StepNote note = watch.note(step, stop_.number(), saving_->failures_in_a_row());
      costs_.begin_step(note);
      StepResult result = runner_->train_step(step, stats, note);
      costs_.end_step(result);
      watch.look(step, result);
      if (keys_.pretend_ranks > 0) result.tokens /= keys_.pretend_ranks;  // those of this rank alone
      stop_signal_ = watch.agreed_signal(stop_.number());
      save_failures_ = watch.agreed_failures(saving_->failures_in_a_row());
      report(result, step, seconds_since(start), stats);
      if (saving_->is_due(step)) {
        restore_files();
        saving_->save(state(), fresh_eval());
      }
      note_published();
      write_progress();
      stop_if_hopeless();
      trace.end_step(step + 1);
    }
    trace.finish();
    costs_.finish(&ranks_.host());
    outcome_.stopped = stop_signal_ != 0;
    log_.write_last();
    ranks_.progress().begin_phase("saving the last checkpoint");
    restore_files();
    last_save();
    if (crashes_ && !files_.is_displaced()) crashes_->finish();
    console_.finish();
    last_look();
    if (verdict_) return *verdict_;
    if (files_.is_displaced()) return kExitFailure;
    if (!outcome_.stopped) return kExitDone;
    return saving_->is_on() ? kExitRequeue : 128 + stop_signal_;
  }

  bool wants_stats(int64_t step) const {
    return stages_.plan.is_fp8() && Interval{.steps = keys_.fp8_stats_steps}.is_due(step);
  }

  void restore(const TrainerState& state) {
    loader_->set_state(state.loader);
    outcome_.steps = outcome_.first_step = state.step;
    outcome_.tokens = state.tokens;
    outcome_.skipped_steps = state.skipped_steps;
    outcome_.first_loss = state.first_loss;
    outcome_.last_loss = state.last_loss;
    outcome_.first_eval = state.first_eval;
    outcome_.best_eval = state.best_eval;
    outcome_.skipped_in_a_row = state.skipped_in_a_row;
    log_.spikes().restore(state.loss_window, state.spikes_in_a_row);
    log_.red_flags().restore(state.first_level, state.first_loss, state.loss_window, state.step);
  }

  TrainerState state() const {
    return {.step = outcome_.steps,
            .tokens = outcome_.tokens,
            .skipped_steps = outcome_.skipped_steps,
            .skipped_in_a_row = outcome_.skipped_in_a_row,
            .loader = loader_->state(),
            .first_loss = outcome_.first_loss,
            .last_loss = outcome_.last_loss,
            .first_eval = outcome_.first_eval,
            .best_eval = {},  // the saver knows
            .loss_window = log_.spikes().window(),
            .spikes_in_a_row = log_.spikes().spikes_in_a_row(),
            .sequences_per_step = stages_.plan.sequences_per_step(),
            .first_level = log_.red_flags().first_level()};
  }

  bool is_first() const { return ranks_.place().is_first(); }
  // Only the first rank, and only if it has all weights whole.
  bool makes_samples() const { return is_first() && !model_.sharding().shares_weights(); }

  std::optional<RankSaving> rank_saving() {
    if (!sync_ || ranks_.place().ranks == 1) return std::nullopt;
    return RankSaving{.host = &ranks_.host(),
                      .sharding = model_.sharding(),
                      .gather = [this](Tensor parts, Tensor part,
                                       std::string_view what) { sync_->gather(parts, part, what); },
                      .merge_slots = [this] { sync_->merge_slots(); }};
  }

  // From now on a failure of any rank is worth another start.
  void checkpoint_exists() {
    const bool is_worth = saving_->is_on() && !(crashes_ && crashes_->is_hopeless());
    if (is_worth) ranks_.set_failure_code(kExitRequeue);
    // All ranks end with the same code. A process on its own has no launcher that knows this one.
    set_mapping_fault_advice("; the last checkpoint is whole, and --resume latest continues from it",
                             is_worth && ranks_.place().ranks > 1 ? kExitRequeue : kExitFailure);
  }

  void note_published() {
    if (!saving_->has_published()) return;
    if (crashes_) crashes_->saved();
    checkpoint_exists();
  }

  // For a launcher that starts a run again only if it had made progress.
  void write_progress() const {
    // Every node has a launcher. The file needs no sync: it is of no use after a crash of the machine.
    if (const char* path = std::getenv("OCTET_PROGRESS_FILE"); path && ranks_.place().local_rank == 0)
      std::ofstream(path) << outcome_.steps << "\n";
  }

  void open_files() {
    // What the model must be asked with afterwards.
    if (const auto chat = stages_.data.data.chat())
      extra_files_.push_back({checkpoint_file::kChat, to_chat_json(*chat)});
    const RunFiles::About about{.model = stages_.model.config.name,
                                .plan_json = plan_facts_json(plan_facts_of(stages_, model_)),
                                .steps_done = outcome_.steps,
                                .state_bytes = state_bytes(model_.parameters()),
                                .on_device = stages_.device->capabilities().separate_memory,
                                .tokenizer = stages_.data.tokenizer_source,
                                .texts = std::move(extra_files_),
                                .ranks = rank_saving()};
    if (is_first()) files_.open(about);
    const EarlierTotals& earlier = files_.earlier();
    log_.red_flags().set_raised(earlier.red_flags);
    if (outcome_.steps > 0 || earlier.device_seconds)
      costs_.restore(earlier.device_seconds.value_or(0), earlier.energy_joules);
    const std::string name = ranks_.host().from_first("run name", files_.config().run_name);
    if (!is_first()) files_.join(about, name);
    log_file_.open(join_path(files_.folder(), fmt::format("rank_{}.log", ranks_.place().rank)));
    if (ranks_.place().ranks > 1) {
      crashes_.emplace(env_, ranks_, files_.folder(), outcome_.steps);
      if (const int count = crashes_->crashes(); count > 0)
        log_warning("{} from step {} crashed",
                    count == 1 ? "the last start" : fmt::format("the last {} starts", count), outcome_.steps);
    }
    outcome_.run_folder = files_.folder();
    saving_.emplace(stages_, model_, files_.saver(), to_yaml(files_.config()), outcome_.steps,
                    ranks_.place().ranks > 1 ? &ranks_.host() : nullptr);
  }

  void report(const StepResult& result, int64_t step, double seconds, bool stats) {
    const bool last = step + 1 == max_steps_;
    note(result, step, seconds);
    StepRecord record = log_.make_record(result, step, seconds, loader_->epoch(), outcome_);
    record.memory_bytes = model_.allocated_bytes() + samples_.allocated_bytes();
    if (stats) log_.add_fp8_stats(record, model_);
    // Every checkpoint has an evaluation loss, because the lowest one decides which checkpoint is the best.
    // A run that was asked to stop makes neither evaluations nor samples.
    const bool stopping = stop_signal_ != 0;
    if (!stopping && (eval_interval_.is_due(step) || saving_->is_due(step) || last)) add_evaluation(record);
    if (!stopping && !tasks_.empty() && (task_interval().is_due(step) || last)) add_task_scores(record);
    if (!stopping && makes_samples() && samples_.is_due(step, record.eval_loss.has_value())) {
      ranks_.progress().begin_phase("generating samples");
      const TraceSpan span("training", "generate samples");
      if (sync_) sync_->settle();
      if (auto text = samples_.make()) record.samples = {*std::move(text)};
      ranks_.progress().begin_phase("");
    }
    record.checkpoint = saving_->take_cost();
    const bool shown = Interval{.steps = keys_.logging_steps}.is_due(step) || last || record.eval_loss ||
                       !record.task_scores.empty() || !record.samples.empty() || record.loss_spike ||
                       record.grad_norm_spike || result.skipped;
    log_.write(std::move(record), shown);
  }

  void note(const StepResult& result, int64_t step, double seconds) {
    if (step == 0) outcome_.first_loss = result.loss;
    outcome_.last_loss = result.loss;
    outcome_.steps = step + 1;
    outcome_.seconds += seconds;
    outcome_.tokens += result.tokens;
    outcome_.tokens_timed += result.tokens;
    outcome_.skipped_in_a_row = result.skipped ? outcome_.skipped_in_a_row + 1 : 0;
    if (!result.skipped) return;
    ++outcome_.skipped_steps;
    log_warning(
        "step {}: the gradient is not finite (loss {}, norm {}); the step is skipped and changes no weight",
        step + 1, result.loss, result.grad_norm);
  }

  std::optional<Evaluation> evaluate() {
    if (keys_.eval_strategy == TrainConfig::Strategy::No) return std::nullopt;
    const TraceSpan span("training", "evaluate");
    std::optional<Evaluation> evaluation = evaluator_.evaluate(model_, keys_.fp8_eval);
    if (!evaluation) return evaluation;
    const double loss = evaluation->loss;
    if (!outcome_.first_eval) outcome_.first_eval = loss;
    outcome_.last_eval = loss;
    eval_step_ = outcome_.steps;
    outcome_.best_eval = std::min(outcome_.best_eval.value_or(loss), loss);
    return evaluation;
  }
  void add_evaluation(StepRecord& record) {
    const std::optional<Evaluation> evaluation = evaluate();
    if (!evaluation) return;
    record.eval_loss = evaluation->loss;
    for (const auto& [name, part] : evaluation->parts) record.eval_losses.emplace_back(name, part.loss);
  }
  Interval task_interval() const {
    return keys_.eval_task_steps > 0 ? Interval{.steps = keys_.eval_task_steps} : eval_interval_;
  }
  void add_task_scores(StepRecord& record) {
    ranks_.progress().begin_phase("evaluating tasks");
    // A signal ends it without scores: the run stops after the next step.
    const auto stops = [this] { return stop_.number() != 0; };
    record.task_scores = named_scores(tasks_.evaluate(model_, keys_.fp8_eval, stops));
    ranks_.progress().begin_phase("");
  }
  // The evaluation loss of the current weights; empty if they changed after the last evaluation.
  std::optional<double> fresh_eval() const {
    return eval_step_ == outcome_.steps ? outcome_.last_eval : std::nullopt;
  }

  void end_not_finite() {
    verdict_ = kExitNotFinite;
    const bool has_penalty = keys_.penalty_type != PenaltyKind::None;
    log_line(LogLevel::Error,
             no_finite_gradient_text(
                 {.steps_in_a_row = outcome_.skipped_in_a_row,
                  .step = outcome_.steps,
                  .gradients = describe_nonfinite_gradients(*stages_.device, model_.parameters()),
                  .weights = describe_nonfinite_weights(*stages_.device, model_.parameters()),
                  .was_trained = outcome_.skipped_steps < outcome_.steps,
                  .learning_rate = keys_.learning_rate,
                  .penalty_weight = has_penalty ? keys_.penalty_weight : 0,
                  .fp8_margin = stages_.plan.is_fp8() ? std::optional(keys_.fp8_margin) : std::nullopt}));
  }

  void stop_if_hopeless() {
    // A run that ends without a single update has trained nothing, however short it was.
    const bool is_over = outcome_.steps == max_steps_ && stop_signal_ == 0;
    if (outcome_.skipped_in_a_row >= kMaxFailuresInARow ||
        (is_over && outcome_.skipped_steps == outcome_.steps)) {
      end_not_finite();
    } else if (const int failures = sync_ ? save_failures_ : saving_->failures_in_a_row();
               failures >= kMaxFailuresInARow) {
      verdict_ = kExitSaveFailed;
      log_line(LogLevel::Error,
               fmt::format("{} checkpoints in a row could not be saved into {}; the run stops at step {}",
                           failures, saving_->directory(), outcome_.steps));
    }
  }

  // All ranks save into the same folder, whatever somebody has done to that of the run meanwhile.
  void restore_files() {
    const bool is_new = files_.restore_if_gone();
    const std::string name =
        ranks_.host().from_first("run with a new folder", is_new ? files_.config().run_name : "");
    if (name.empty()) return;
    files_.save_as(name);
    saving_->start_anew(to_yaml(files_.config()));
    outcome_.run_folder = files_.folder();
  }

  // Saves the state at the end. A run that became non-finite keeps its last good checkpoint as the latest.
  void last_save() {
    if (verdict_) {
      saving_->finish();
    } else if (!saving_->save_last(state(), fresh_eval(), outcome_.stopped)) {
      verdict_ = kExitSaveFailed;
    }
    outcome_.save_failed = verdict_ == kExitSaveFailed;
    outcome_.save = saving_->last_cost();
    if (outcome_.save) outcome_.checkpoints = saving_->directory();
  }

  void show_example() {
    const DataChoice& data = stages_.data;
    if (data.data.train.empty() || !data.data.train[0].note || data.tokenizer_source.empty()) return;
    console_.print_coloured(fmt::format(
        "\n{}", first_example_text(*data.data.train[0].note, *data.tokenizer, console_.traits().color)));
  }

  void first_look() {
    const PhaseTimer timer(times_.evaluation);
    if (sync_) sync_->settle();
    if (makes_samples()) samples_.before();
    evaluate();
  }

  void last_look() {
    // A run that was stopped ends without samples.
    const bool show = outcome_.steps > outcome_.first_step && !outcome_.stopped && !verdict_;
    if (show && makes_samples()) {
      if (sync_) sync_->settle();
      outcome_.demo_score = samples_.after(console_);
    }
    outcome_.device_seconds = costs_.device_seconds();
    outcome_.energy_joules = costs_.energy_joules();
    outcome_.red_flags = log_.red_flags().raised();
    outcome_.allocated_bytes = model_.allocated_bytes() + samples_.allocated_bytes();
    console_.print(fmt::format("\n{}", summary_text(stages_, outcome_)));
    if (keys_.is_demo() && show) console_.print(what_next_text(stages_, outcome_));
  }

  const ResolvedRun& stages_;
  const TrainConfig& keys_;
  const int64_t max_steps_;
  StartTimes times_ = stages_.times;
  Env& env_;
  Ranks& ranks_;
  RankLog log_file_;
  Transformer model_;
  std::unique_ptr<RankSync> sync_;  // null if no ranks share
  RunFiles files_;  // after the model: a save that is still being written looks at its parameters
  Console console_;
  const StopSignal stop_;
  const Interval eval_interval_;
  Evaluator evaluator_;
  TaskEvaluator tasks_;
  std::unique_ptr<BatchSource> loader_;
  Samples samples_;
  CostMeter costs_;
  StepLog log_;
  std::optional<StepRunner> runner_;
  std::optional<Saving> saving_;
  Outcome outcome_;
  std::vector<NamedText> extra_files_;  // for the checkpoints
  std::optional<CrashCounter> crashes_;
  int save_failures_ = 0;       // in a row, on any rank, as all ranks knew before the last step
  int stop_signal_ = 0;         // that all ranks have agreed to follow
  int64_t eval_step_ = -1;      // the step of outcome_.last_eval
  std::optional<int> verdict_;  // the exit code of a run that must stop
};

int train_as_rank(const TrainConfig& keys, Env& env, Ranks& ranks) {
  const bool first = ranks.place().is_first();
  std::optional<RunLock> lock;
  const ResolvedRun stages = reading_input([&] { return prepare_as_rank(keys, env, ranks, lock); });
  // In this order, so that only the first rank downloads questions.
  TaskEvaluator tasks = reading_input([&] { return make_task_evaluator(stages); });
  reading_input([&] { check_prepared(stages, env, ranks); });
  if (stages.keys.dry_run) {
    if (first) print_stdout("{}", dry_run_text(stages));
    return kExitDone;
  }
  RunFiles files(env, stages.config, stages.plan.is_fp8(), std::move(lock), stages.model.resumed);
  Run run(stages, std::move(files), std::move(tasks), env, ranks);
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
  const std::unique_ptr<Ranks> ranks = join_ranks(keys);
  if (!ranks->place().is_first()) keys.progress = TrainConfig::Progress::Plain;
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
