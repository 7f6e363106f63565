#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "base/print.h"
#include "command.h"
#include "compare/report.h"
#include "compare/training.h"
#include "import/import.h"
#include "io/output_file.h"
#include "plan/device_choice.h"
#include "report/console.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::vector<std::string> runs;  // or one configuration
  std::vector<std::string> variants;
  int64_t steps = 0;  // 0: not given
  int64_t seeds = 1;
  int64_t processes = 1;
  bool checklist = false;
  double price_per_hour = 0;
  std::string json, html;
  RunArguments run;

  bool trains() const { return checklist || !variants.empty(); }
};

constexpr int64_t kDefaultSteps = 100;

bool is_max_steps(const KeySetting& setting) {
  const Key* key = key_called(train_keys().keys(), setting.name);
  return key && key->name == "max_steps";
}

// A max_steps in the file is that of the long run; as a flag, it is meant for these.
int64_t steps_of(const Options& options) {
  if (options.steps > 0) return options.steps;
  const auto given = std::ranges::find_if(options.run.settings, is_max_steps);
  if (given == options.run.settings.end()) return kDefaultSteps;
  std::vector<std::string> errors;
  const std::vector<KeyAssignment> read = resolve_settings(train_keys().keys(), {&*given, 1}, errors);
  throw_config_errors(errors);
  const auto* steps = read.empty() ? nullptr : std::get_if<int64_t>(&read.front().value);
  if (!steps || *steps < 1)
    fail_config("--max_steps is the length of the runs that compare trains; expected at least 1");
  return *steps;
}

void check(const Options& options, std::vector<std::string>& errors) {
  if (!options.trains()) {
    if (!options.run.settings.empty())
      errors.push_back(fmt::format(
          "--{} is a key of training, which only --variants and --checklist do; 'octet compare RUN "
          "RUN' reads runs that exist",
          options.run.settings.front().name));
    for (const auto& [given, name] : {std::pair(options.steps > 0, "steps"),
                                      {options.seeds > 1, "seeds"},
                                      {options.processes > 1, "processes"}}) {
      if (given) errors.push_back(fmt::format("--{} has no effect without --variants or --checklist", name));
    }
    if (options.runs.empty() && errors.empty())
      errors.emplace_back("octet compare needs runs, or --variants with a configuration to train");
    return;
  }
  if (options.steps > 0 && std::ranges::any_of(options.run.settings, is_max_steps))
    errors.emplace_back(
        "--steps and --max_steps are both given; --steps is the length of the runs that compare trains");
  if (options.runs.size() > 1)
    errors.push_back(fmt::format("with {}, octet compare takes one configuration, got {} words",
                                 options.checklist ? "--checklist" : "--variants", options.runs.size()));
  if (options.variants.size() == 1)
    errors.push_back(
        fmt::format("--variants has only '{}'; a comparison needs two or more", options.variants[0]));
  if (options.checklist && options.variants.size() > 2)
    errors.emplace_back("--checklist takes two variants: the reference, and what the long run will use");
}

// A run's folder stands for its configuration.
std::string config_file_of(const Options& options) {
  if (options.runs.empty()) return "";
  const fs::path path = options.runs.front();
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return path.string();
  if (fs::exists(path / "config.yaml", ignored)) return (path / "config.yaml").string();
  fail_config("[{}] is a folder without config.yaml, expected a configuration file or the folder of a run",
              path.string());
}

struct Trained {
  std::vector<PlannedRun> planned;
  std::vector<ComparedRun> runs;
};

Trained train_all(const Options& options, const TrainingOptions& training) {
  const FileSettings file = read_run_file(config_file_of(options));
  VariantPlan plan{.variants = options.variants,
                   .steps = training.steps,
                   .seeds = options.seeds,
                   .for_checklist = options.checklist};
  if (plan.variants.empty()) plan.variants = default_variants(file, options.run.settings);
  Trained trained{.planned = plan_variants(plan, file, options.run.settings), .runs = {}};
  tell_of_settings(trained.planned, runs_on_gpu(trained.planned.front().config.device));
  train_variants(trained.planned, training);
  std::vector<std::string> folders;
  for (const PlannedRun& run : trained.planned) folders.push_back(run.folder);
  trained.runs = read_compared_runs(folders);
  require(trained.runs.size() == trained.planned.size(), "[compare] {} of {} runs have no step",
          trained.planned.size() - trained.runs.size(), trained.planned.size());
  for (size_t i = 0; i < trained.runs.size(); ++i) trained.runs[i].variant = trained.planned[i].variant;
  return trained;
}

// The first run of each variant.
std::vector<const PlannedRun*> first_runs(const std::vector<PlannedRun>& planned) {
  std::vector<const PlannedRun*> first;
  for (const PlannedRun& run : planned) {
    if (first.empty() || first.back()->variant != run.variant) first.push_back(&run);
  }
  return first;
}

