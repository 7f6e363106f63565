#include "plan/resume_config.h"

#include <algorithm>
#include <filesystem>

#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/model_folder.h"
#include "checkpoint/resume.h"
#include "checkpoint/resume_path.h"
#include "checkpoint/run_history.h"
#include "io/checkpoint_manifest.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

// The run below output_dir that was written to last; empty: there is none. One whose checkpoints are out of sight counts:
// an older run must not be continued in its place.
std::string newest_run(const std::string& output_dir) {
  std::optional<std::pair<fs::file_time_type, fs::path>> newest;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(output_dir, error)) {
    const std::string run = entry.path().string();
    if (checkpoint_folders(posix_env(), run).empty() && !last_checkpoint_of(posix_env(), run)) continue;
    const auto time = fs::last_write_time(entry.path() / "metrics.jsonl", error);
    if (!error && (!newest || time > newest->first)) newest = {time, entry.path()};
  }
  return newest ? newest->second.string() : "";
}

// Whether a key changes what the run computes, not only where it is stored and how it is shown.
bool is_compared(const Key& key) {
  const bool about_the_run = key.group == "Run" || key.group == "Checkpoints" || key.group == "Reports";
  return !key.transient && (!about_the_run || key.name == "seed");
}

void say_other_dataset(const fs::path& of_checkpoint, const fs::path& of_run) {
  const auto dataset_in = [](const fs::path& path) {
    const std::optional<TrainedRun> config = known_run(path.string());
    return config ? config_text(*config, "dataset") : "";
  };
  const std::string own = dataset_in(of_checkpoint), later = dataset_in(of_run);
  if (!own.empty() && !later.empty() && own != later)
    log_info("resume: dataset is {}, as when the checkpoint was saved; later the run had {}", own, later);
}

// The origin of a resumed run, before the checkpoint is chosen.
struct Origin {
  std::string run;            // empty: not known, as of a copied checkpoint
  std::string configuration;  // the file that says how it was trained; empty: there is none
  std::string checkpoint;     // the newest one; empty: there is none
};

bool has_text(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error) && fs::file_size(path, error) > 0;
}

// A checkpoint has the configuration that it was trained with. That of the run may be a later one: it counts if the run
// itself, or its latest checkpoint, is asked for.
Origin find_origin(Env& env, const TrainConfig& config, bool tells_of_dataset) {
  const bool latest = config.resume == kLatest;
  Origin origin;
  origin.run = latest ? run_folder(config) : run_of_checkpoint(env, config.resume);
  std::string checkpoint = latest ? "" : config.resume;
  const std::string own = join_path(checkpoint, checkpoint_file::kRunConfig);
  const bool is_checkpoint = !latest && (env.exists(own) || env.exists(join_path(checkpoint, kCheckpointManifestName)));
  if (!is_checkpoint) {
    const auto newest =
        newest_checkpoint(env, latest ? latest_folders(env, config) : checkpoint_folders(env, config.resume));
    checkpoint = newest ? newest->checkpoint.path : "";
  }
  origin.checkpoint = checkpoint;
  const fs::path of_run = origin.run.empty() ? fs::path() : fs::path(origin.run) / "config.yaml";
  const fs::path of_checkpoint =
      checkpoint.empty() ? fs::path() : fs::path(checkpoint) / checkpoint_file::kRunConfig;
  std::error_code ignored;
  const bool means_run = latest || fs::equivalent(config.resume, origin.run, ignored);
  if (tells_of_dataset && !means_run && has_text(of_run) && has_text(of_checkpoint))
    say_other_dataset(of_checkpoint, of_run);
  const fs::path choices[] = {means_run ? of_run : of_checkpoint, means_run ? of_checkpoint : of_run};
  const auto* found = std::ranges::find_if(choices, has_text);
  if (found == std::end(choices)) return origin;
  origin.configuration = found->string();
  if (tells_of_dataset && found != std::begin(choices))
    log_info("resume: {} is not there; the settings are those in {}", choices[0].string(),
             origin.configuration);
  return origin;
}

