#include "train/trainer.h"

#include <chrono>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/log.h"
#include "report/console.h"
#include "report/metrics.h"
#include "report/tensorboard.h"
#include "report/text.h"
#include "train/checkpoint_saver.h"
#include "train/demo_exam.h"
#include "train/evaluate.h"
#include "train/exit_codes.h"
#include "train/fp8_report.h"
#include "train/generate.h"
#include "train/guards.h"
#include "train/hf_folder.h"
#include "train/overview.h"
#include "train/resume.h"
#include "train/signals.h"
#include "train/step.h"

namespace octet {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string default_run_name(const ModelConfig& model) {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char text[32];
  std::strftime(text, sizeof text, "%Y%m%d-%H%M%S", &local);
  return fmt::format("{}-{}", text, model.name);
}

// Makes the run's folder. A folder with a run in it is refused unless that run goes on: its metrics would be mixed with
// this run's.
fs::path make_run_folder(const TrainConfig& config, bool goes_on) {
  const fs::path folder = run_folder(config);
  if (!goes_on && fs::exists(folder / "metrics.jsonl")) {
    fail_config(
        "{} already holds a run; go on with it (resume: latest), choose another run_name or remove the "
        "folder",
        folder.string());
  }
  std::error_code error;
  fs::create_directories(folder, error);
  require(!error, "[{}] cannot be made: {}", folder.string(), error.message());
  return folder;
}

void write_config(const TrainConfig& config, const fs::path& folder) {
  std::ofstream file(folder / "config.yaml");
  file << to_yaml(config);
  file.close();
  require(file.good(), "[{}] cannot be written", (folder / "config.yaml").string());
}

// The resolved settings for TensorBoard's table of hyper-parameters.
HParams hparams_of(const TrainConfig& config) {
  HParams values;
  const KeyTable<TrainConfig>& table = train_keys();
  for (size_t i = 0; i < table.keys().size(); ++i) {
    const Key& key = table.keys()[i];
    if (key.transient) continue;
    const KeyValue value = table.get(config, i);
    if (const bool* flag = std::get_if<bool>(&value)) {
      values.emplace_back(key.name, *flag);
    } else if (const int64_t* integer = std::get_if<int64_t>(&value)) {
      values.emplace_back(key.name, *integer);
    } else if (const double* number = std::get_if<double>(&value)) {
      values.emplace_back(key.name, *number);
    } else {
      values.emplace_back(key.name, value_text(value));
    }
  }
  return values;
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
  Run(Setup setup, Env& env)
      : setup_(std::move(setup)),
        env_(env),
        config_(setup_.config),
        model_(*setup_.transformer),
        console_(config_.progress),
        evaluator_(make_eval_loader_factory(setup_), config_.eval_batches) {
    if (config_.run_name.empty()) config_.run_name = default_run_name(setup_.model);
  }

  int train() {
    console_.print(overview_text(setup_));
    const bool resuming = !config_.resume.empty();
    // A path may lead to another run's checkpoint; `latest` always means this run, which may have none yet.
    const std::optional<Checkpoint> checkpoint =
        resuming ? find_checkpoint(env_, config_, is_fp8()) : std::nullopt;
    const std::unique_ptr<BatchSource> loader = make_train_loader(setup_);
    loader_ = loader.get();
    prepare_weights(checkpoint);
    if (outcome_.steps >= config_.max_steps) {
      console_.print(
          fmt::format("step {} of {} is done: nothing is left to train", outcome_.steps, config_.max_steps));
      return kExitDone;
    }
    StepRunner runner(model_, *setup_.backend, *loader, config_.gradient_accumulation_steps,
                      optimizer_options(setup_),
                      {config_.penalty_type, static_cast<float>(config_.penalty_weight)});
    if (const std::string reason = no_evaluation_reason(setup_); !reason.empty()) {
      log_warning("no evaluation: {}", reason);
    }
    // Whatever can fail at the start has passed: only now is there a folder.
    const fs::path folder = make_run_folder(config_, goes_on_here(checkpoint));
    const RunLock lock(env_, folder.string());
    write_config(config_, folder);
    outcome_.run_folder = folder.string();
    open_reports(folder);
    if (config_.save_strategy == TrainConfig::SaveStrategy::Steps) {
      saver_ = std::make_unique<CheckpointSaver>(env_, checkpoint_directory(config_, is_fp8()),
                                                 SaveOptions{config_.save_total_limit, config_.save_async});
    }
    StopSignal stop;
    if (!checkpoint) first_look();

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
    // A run that lost its numbers keeps its last good checkpoint as the latest.
    if (saver_ && !verdict_ && saved_step_ != outcome_.steps) save();
    if (saver_) saver_->wait();
    stop_if_hopeless();
    console_.finish();
    last_look();
    if (verdict_) return *verdict_;
    if (!outcome_.stopped) return kExitDone;
    return saver_ && saver_->failures_in_a_row() == 0 ? kExitRequeue : 128 + stop.number();
  }

 private:
  static bool is_due(int64_t every, int64_t step) { return every > 0 && (step + 1) % every == 0; }

  bool is_fp8() const { return setup_.numerics.precision == Precision::Fp8; }
  bool wants_stats(int64_t step) const { return is_fp8() && is_due(config_.fp8_stats_steps, step); }
  bool is_save_due(int64_t step) const { return saver_ && is_due(config_.save_steps, step); }

  // Whether this run's own folder is the one that the checkpoint came from, or may hold a run that had none yet.
  bool goes_on_here(const std::optional<Checkpoint>& checkpoint) const {
    if (config_.resume.empty()) return false;
    if (!checkpoint || config_.resume == "latest") return true;
    const fs::path own = fs::weakly_canonical(run_folder(config_));
    const auto relative = fs::weakly_canonical(checkpoint->path).lexically_relative(own);
    return !relative.empty() && *relative.begin() != "..";
  }

  void prepare_weights(const std::optional<Checkpoint>& checkpoint) {
    model_.allocate();
    outcome_.allocated_bytes = model_.allocated_bytes();
    if (checkpoint) {
      resume_from(*checkpoint);
      return;
    }
    if (!config_.resume.empty())
      console_.print("resume: there is no checkpoint yet, the run starts from the beginning");
    model_.parameters().initialise(*setup_.backend, static_cast<uint64_t>(config_.seed));
    if (setup_.start) {
      const auto start = Clock::now();
      load_hf_folder(*setup_.backend, model_.parameters(), setup_.start->folder);
      console_.print(
          fmt::format("weights: {}, read in {}", setup_.start->source, human_duration(seconds_since(start))));
    }
    model_.weights_changed();
  }

  void resume_from(const Checkpoint& checkpoint) {
    const auto start = Clock::now();
    const Restored restored = restore_checkpoint(env_, checkpoint, *setup_.backend, model_);
    const TrainerState& state = restored.state;
    loader_->set_state(state.loader);
    outcome_.steps = outcome_.first_step = state.step;
    outcome_.tokens = state.tokens;
    outcome_.skipped_steps = state.skipped_steps;
    outcome_.first_loss = state.first_loss;
    outcome_.last_loss = state.last_loss;
    outcome_.first_eval = state.first_eval;
    outcome_.best_eval = best_saved_ = state.best_eval;
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
            .best_eval = best_saved_,
            .loss_window = spikes_.window(),
            .spikes_in_a_row = spikes_.spikes_in_a_row()};
  }

