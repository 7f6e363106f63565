#include "sweep_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "base/log_silencer.h"
#include "base/text.h"
#include "config/notes.h"
#include "plan/resolve.h"
#include "sweep/sampler.h"

namespace octet {
namespace {

// The configuration of a run with `values`. Throws ConfigError as octet train would.
TrainConfig config_of(const SweepSpec& spec, const SweepValues& values, const FileSettings& file,
                      std::vector<KeySetting> settings) {
  std::erase_if(settings, [&](const KeySetting& setting) {
    const Key* key = key_called(train_keys().keys(), setting.name);
    return key &&
           std::ranges::find(spec.parameters, key->name, &SweepParameter::key) != spec.parameters.end();
  });
  for (size_t i = 0; i < values.size(); ++i)
    settings.push_back({.name = spec.parameters[i].name, .values = {values[i]}});
  return load_train_config(file, settings);
}

}  // namespace

std::vector<KeySetting> base_settings(const SweepSpec& spec, const RunArguments& run) {
  std::vector<std::string> errors;
  const KeyArguments read = parse_key_arguments(train_keys().keys(), spec.base_flags, errors);
  for (const std::string& word : read.positionals)
    errors.push_back(
        fmt::format("command in {} has '{}'; expected flags of octet train", spec.file, printable(word)));
  resolve_settings(train_keys().keys(), read.settings, errors);
  throw_config_errors(errors);
  std::vector<KeySetting> settings;
  for (const KeySetting& setting : read.settings) {
    const Key* key = key_called(train_keys().keys(), setting.name);
    const bool again = std::ranges::any_of(run.settings, [&](const KeySetting& given) {
      return key_called(train_keys().keys(), given.name) == key;
    });
    if (!again) settings.push_back(setting);
  }
  settings.insert(settings.end(), run.settings.begin(), run.settings.end());
  return settings;
}

DataKeys check_first_run(const SweepSpec& spec, const FileSettings& file,
                         const std::vector<KeySetting>& settings, uint64_t seed) {
  const TrainConfig config = config_of(spec, propose(spec, seed, 0, {}).value(), file, settings);
  for (const char* key :
       {"run_name", "output_dir", "resume", "checkpoint_dir", "dry_run", "list_checkpoints"}) {
    if (config.is_set_by_flag(key))
      fail_config("{} cannot be set: the sweep sets it for every run", config.origins.at(key));
  }
  if (spec.metric->needs_evaluation() && config.eval_strategy == Strategy::No)
    fail_config("the metric is {}, but eval_strategy is no: the runs would have none", spec.metric->label());
  const LogSilencer silence;            // the run will say it
  resolve(config, Wanted::by_sweep());  // a model that is there must suit the settings
  return config;
}

KnownRuns::KnownRuns(const SweepSpec& spec, const FileSettings& file, const std::vector<KeySetting>& settings,
                     uint64_t seed, int64_t runs)
    : spec_(spec) {
  constexpr int64_t kMostRuns = 200;
  runs = std::min(runs, kMostRuns);
  if (spec.method == SweepMethod::Bayes) runs = std::min(runs, random_runs_first(spec));
  for (int64_t index = 0; index < runs; ++index) {
    const LogSilencer silence;  // what the first run has to say was said
    try {
      configs_.push_back(config_of(spec, propose(spec, seed, index, {}).value(), file, settings));
    } catch (const ConfigError&) {
      // This run will fail and say why.
    }
  }
}

void KnownRuns::judge_idle_parameters(bool on_gpu) const {
  std::vector<std::string> errors;
  for (const IdleSetting& idle : find_idle_settings(configs_, on_gpu)) {
    const auto swept = std::ranges::find(spec_.parameters, idle.key, &SweepParameter::key);
    if (swept != spec_.parameters.end() && swept->distribution.count() != 1)
      errors.push_back(fmt::format("{}, so the sweep would train equal runs ({})", idle.text, swept->place));
  }
  const bool all_known = spec_.grid_size() == std::ssize(configs_);
  if (all_known) throw_config_errors(errors);
  for (const std::string& text : errors) log_warning("in the runs that are known now, {}", text);
}

void KnownRuns::tell_of_settings() const {
  tell_assumptions(configs_);
  warn_of_costly_settings(configs_);
}

int64_t count_runs(const SweepSpec& spec, int64_t given) {
  std::optional<int64_t> runs = given > 0 ? std::optional(given) : spec.run_cap;
  if (const std::optional<int64_t> grid = spec.grid_size()) return runs ? std::min(*runs, *grid) : *grid;
  if (!runs) {
    fail_config("method {} has no end: set run_cap in {}, or --runs N", to_string(spec.method), spec.file);
  }
  return *runs;
}

}  // namespace octet
