#include "train/trainer.h"

#include <chrono>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/log.h"
#include "data/demo_stories.h"
#include "data/prefetcher.h"
#include "report/console.h"
#include "report/metrics.h"
#include "report/text.h"
#include "train/evaluate.h"
#include "train/fp8_report.h"
#include "train/generate.h"
#include "train/hf_folder.h"
#include "train/overview.h"
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

// Makes the run's folder. A folder with a run in it is refused: its metrics would be mixed with this run's.
fs::path make_run_folder(const TrainConfig& config) {
  const fs::path folder = fs::path(config.output_dir) / config.run_name;
  if (fs::exists(folder / "metrics.jsonl")) {
    fail_config("{} already holds a run; choose another run_name or remove the folder", folder.string());
  }
  std::error_code error;
  fs::create_directories(folder, error);
  require(!error, "[{}] cannot be made: {}", folder.string(), error.message());
  std::ofstream file(folder / "config.yaml");
  file << to_yaml(config);
  file.close();
  require(file.good(), "[{}] cannot be written", (folder / "config.yaml").string());
  return folder;
}

// The demo's stories are short and each stands on its own; other text is one stream.
std::optional<int32_t> document_end(const Setup& setup) {
  return setup.config.is_demo() ? setup.tokenizer->eos() : std::nullopt;
}