  void save() {
    const std::optional<double> loss = eval_step_ == outcome_.steps ? outcome_.last_eval : std::nullopt;
    const bool best = loss && *loss < best_saved_.value_or(std::numeric_limits<double>::infinity());
    if (best) best_saved_ = loss;
    CheckpointSummary summary{.precision = setup_.precision_label};
    if (loss) summary.loss = *loss;
    saver_->save(*setup_.backend, model_, state(), to_yaml(config_), summary, best);
    saved_step_ = outcome_.steps;
  }

  // metrics.jsonl and TensorBoard of a run that goes on hold nothing of the steps that will be taken again.
  void open_reports(const fs::path& folder) {
    keep_metrics_until(folder / "metrics.jsonl", outcome_.steps);
    metrics_ = std::make_unique<MetricsWriter>(folder / "metrics.jsonl");
    if (!config_.use_tensorboard) return;
    tensorboard_ = std::make_unique<TensorBoardWriter>(
        folder, outcome_.steps > 0 ? std::optional<int64_t>(outcome_.steps + 1) : std::nullopt);
    tensorboard_->hparams(hparams_of(config_));
  }

  void report(const StepResult& result, int64_t step, double seconds, bool stats) {
    const bool last = step + 1 == config_.max_steps;
    note(result, step, seconds);
    StepRecord record = make_record(result, step, seconds);
    if (stats) add_stats(record);
    // Every checkpoint carries its evaluation loss, which decides the best.
    if (is_due(config_.eval_steps, step) || is_save_due(step) || last) record.eval_loss = evaluate();
    if (is_due(config_.sample_steps, step) && !last) record.samples = {sample()};
    if (saver_) record.checkpoint = saver_->take_cost();
    const bool logged = is_due(config_.logging_steps, step) || last || record.eval_loss ||
                        !record.samples.empty() || record.loss_spike || result.skipped;
    if (logged || record.fp8_json || record.checkpoint) {
      metrics_->write(record);
      if (tensorboard_) tensorboard_->step(record);
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
    if (!result.skipped) {
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
      const std::string where = describe_nonfinite_gradients(*setup_.backend, model_.parameters());
      log_line(
          LogLevel::Error,
          fmt::format(
              "{} steps in a row up to step {} had no finite gradient; {}. Lower learning_rate (now {}){}",
              skipped_in_a_row_, outcome_.steps, where, config_.learning_rate,
              is_fp8() ? fmt::format(", raise fp8_margin (now {}), try fp8_recipe current, or add that "
                                     "layer to fp8_skip_layers",
                                     config_.fp8_margin)
                       : ""));
    } else if (saver_ && saver_->failures_in_a_row() >= kMaxFailuresInARow) {
      verdict_ = kExitSaveFailed;
      log_line(LogLevel::Error,
               fmt::format("{} checkpoints in a row could not be saved into {}; the run stops at step {}",
                           saver_->failures_in_a_row(), saver_->directory(), outcome_.steps));
    }
  }

  void add_stats(StepRecord& record) {
    const std::vector<ScaleTable::Report> reports = model_.scales().reports(*setup_.backend);
    record.fp8_json = fp8_stats_json(reports);
    saturation_.look(reports, setup_.numerics.fp8);
    if (!tensorboard_) return;
    std::vector<float> amax, scale;
    for (const ScaleTable::Report& tensor : reports) {
      amax.push_back(static_cast<float>(tensor.amax));
      scale.push_back(static_cast<float>(tensor.scale));
    }
    tensorboard_->histogram("fp8/all_amax", record.step, make_histogram(amax));
    tensorboard_->histogram("fp8/all_scales", record.step, make_histogram(scale));
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
      generator_ = std::make_unique<Generator>(model_, *setup_.backend, *setup_.tokenizer,
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
    if (saver_ && saved_step_ > outcome_.first_step) outcome_.checkpoints = saver_->directory();
    console_.print(fmt::format("\n{}", summary_text(setup_, outcome_)));
    if (config_.is_demo() && show) console_.print(kWhatNext);
  }

  static constexpr const char* kWhatNext =
      "\nwhat to try next:\n"
      "  octet train --mixed_precision bf16                the same in BF16\n"
      "  octet train --fp8_recipe block                    another FP8 recipe\n"
      "  octet train --dataset my.txt --max_steps 500      your own text\n"
      "  octet train --help                                every key\n";

  Setup setup_;
  Env& env_;
  TrainConfig& config_;
  Transformer& model_;
  Console console_;
  Evaluator evaluator_;
  BatchSource* loader_ = nullptr;
  std::unique_ptr<MetricsWriter> metrics_;
  std::unique_ptr<TensorBoardWriter> tensorboard_;
  std::unique_ptr<CheckpointSaver> saver_;
  Outcome outcome_;
  SaturationWatch saturation_;
  SpikeDetector spikes_;
  std::unique_ptr<Generator> generator_;
  DemoExam exam_;
  std::string sample_before_;
  int skipped_in_a_row_ = 0;
  int64_t saved_step_ = 0;            // the last step whose state is on disk or on its way
  int64_t eval_step_ = -1;            // the step of outcome_.last_eval
  std::optional<double> best_saved_;  // lowest evaluation loss of a saved state
  std::optional<int> verdict_;        // the exit code of a run that must not go on
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
  for (const std::string& remark : idle_settings(config)) log_warning("{}", remark);
  Setup setup = make_setup(std::move(config));
  if (const auto remark = setup.schedule.remark()) log_warning("{}", *remark);
  if (setup.config.dry_run) {
    // The plan stands there as comments, so that the output is a configuration file.
    const std::string plan = fmt::format("{}\n{}\n{}", overview_text(setup),
                                         coverage_text(*setup.transformer), schedule_text(setup.schedule));
    fmt::print("{}\n{}", to_yaml(setup.config), as_comments(plan));
    return 0;
  }
  return Run(std::move(setup), env).train();
}

}  // namespace octet
