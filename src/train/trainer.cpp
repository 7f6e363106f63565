#include "train/trainer.h"

#include <errno.h>

#include <chrono>
#include <cmath>
#include <sstream>

#include "base/log.h"
#include "base/signals.h"
#include "checkpoint/resume.h"
#include "demo/demo_exam.h"
#include "generate/generate.h"
#include "hf/hf_folder.h"
#include "plan/coverage.h"
#include "plan/overview.h"
#include "report/console.h"
#include "report/text.h"
#include "train/evaluate.h"
#include "train/exit_codes.h"
#include "train/fp8_stats.h"
#include "train/guards.h"
#include "train/run_files.h"
#include "train/step.h"
#include "train/summary.h"

namespace octet {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

OptimizerOptions optimizer_options(const Setup& setup) {
  const TrainConfig& config = setup.config;
  return {.schedule = setup.schedule,
          .beta1 = static_cast<float>(config.adam_beta1),
          .beta2 = static_cast<float>(config.adam_beta2),
          .epsilon = static_cast<float>(config.adam_epsilon),
          .weight_decay = static_cast<float>(config.weight_decay),
          .max_grad_norm = static_cast<float>(config.max_grad_norm),
          .seed = static_cast<uint64_t>(config.seed)};
}

class Run {
 public:
  // `lock` is held already where the run's folder was there before.
  Run(Setup setup, Env& env, std::optional<RunLock> lock, std::optional<Checkpoint> checkpoint)
      : setup_(std::move(setup)),
        env_(env),
        config_(setup_.config),
        model_(*setup_.transformer),
        checkpoint_(std::move(checkpoint)),
        console_(config_.progress),
        evaluator_(make_eval_loader_factory(setup_), config_.eval_batches),
        files_(env, config_, std::move(lock), checkpoint_) {}

  int train() {
    console_.print(overview_text(setup_));
    if (checkpoint_ && checkpoint_->step >= config_.max_steps) {
      console_.print(fmt::format("step {} of {} is done: nothing is left to train", checkpoint_->step,
                                 config_.max_steps));
      return kExitDone;
    }
    const StopSignal stop;
    stop_ = &stop;
    const std::unique_ptr<BatchSource> loader = make_train_loader(setup_);
    loader_ = loader.get();
    prepare_weights();
    StepRunner runner(model_, *setup_.device, *loader, config_.gradient_accumulation_steps,
                      optimizer_options(setup_),
                      {config_.penalty_type, static_cast<float>(config_.penalty_weight)});
    if (const std::string reason = no_evaluation_reason(setup_); !reason.empty()) {
      log_warning("no evaluation: {}", reason);
    }
    // Whatever can fail at the start has passed: only now is there a folder.
    files_.open({.model = setup_.model.name,
                 .steps_done = outcome_.steps,
                 .fp8 = is_fp8(),
                 .state_bytes = state_bytes(model_.parameters()),
                 .on_device = setup_.device->capabilities().separate_memory,
                 .tokenizer = setup_.tokenizer_source});
    saver_ = files_.saver();
    outcome_.run_folder = files_.folder();
    if (!checkpoint_) first_look();

    console_.begin(outcome_.steps, config_.max_steps);
    for (int64_t step = outcome_.steps; step < config_.max_steps && !stop.requested() && !verdict_; ++step) {
      const bool stats = wants_stats(step);
      const auto start = Clock::now();
      const StepResult result = runner.train_step(step, stats);
      report(result, step, seconds_since(start), stats);
      if (is_save_due(step)) save();
      stop_if_hopeless();
    }
    outcome_.stopped = stop.requested();
    last_save();
    console_.finish();
    last_look();
    if (verdict_) return *verdict_;
    if (!outcome_.stopped) return kExitDone;
    return saver_ ? kExitRequeue : 128 + stop.number();
  }

 private:
  static bool is_due(int64_t every, int64_t step) { return every > 0 && (step + 1) % every == 0; }

  bool is_fp8() const { return setup_.numerics.precision == Precision::Fp8; }
  bool wants_stats(int64_t step) const { return is_fp8() && is_due(config_.fp8_stats_steps, step); }
  bool is_save_due(int64_t step) const { return saver_ && is_due(config_.save_steps, step); }