std::unique_ptr<BatchSource> make_loader(const Setup& setup) {
  const TrainConfig& config = setup.config;
  LoaderOptions options{.rows = config.per_device_train_batch_size,
                        .length = config.max_seq_length,
                        .order = config.data_order == TrainConfig::DataOrder::Random
                                     ? SampleOrder::RandomCrops
                                     : SampleOrder::Sequential,
                        .seed = static_cast<uint64_t>(config.seed)};
  options.eos = document_end(setup);
  options.respect_documents = options.align_to_documents = options.eos.has_value();
  return std::make_unique<Prefetcher>(std::make_unique<Loader>(setup.data.train, options));
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

// The built-in demo's exam: unseen stories whose last sentence the model must finish exactly.
constexpr int64_t kExamCases = 48;
constexpr int64_t kExamShown = 4;  // with the answer of the untrained model beside it
constexpr uint64_t kExamSeed = 20240607;

class Run {
 public:
  explicit Run(Setup setup)
      : setup_(std::move(setup)),
        config_(setup_.config),
        model_(*setup_.transformer),
        console_(static_cast<ConsoleMode>(config_.progress)),
        evaluator_(setup_.data.eval, config_.eval_batches, document_end(setup_)) {
    if (config_.run_name.empty()) config_.run_name = default_run_name(setup_.model);
  }

  int train() {
    console_.print(overview_text(setup_));
    prepare_weights();
    const std::unique_ptr<BatchSource> loader = make_loader(setup_);
    StepRunner runner(model_, *setup_.backend, *loader, config_.gradient_accumulation_steps,
                      optimizer_options(setup_),
                      {config_.penalty_type, static_cast<float>(config_.penalty_weight)});
    if (setup_.data.eval.size() < config_.max_seq_length + 1) {
      log_warning("no evaluation: {} tokens are held out, one sequence needs {}", setup_.data.eval.size(),
                  config_.max_seq_length + 1);
    }
    // Whatever can fail at the start has passed: only now is there a folder.
    const fs::path folder = make_run_folder(config_);
    outcome_.run_folder = folder.string();
    MetricsWriter metrics(folder / "metrics.jsonl");
    StopSignal stop;
    first_look();

    console_.begin(0, config_.max_steps);
    for (int64_t step = 0; step < config_.max_steps && !stop.requested(); ++step) {
      const bool last = step + 1 == config_.max_steps;
      const bool stats = wants_stats(step);
      const auto start = Clock::now();
      const StepResult result = runner.train_step(step, stats);
      const double seconds = seconds_since(start);
      note(result, step, seconds);

      StepRecord record = make_record(result, step, seconds, loader->epoch());
      if (stats) add_stats(record);
      if (is_due(config_.eval_steps, step) || last) record.eval_loss = evaluate();
      if (is_due(config_.sample_steps, step) && !last) record.samples = {sample()};
      const bool logged =
          is_due(config_.logging_steps, step) || last || record.eval_loss || !record.samples.empty();
      if (logged || record.fp8_json) metrics.write(record);
      if (logged) console_.step(record);
      console_.advance(step + 1);
      stop_if_hopeless(step);
    }
    outcome_.stopped = stop.requested();
    console_.finish();
    last_look();
    return outcome_.stopped ? 128 + stop.number() : 0;
  }

 private:
  static bool is_due(int64_t every, int64_t step) { return every > 0 && (step + 1) % every == 0; }

  bool wants_stats(int64_t step) const {
    return setup_.numerics.precision == Precision::Fp8 && is_due(config_.fp8_stats_steps, step);
  }

  void prepare_weights() {
    model_.allocate();
    outcome_.allocated_bytes = model_.allocated_bytes();
    model_.parameters().initialise(*setup_.backend, static_cast<uint64_t>(config_.seed));
    if (!config_.model_name_or_path.empty()) {
      load_hf_folder(*setup_.backend, model_.parameters(), config_.model_name_or_path);
    }
    model_.weights_changed();
  }

  StepRecord make_record(const StepResult& result, int64_t step, double seconds, double epoch) const {
    StepRecord record;
    record.step = step + 1;
    record.max_steps = config_.max_steps;
    record.epoch = epoch;
    record.loss = result.loss;
    if (config_.penalty_type != PenaltyKind::None) record.penalty = result.penalty;
    record.lr = result.learning_rate;
    record.grad_norm = result.grad_norm;
    record.step_ms = 1e3 * seconds;
    record.tokens_per_second = static_cast<double>(result.tokens) / seconds;
    record.tokens = outcome_.tokens;
    record.precision = setup_.precision_label;
    return record;
  }

  void note(const StepResult& result, int64_t step, double seconds) {
    if (step == 0) outcome_.first_loss = result.loss;
    outcome_.last_loss = result.loss;
    outcome_.steps = step + 1;
    outcome_.seconds += seconds;
    outcome_.tokens += result.tokens;
    skipped_in_a_row_ = result.skipped ? skipped_in_a_row_ + 1 : 0;
    if (!result.skipped) return;
    ++outcome_.skipped_steps;
    log_warning(
        "step {}: the gradient is not finite (loss {}, norm {}); the step is skipped, weights are unchanged",
        step + 1, result.loss, result.grad_norm);
  }

  void stop_if_hopeless(int64_t step) const {
    if (skipped_in_a_row_ < 3) return;
    fail("three steps in a row up to step {} had no finite gradient; lower learning_rate (now {}){}",
         step + 1, config_.learning_rate,
         setup_.numerics.precision == Precision::Fp8
             ? fmt::format(", raise fp8_margin (now {}) or try fp8_recipe current", config_.fp8_margin)
             : "");
  }

  void add_stats(StepRecord& record) {
    const std::vector<ScaleTable::Report> reports = model_.scales().reports(*setup_.backend);
    record.fp8_json = fp8_stats_json(reports);
    saturation_.look(reports, setup_.numerics.fp8);
  }

  std::optional<double> evaluate() {
    const std::optional<double> loss = evaluator_.loss(model_, config_.fp8_eval);
    if (!loss) return loss;
    if (!outcome_.first_eval) outcome_.first_eval = loss;
    outcome_.last_eval = loss;
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

  // Share of the exam's first `count` cases answered exactly, and the answers.
  double exam(int64_t count, std::vector<std::string>& answers) {
    std::vector<DemoCase> cases = demo_cases(kExamSeed, kExamCases);
    cases.resize(static_cast<size_t>(count));
    std::vector<std::string> prompts;
    for (const DemoCase& c : cases) prompts.push_back(c.prompt);
    const SampleOptions options{.max_tokens = 24, .temperature = 0, .stop = "."};
    answers = generator().continue_prompts(prompts, options);
    int64_t right = 0;
    for (size_t i = 0; i < cases.size(); ++i) right += answers[i] == cases[i].answer;
    return static_cast<double>(right) / static_cast<double>(cases.size());
  }

  void first_look() {
    if (config_.is_demo()) exam(kExamShown, answers_before_);
    if (config_.sample_steps > 0) sample_before_ = sample();
    outcome_.first_eval = evaluate();
  }

  void last_look() {
    const bool show =
        outcome_.steps > 0 && !outcome_.stopped;  // somebody who stopped the run wants it to end
    if (config_.sample_steps > 0 && show) {
      console_.print(
          fmt::format("\nbefore: {}\nafter:  {}", terminal_safe(sample_before_), terminal_safe(sample())));
    }
    if (config_.is_demo() && show) {
      std::vector<std::string> answers;
      outcome_.demo_score = exam(kExamCases, answers);
      const std::vector<DemoCase> cases = demo_cases(kExamSeed, kExamCases);
      console_.print("\nstories it has never seen, finished by the model:");
      for (size_t i = 0; i < static_cast<size_t>(kExamShown); ++i) {
        console_.print(fmt::format(
            "  {}\n    before [{}]\n    after  [{}] {}", cases[i].prompt, terminal_safe(answers_before_[i]),
            terminal_safe(answers[i]),
            answers[i] == cases[i].answer ? "right" : fmt::format("wrong, expected [{}]", cases[i].answer)));
      }
    }
    console_.print(fmt::format("\n{}", summary_text(setup_, outcome_)));
    if (config_.is_demo()) {
      console_.print(
          "\nwhat to try next:\n"
          "  octet train --mixed_precision bf16                the same in BF16\n"
          "  octet train --fp8_recipe block                    another FP8 recipe\n"
          "  octet train --dataset my.txt --max_steps 500      your own text\n"
          "  octet train --help                                every key\n");
    }
  }

  Setup setup_;
  TrainConfig& config_;
  Transformer& model_;
  Console console_;
  Evaluator evaluator_;
  Outcome outcome_;
  SaturationWatch saturation_;
  std::unique_ptr<Generator> generator_;
  std::vector<std::string> answers_before_;
  std::string sample_before_;
  int skipped_in_a_row_ = 0;
};

std::string as_comments(const std::string& text) {
  std::string result;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    result += line.empty() ? "#\n" : fmt::format("# {}\n", line);
  return result;
}

}  // namespace

int train(TrainConfig config) {
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
  return Run(std::move(setup)).train();
}

}  // namespace octet