// A dataset that has a name is never replaced by the demo because nobody has named one now.
void require_dataset(const TrainConfig& config, const FileSettings& given, const Origin& origin) {
  if (config.is_set("dataset") || !config.is_demo()) return;
  if (!given.path.empty()) {
    const std::optional<TrainedRun> stored = known_run(origin.configuration);
    if (!stored || stored->is_demo()) return;
    fail_config("{} names no dataset, but the run was trained on {}; set dataset (demo is the built-in data)",
                given.path, config_text(*stored, "dataset"));
  }
  const bool has_run = !origin.run.empty() && has_text(fs::path(origin.run) / "metrics.jsonl");
  if (!origin.configuration.empty())
    fail_config(
        "resume is {}, which was trained on batches of another program: {} names no dataset; set dataset",
        config.resume, origin.configuration);
  if (origin.checkpoint.empty() && !has_run) return;
  fail_config(
      "resume is {}, but it is not known how it was trained: there is neither {} nor the config.yaml of the run; pass the "
      "configuration file, or set dataset and all other keys that it had (demo is the built-in data)",
      config.resume, join_path(origin.checkpoint, checkpoint_file::kRunConfig));
}

}  // namespace

TrainConfig load_resumable_config(const FileSettings& given, std::span<const KeySetting> flags) {
  const std::string& path = given.path;
  TrainConfig config = load_train_config(given, flags);
  if (config.resume.empty() || config.list_checkpoints) return config;
  Env& env = posix_env();
  const bool named = config.is_set("run_name"), places_checkpoints = config.is_set("checkpoint_dir");
  const bool is_word = config.resume == kLatest || config.resume == "best";
  const auto run_here = [&]() -> std::string {
    if (named) return run_folder(config);
    const bool is_unclear = !path.empty() || (is_word && places_checkpoints);
    const std::string run = is_unclear ? "" : newest_run(config.output_dir);
    if (!run.empty() || !is_word) return run;
    if (is_unclear) {
      fail_config("resume is {}, but no run is named; set run_name{}", config.resume,
                  path.empty() ? "" : fmt::format(", in {} or as --run_name", path));
    }
    fail_config("resume is {}, but {} holds no run with a checkpoint; set run_name or output_dir",
                config.resume, config.output_dir);
  };
  const auto continue_in = [&config](const std::string& run) {
    config.run_name = fs::path(run).filename().string();
    config.output_dir = fs::path(run).parent_path().string();
  };
  if (config.resume == kLatest) {
    if (!named) continue_in(run_here());
  } else {
    config.resume = resume_path(env, config.resume, run_here);
  }
  const std::string resume = config.resume, latest_run = run_folder(config);
  const Origin origin = find_origin(env, config, path.empty());
  if (path.empty() && !origin.configuration.empty()) {
    config = load_train_config(origin.configuration, flags);
    config.resume = resume;
  }
  require_dataset(config, given, origin);
  if (resume == kLatest) {
    continue_in(latest_run);
  } else if (!named && !origin.run.empty()) {
    continue_in(origin.run);
  } else if (path.empty()) {
    // Another run than the one that was saved: it gets a folder of its own, and a name unless it has one.
    if (!named) config.run_name.clear();
    const bool is_same = named && !origin.run.empty() && is_same_folder(origin.run, run_folder(config));
    if (!is_same && !places_checkpoints) config.checkpoint_dir.clear();
  }
  return config;
}

std::optional<TrainConfig> settings_of(const Checkpoint& checkpoint) {
  if (!checkpoint.has_file(checkpoint_file::kRunConfig)) return std::nullopt;
  try {
    return load_train_config(checkpoint.file_path(checkpoint_file::kRunConfig), {});
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::vector<std::string> changed_settings(const Checkpoint& checkpoint, const TrainConfig& config) {
  std::vector<std::string> changes;
  if (!checkpoint.has_file(checkpoint_file::kRunConfig)) return changes;
  TrainConfig before;
  try {
    before = load_train_config(checkpoint.file_path(checkpoint_file::kRunConfig), {});
  } catch (const Error& error) {
    return {fmt::format("the settings of the checkpoint cannot be read: {}", error.what())};
  }
  for (const Key& key : train_keys().keys()) {
    if (!is_compared(key)) continue;
    const std::string was = config_text(before, key.name), is = config_text(config, key.name);
    if (was != is) changes.push_back(fmt::format("{} {} -> {}", key.name, was, is));
  }
  return changes;
}

}  // namespace octet