  void prepare_weights() {
    model_.allocate();
    outcome_.allocated_bytes = model_.allocated_bytes();
    if (checkpoint_) {
      resume_from(*checkpoint_);
      return;
    }
    if (!config_.resume.empty())
      console_.print("resume: there is no checkpoint yet, the run starts from the beginning");
    model_.parameters().initialise(*setup_.device, static_cast<uint64_t>(config_.seed));
    if (setup_.start && setup_.start->has_weights) {
      const auto start = Clock::now();
      load_hf_folder(*setup_.device, model_.parameters(), setup_.start->folder);
      console_.print(
          fmt::format("weights: {}, read in {}", setup_.start->source, human_duration(seconds_since(start))));
    }
    model_.weights_changed();
  }

  void resume_from(const Checkpoint& checkpoint) {
    const auto start = Clock::now();
    const Restored restored = restore_checkpoint(env_, checkpoint, *setup_.device, model_);
    const TrainerState& state = restored.state;
    loader_->set_state(state.loader);
    outcome_.steps = outcome_.first_step = state.step;
    outcome_.tokens = state.tokens;
    outcome_.skipped_steps = state.skipped_steps;
    outcome_.first_loss = state.first_loss;
    outcome_.last_loss = state.last_loss;
    outcome_.first_eval = state.first_eval;
    outcome_.best_eval = state.best_eval;
    skipped_in_a_row_ = state.skipped_in_a_row;
    spikes_.restore(state.loss_window, state.spikes_in_a_row);
    saved_step_ = state.step;
    console_.print(fmt::format("resumed from {} after step {}: {} in {}", checkpoint.path, state.step,
                               human_bytes(static_cast<double>(checkpoint.total_bytes())),
                               human_duration(seconds_since(start))));
    for (const std::string& remark : restored.remarks) console_.print(fmt::format("  {}", remark));
    for (const std::string& change : changed_settings(checkpoint, config_)) {
      console_.print(fmt::format("  changed since: {}", change));
    }
  }

  TrainerState state() const {
    return {.step = outcome_.steps,
            .tokens = outcome_.tokens,
            .skipped_steps = outcome_.skipped_steps,
            .skipped_in_a_row = skipped_in_a_row_,
            .loader = loader_->state(),
            .first_loss = outcome_.first_loss,
            .last_loss = outcome_.last_loss,
            .first_eval = outcome_.first_eval,
            .best_eval = {},  // the saver knows
            .loss_window = spikes_.window(),
            .spikes_in_a_row = spikes_.spikes_in_a_row()};
  }

  void save() {
    if (eval_step_ == outcome_.steps && outcome_.last_eval && !std::isfinite(*outcome_.last_eval)) {
      log_warning("step {}: the evaluation is not finite; this state is not saved", outcome_.steps);
      return;
    }
    CheckpointSummary summary{.precision = setup_.precision_label};
    if (eval_step_ == outcome_.steps && outcome_.last_eval) summary.loss = *outcome_.last_eval;
    saver_->save(*setup_.device, model_, state(), to_yaml(config_), summary);
    saved_step_ = outcome_.steps;
  }

  // The state at the end. A run that lost its numbers keeps its last good checkpoint as the latest.
  void last_save() {
    if (!saver_) return;
    if (verdict_) {
      saver_->wait();
      return;
    }
    // A scheduler gives some 90 seconds. Where a large state is just being written, that one must do.
    constexpr double kSlowSave = 20;
    const bool slow =
        saver_->is_writing() && saved_step_ > 0 && (!slowest_save_ || *slowest_save_ > kSlowSave);
    if (saved_step_ != outcome_.steps && !(outcome_.stopped && slow)) save();
    saver_->wait();
    if (saver_->failures_in_a_row() > 0 && saver_->failures_in_a_row() < kMaxFailuresInARow) {
      log_warning("the last checkpoint is tried once more");
      save();
      saver_->wait();
    }
    if (saver_->failures_in_a_row() > 0) {
      verdict_ = kExitSaveFailed;
      log_line(LogLevel::Error, fmt::format("the state of step {} is not saved", outcome_.steps));
    } else if (saved_step_ != outcome_.steps) {
      log_warning("{} steps since the checkpoint of step {} are not saved", outcome_.steps - saved_step_,
                  saved_step_);
    }
    outcome_.save = saver_->last_cost();
  }