Checklist go_through(const Comparison& comparison, const std::vector<PlannedRun>& planned,
                     const TrainingOptions& training) {
  const std::vector<const PlannedRun*> first = first_runs(planned);
  std::vector<SampleCheck> samples;
  for (const PlannedRun* run : first) {
    log_info("{}: generating a sample", run->name);
    samples.push_back(try_sample(*run));
  }
  log_info("{}: resuming from a checkpoint", first.back()->name);
  return make_checklist(comparison, samples, try_resume(*first.back(), training));
}

int run(const Options& options) {
  check_output_file("--json", options.json);
  check_output_file("--html", options.html);
  TrainingOptions training{.processes = options.processes,
                           .steps = steps_of(options),
                           .shows_progress = ::isatty(STDERR_FILENO) != 0};
  Trained trained;
  if (options.trains()) {
    try {
      trained = train_all(options, training);
    } catch (const Stopped& stopped) {
      log_warning("stopped; the same command continues");
      return stopped.exit_code;
    }
  } else {
    trained.runs = read_compared_runs(options.runs);
  }
  const Comparison comparison =
      compare_runs(std::move(trained.runs), {.price_per_hour = options.price_per_hour});
  std::optional<Checklist> checklist;
  if (options.checklist) checklist = go_through(comparison, trained.planned, training);

  const TerminalTraits traits = terminal_traits(STDOUT_FILENO);
  print_stdout("{}", comparison_text(comparison, traits.terminal && traits.utf8));
  if (checklist) fmt::print("\n{}", checklist_text(*checklist, traits.color));
  if (!options.json.empty()) {
    nlohmann::ordered_json json = comparison_json(comparison);
    if (checklist) json["checklist"] = checklist_json(*checklist);
    write_output_file(options.json,
                      json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
  }
  if (!options.html.empty()) {
    write_output_file(options.html,
                      html_page(comparison_page(comparison, checklist ? &*checklist : nullptr)));
    print_stdout("{} written\n", options.html);
  }
  return checklist && !checklist->is_ready() ? kExitFailure : kExitDone;
}

}  // namespace

Command compare_command() {
  CommandBuilder<Options> builder("compare",
                                  "Compare runs, or train variants of a configuration and compare them");
  builder.line.usage =
      "RUN RUN... [FLAGS], or octet compare [CONFIG.yaml] --variants bf16,fp8 [--key value]...";
  builder.line.about =
      "Compares runs: speed, memory, loss, evaluation, FP8 coverage, energy and settings, with a verdict in one "
      "sentence. The first run is the reference. Runs that differ only in their seed are one variant.\n"
      "With --variants it first trains a configuration in each variant, into <output_dir>/<run_name>-<variant>. "
      "A variant that is already there with the same settings is reused.\n"
      "With --checklist it goes through what should work before a long run, and exits with 0 only if all of it "
      "does.";
  builder.words(&Options::runs,
                {.name = "RUN",
                 .what = "run",
                 .help = "Folder of a run, or its metrics.jsonl. With --variants or --checklist: "
                         "the configuration to train.",
                 .required = false});
  builder.keys
      .add("variants", &Options::variants,
           fmt::format(
               "What to train, the reference first: {}, or settings. fp8 is delayed. Settings are joined by "
               "colons: \"bf16,fp8,fp8:fp8_head=true\".",
               kVariantNames))
      .note("with --checklist: bf16 and the configured precision");
  builder.keys
      .add(
          "steps", &Options::steps,
          "Steps to train each variant. The schedule is that of a run of this length. The flag --max_steps does the same.")
      .at_least(1)
      .note("100");
  builder.keys.add("seeds", &Options::seeds, "Runs per variant: with seed, seed + 1, ...")
      .at_least(1)
      .at_most(100);
  builder.keys.add("processes", &Options::processes, "Ranks of each run, started with 'octet launch -n'.")
      .at_least(1);
  builder.keys.add(
      "checklist", &Options::checklist,
      "Check hardware, 100 steps in both precisions, NaN, loss at most 1 % higher, throughput, memory, samples "
      "and resuming, and say whether a long run can start.");
  builder.keys
      .add("price_per_hour", &Options::price_per_hour, "Price of one hour of one GPU, in any currency.")
      .at_least(0)
      .note("price_per_hour of each run");
  builder.keys.add("json", &Options::json, "Also write the comparison to this file.").value("FILE");
  builder.keys.add("html", &Options::html, "Also write a report with charts to this file, for any browser.")
      .value("FILE");
  builder.check(check);
  builder.run_settings(&Options::run);
  return builder.command(run);
}

}  // namespace octet
