#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/cpu_threads.h"
#include "base/error.h"
#include "base/log.h"
#include "base/print.h"
#include "base/text.h"
#include "command.h"
#include "import/import.h"
#include "io/output_file.h"
#include "ops/device.h"
#include "plan/device_choice.h"
#include "report/text.h"
#include "run_words.h"
#include "sweep/sweep_report.h"
#include "sweep_checks.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::vector<std::string> files;
  std::string folder, gpus, html;
  int64_t parallel = 0, ranks = 1, runs = 0, max_failures = 3, sweep_seed = 42;
  double lease_seconds = 60;
  bool json = false, status = false, retry_failed = false;
  RunArguments run;
};

// The sweep file and the configuration, in any order.
struct Files {
  std::string sweep, config;
};
Files files_of(const Options& options) {
  if (options.files.size() > 2)
    fail_config("octet sweep takes a sweep file and at most one configuration, got {} files",
                options.files.size());
  Files files{.sweep = options.files.front(), .config = options.files.size() > 1 ? options.files[1] : ""};
  if (!files.config.empty() && is_sweep_file(files.config) && !is_sweep_file(files.sweep))
    std::swap(files.sweep, files.config);
  return files;
}

// GPUs of this agent, as CUDA_VISIBLE_DEVICES names them.
std::vector<std::string> gpus_of(const Options& options) {
  if (options.gpus.empty()) return {};  // the runs choose themselves
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  const bool listed = options.gpus != "all" && options.gpus != "auto";
  if (!listed && visible != nullptr && *visible != '\0') return split_list(visible);
  const CudaProbe probe = probe_cuda();
  if (probe.devices == 0 && options.gpus != "auto")
    fail_config("--gpus is {}, but no GPU can be used: {}", options.gpus, probe.reason);
  if (listed) {
    const std::vector<std::string> named = split_list(options.gpus);
    for (const std::string& gpu : named) {
      const std::optional<int64_t> index = parse_int(gpu);
      if (index && *index >= probe.devices && (visible == nullptr || *visible == '\0'))
        fail_config("--gpus has {}, but there are {}, counted from 0", gpu, counted(probe.devices, "GPU"));
    }
    return named;
  }
  std::vector<std::string> all;
  for (int i = 0; i < probe.devices; ++i) all.push_back(fmt::format("{}", i));
  return all;
}

void place_runs(SweepPlan& plan, const Options& options) {
  plan.ranks = options.ranks;
  const std::vector<std::string> gpus = gpus_of(options);
  const auto ranks = static_cast<size_t>(options.ranks);
  std::vector<std::string> places;
  for (size_t i = 0; i + ranks <= gpus.size(); i += ranks) {
    std::string place = gpus[i];
    for (size_t k = 1; k < ranks; ++k) place += "," + gpus[i + k];
    places.push_back(std::move(place));
  }
  if (!gpus.empty() && places.empty())
    fail_config("--ranks is {}, but there are {} GPUs for this agent", options.ranks, gpus.size());
  if (places.empty()) places = {""};
  const auto count = options.parallel > 0 ? static_cast<size_t>(options.parallel) : places.size();
  plan.slots.clear();
  for (size_t i = 0; i < count; ++i) plan.slots.push_back(places[i % places.size()]);
  if (count > 1 && std::getenv("OMP_NUM_THREADS") == nullptr)
    plan.threads =
        fmt::format("{}", std::max<size_t>(1, static_cast<size_t>(default_threads().count) / count));
}

// The arguments that all runs have: the file, the flags of the sweep file's command and those of this call. What the sweep
// varies is left out.
std::vector<std::string> base_words(const SweepSpec& spec, const std::string& config_file,
                                    std::span<const KeySetting> settings) {
  std::vector<std::string> words;
  if (!config_file.empty()) words.push_back(config_file);
  for (const KeySetting& setting : settings) {
    const Key* key = key_called(train_keys().keys(), setting.name);
    const auto varied = std::ranges::find_if(
        spec.parameters, [&](const SweepParameter& parameter) { return key && parameter.key == key->name; });
    if (varied != spec.parameters.end()) {
      log_warning("--{} has no effect: the sweep sets {}", setting.name, varied->place);
      continue;
    }
    const std::vector<std::string> flag = words_of(std::span(&setting, 1));
    words.insert(words.end(), flag.begin(), flag.end());
  }
  return words;
}

// The prefix of such an argument in the identity of a sweep.
constexpr std::string_view kBaseWord = "octet train: ";

std::vector<std::string> base_words_in(const std::string& identity) {
  std::vector<std::string> words;
  std::istringstream lines(identity);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(kBaseWord)) words.push_back(line.substr(kBaseWord.size()));
  }
  return words;
}

void write_reports(const Options& options, const SweepResults& results) {
  if (options.json) {
    fmt::print("{}\n", sweep_json(results).dump(1, ' ', true, nlohmann::json::error_handler_t::replace));
  } else {
    print_stdout("{}", sweep_text(results));
  }
  if (options.html.empty()) return;
  write_output_file(options.html, html_page(sweep_page(results)));
  if (!options.json) print_stdout("{} written\n", options.html);
}