  void report(const StepResult& result, int64_t step, double seconds, bool stats) {
    const bool last = step + 1 == config_.max_steps;
    note(result, step, seconds);
    StepRecord record = make_record(result, step, seconds);
    if (stats) add_stats(record);
    // Every checkpoint carries its evaluation loss, which decides the best.
    // Somebody who asked for an end does not wait for either.
    const bool stopping = stop_->requested();
    if (!stopping && (is_due(config_.eval_steps, step) || is_save_due(step) || last))
      record.eval_loss = evaluate();
    if (!stopping && is_due(config_.sample_steps, step) && !last) record.samples = {sample()};
    if (saver_) record.checkpoint = saver_->take_cost();
    if (record.checkpoint) {
      slowest_save_ = std::max(slowest_save_.value_or(0), record.checkpoint->write_seconds);
    }
    const bool logged = is_due(config_.logging_steps, step) || last || record.eval_loss ||
                        !record.samples.empty() || record.loss_spike || result.skipped;
    if (logged || record.fp8_json || record.checkpoint) {
      files_.metrics().write(record);
      if (TensorBoardWriter* board = files_.tensorboard()) board->step(record);
    }
    if (logged) console_.step(record);
    console_.advance(step + 1);
  }

  StepRecord make_record(const StepResult& result, int64_t step, double seconds) {
    StepRecord record;
    record.step = step + 1;
    record.max_steps = config_.max_steps;
    record.epoch = loader_->epoch();
    record.loss = result.loss;
    if (config_.penalty_type != PenaltyKind::None) record.penalty = result.penalty;
    record.lr = result.learning_rate;
    record.grad_norm = result.grad_norm;
    record.step_ms = 1e3 * seconds;
    record.tokens_per_second = static_cast<double>(result.tokens) / seconds;
    record.tokens = outcome_.tokens;
    record.precision = setup_.precision_label;
    record.skipped_steps = outcome_.skipped_steps;
    if (!result.skipped && std::isfinite(result.loss)) {
      if (const auto spike = spikes_.look(result.loss)) {
        record.loss_spike = spike->deviations;
        log_warning(
            "step {}: the loss {:.4f} is a spike, {:.1f} deviations above the last losses (mean {:.4f})",
            step + 1, result.loss, spike->deviations, spike->mean);
      }
    }
    return record;
  }

  void note(const StepResult& result, int64_t step, double seconds) {
    if (step == 0) outcome_.first_loss = result.loss;
    outcome_.last_loss = result.loss;
    outcome_.steps = step + 1;
    outcome_.seconds += seconds;
    outcome_.tokens += result.tokens;
    outcome_.tokens_timed += result.tokens;
    skipped_in_a_row_ = result.skipped ? skipped_in_a_row_ + 1 : 0;
    if (!result.skipped) return;
    ++outcome_.skipped_steps;
    log_warning(
        "step {}: the gradient is not finite (loss {}, norm {}); the step is skipped, weights are unchanged",
        step + 1, result.loss, result.grad_norm);
  }

  void stop_if_hopeless() {
    if (verdict_) return;
    if (skipped_in_a_row_ >= kMaxFailuresInARow) {
      verdict_ = kExitNotFinite;
      const std::string where = describe_nonfinite_gradients(*setup_.device, model_.parameters());
      log_line(LogLevel::Error,
               no_finite_gradient_text(skipped_in_a_row_, outcome_.steps, where, config_.learning_rate,
                                       is_fp8() ? std::optional(config_.fp8_margin) : std::nullopt));
    } else if (saver_ && saver_->failures_in_a_row() >= kMaxFailuresInARow) {
      verdict_ = kExitSaveFailed;
      log_line(LogLevel::Error,
               fmt::format("{} checkpoints in a row could not be saved into {}; the run stops at step {}",
                           saver_->failures_in_a_row(), saver_->directory(), outcome_.steps));
    }
  }

  void add_stats(StepRecord& record) {
    const std::vector<ScaleTable::Report> reports = model_.scales().reports(*setup_.device);
    record.fp8_json = fp8_stats_json(reports);
    saturation_.look(reports, setup_.numerics.fp8);
    TensorBoardWriter* board = files_.tensorboard();
    if (!board) return;
    std::vector<float> amax, scale;
    for (const ScaleTable::Report& tensor : reports) {
      amax.push_back(static_cast<float>(tensor.amax));
      scale.push_back(static_cast<float>(tensor.scale));
    }
    board->histogram("fp8/all_amax", record.step, make_histogram(amax));
    board->histogram("fp8/all_scales", record.step, make_histogram(scale));
  }

  std::optional<double> evaluate() {
    const std::optional<double> loss = evaluator_.loss(model_, config_.fp8_eval);
    if (!loss) return loss;
    if (!outcome_.first_eval) outcome_.first_eval = loss;
    outcome_.last_eval = loss;
    eval_step_ = outcome_.steps;
    outcome_.best_eval = std::min(outcome_.best_eval.value_or(*loss), *loss);
    return loss;
  }