int run(const Options& options) {
  const Files files = files_of(options);
  if (!options.html.empty()) check_output_file("--html", options.html);
  const SweepSpec spec = read_sweep_file(files.sweep);
  for (const std::string& note : spec.notes) log_info("{}", note);
  for (const std::string& warning : spec.warnings) log_warning("{}", warning);
  const std::string config_file = files.config.empty() ? spec.base_config : files.config;
  require_config_file(config_file);
  const std::vector<KeySetting> settings = base_settings(spec, options.run);
  const auto seed = static_cast<uint64_t>(options.sweep_seed);
  const FileSettings file = read_run_file(config_file);
  const DataKeys first = check_first_run(spec, file, settings, seed);
  if (first.is_demo() && !first.is_set("dataset") && !options.status)
    log_info("no dataset is given: every run trains the demo; --config RUN.yaml names a configuration");

  SweepPlan plan;
  plan.seed = seed;
  plan.runs = count_runs(spec, options.runs);
  plan.failures_in_a_row = options.max_failures;
  plan.base_words = base_words(spec, config_file, settings);
  std::optional<KnownRuns> known;
  if (!options.status) {
    known.emplace(spec, file, settings, plan.seed, plan.runs);
    known->judge_idle_parameters(runs_on_gpu(first.device));
    require_device(first.device, probe_cuda());
    place_runs(plan, options);
  }

  const std::string folder = options.folder.empty()
                                 ? fmt::format("sweeps/{}", fs::path(files.sweep).stem().string())
                                 : options.folder;
  SweepStore store(posix_env(), folder, options.lease_seconds);
  if (options.status && !store.exists())
    fail_config("[{}] there is no sweep yet; expected the folder of one", folder);
  std::string identity = spec.identity();
  for (const std::string& word : plan.base_words) identity += fmt::format("{}{}\n", kBaseWord, word);
  const std::string saved = store.open(identity, seed, options.status);
  if (options.status) plan.base_words = base_words_in(saved);
  if (options.retry_failed) log_info("{} that failed will be repeated", counted(store.retry_failed(), "run"));
  int code = kExitDone;
  if (!options.status) {
    known->tell_of_settings();
    log_info("sweep in {}: {}, method {}, metric {}, {} at a time", folder, counted(plan.runs, "run"),
             to_string(spec.method), spec.metric->label(), plan.slots.size());
    code = run_sweep(spec, plan, store);
  }
  write_reports(options, SweepResults(spec, plan, store));
  return code;
}

}  // namespace

Command sweep_command() {
  CommandBuilder<Options> builder("sweep", "Train many runs with different settings and find the best");
  builder.line.usage = "SWEEP.yaml [--config CONFIG.yaml] [FLAGS] [--key value]...";
  builder.line.about =
      "Trains a run for each set of parameters that a W&B sweep file describes, and ranks them. Methods: grid, random and "
      "bayes. Runs that are clearly worse can be stopped early (hyperband).\n"
      "  octet sweep sweep.yaml --config run.yaml --gpus 0,1,2,3\n"
      "The same command continues a sweep that was stopped. Started on several machines with the same --folder, the "
      "agents share the work: no run is done twice, and the run of an agent that dies is taken up.";
  builder.line.notes =
      "Exit codes: 0 all runs have a result, 1 too many failures in a row, 75 stopped by a signal. docs/sweep.md has more.";
  auto& keys = builder.keys;
  keys.add("folder", &Options::folder, "Folder of the sweep: results, claims and all runs.")
      .value("DIR")
      .note("sweeps/NAME of the sweep file");
  keys.add(
          "gpus", &Options::gpus,
          "GPUs for runs at the same time, one each: 0,1,2,3. all: every GPU of the machine. auto: the same, or none.")
      .value("LIST");
  keys.add("parallel", &Options::parallel, "Runs at the same time.")
      .at_least(0)
      .at_most(1024)
      .note("one per GPU, else 1");
  keys.add("ranks", &Options::ranks, "GPUs (or CPU processes) per run, started with octet launch.")
      .at_least(1)
      .at_most(64);
  keys.add("runs", &Options::runs, "Number of runs in all. 0: run_cap of the file, or the whole grid.")
      .at_least(0)
      .at_most(1'000'000)
      .alias("count");
  keys.add("sweep_seed", &Options::sweep_seed,
           "Seed of the random draws. (--seed is the key of octet train.)")
      .at_least(0);
  keys.add("max_failures", &Options::max_failures, "Stop after so many failed runs in a row.")
      .at_least(1)
      .at_most(1'000'000);
  keys.add("retry_failed", &Options::retry_failed, "Repeat the runs that failed.");
  keys.add("lease_seconds", &Options::lease_seconds,
           "An agent of another machine that is silent for so long counts as dead.")
      .at_least(2)
      .at_most(86400);
  keys.add("status", &Options::status, "Only print the results so far. Nothing is started.");
  keys.add("json", &Options::json, "Print the results as JSON.");
  keys.add("html", &Options::html, "Also write a page with charts.").value("FILE");
  Positional file{.name = "SWEEP.yaml",
                  .what = "sweep file",
                  .help = "Sweep file of W&B. Then, or as --config: CONFIG.yaml of octet train."};
  builder.words(&Options::files, file);
  builder.run_arguments(&Options::run);
  file.many = true;
  builder.line.words = {file};
  builder.check([](const Options& options, std::vector<std::string>& errors) {
    if (options.status && options.retry_failed)
      errors.emplace_back("--status starts nothing; --retry_failed needs a start");
  });
  return builder.command(run);
}

}  // namespace octet