  Generator& generator() {
    if (!generator_) {
      generator_ = std::make_unique<Generator>(model_, *setup_.device, *setup_.tokenizer,
                                               sampling_rows(config_), config_.max_seq_length);
      outcome_.allocated_bytes += generator_->allocated_bytes();
    }
    return *generator_;
  }

  std::string sample() {
    const SampleOptions options{.max_tokens = config_.sample_tokens,
                                .temperature = config_.sample_temperature,
                                .seed = static_cast<uint64_t>(config_.seed),
                                .stop = config_.is_demo() ? "\n" : ""};
    return config_.sample_prompt + generator().continue_prompt(config_.sample_prompt, options);
  }

  void first_look() {
    if (config_.is_demo()) exam_.before(generator());
    if (config_.sample_steps > 0) sample_before_ = sample();
    outcome_.first_eval = evaluate();
  }

  void last_look() {
    // Somebody who stopped the run wants it to end.
    const bool show = outcome_.steps > outcome_.first_step && !outcome_.stopped && !verdict_;
    if (config_.sample_steps > 0 && show) {
      if (!sample_before_.empty()) console_.print(fmt::format("\nbefore: {}", terminal_safe(sample_before_)));
      console_.print(fmt::format("after:  {}", terminal_safe(sample())));
    }
    if (config_.is_demo() && show) {
      console_.print(exam_.after(generator()));
      outcome_.demo_score = exam_.score();
    }
    if (saver_ && outcome_.save) outcome_.checkpoints = saver_->directory();
    console_.print(fmt::format("\n{}", summary_text(setup_, outcome_)));
    if (config_.is_demo() && show) console_.print(what_next());
  }

  // For somebody who has just seen the demo; with the program's name as it was called.
  std::string what_next() const {
    const char* octet = program_invocation_name;
    return fmt::format(
        "\nwhat to try next:\n"
        "  {0} generate {1} --prompt 'Leo has 3 red balls. Mia gives him 2 more. Now Leo has' --temperature "
        "0\n"
        "  {0} train --mixed_precision bf16                the same in BF16\n"
        "  {0} plot runs/*                                 runs side by side\n"
        "  {0} train --dataset my.txt --max_steps 500      your own text\n"
        "  {0} train --help                                every key\n",
        octet, outcome_.run_folder);
  }

  Setup setup_;
  Env& env_;
  TrainConfig& config_;
  Transformer& model_;
  std::optional<Checkpoint> checkpoint_;  // that the run goes on from
  Console console_;
  Evaluator evaluator_;
  const StopSignal* stop_ = nullptr;
  BatchSource* loader_ = nullptr;
  RunFiles files_;
  CheckpointSaver* saver_ = nullptr;  // of files_; null: nothing is saved
  Outcome outcome_;
  SaturationWatch saturation_;
  SpikeDetector spikes_;
  std::unique_ptr<Generator> generator_;
  DemoExam exam_;
  std::string sample_before_;
  int skipped_in_a_row_ = 0;
  int64_t saved_step_ = 0;              // the last step whose state is on disk or on its way
  int64_t eval_step_ = -1;              // the step of outcome_.last_eval
  std::optional<double> slowest_save_;  // seconds
  std::optional<int> verdict_;          // the exit code of a run that must not go on
};

std::string as_comments(const std::string& text) {
  std::string result;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    result += line.empty() ? "#\n" : fmt::format("# {}\n", line);
  return result;
}

}  // namespace

int train(TrainConfig config, Env& env) {
  warn_of_idle_settings({&config, 1}, runs_on_gpu(config));
  std::optional<RunLock> lock;
  std::optional<Checkpoint> checkpoint;
  if (!config.resume.empty()) {
    // Before the checkpoint is chosen: whoever holds the run may be about to save a newer one.
    const std::string folder = run_folder(config);
    if (!config.dry_run && !config.run_name.empty() && env.is_directory(folder)) lock.emplace(env, folder);
    checkpoint = find_checkpoint(env, config);
  }
  Setup setup = make_setup(std::move(config), checkpoint ? &*checkpoint : nullptr);
  if (const auto remark = setup.schedule.remark()) log_warning("{}", *remark);
  if (setup.config.dry_run) {
    // The plan stands there as comments, so that the output is a configuration file.
    const std::string plan = fmt::format("{}\n{}\n{}", overview_text(setup),
                                         coverage_text(*setup.transformer), schedule_text(setup.schedule));
    fmt::print("{}\n{}", to_yaml(setup.config), as_comments(plan));
    return 0;
  }
  return Run(std::move(setup), env, std::move(lock), std::move(checkpoint)).train();
}

}  // namespace octet
