#include "train/resume.h"

#include <algorithm>
#include <filesystem>

#include "base/log.h"
#include "train/checkpoint.h"
#include "train/model_folder.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLatest = "latest";

bool is_run_with_checkpoints(const fs::path& folder) {
  return std::any_of(std::begin(kCheckpointFolders), std::end(kCheckpointFolders), [&](const char* name) {
    return holds_checkpoints(posix_env(), (folder / name).string());
  });
}

// The run below output_dir that was written to last.
fs::path newest_run(const fs::path& output_dir) {
  std::optional<std::pair<fs::file_time_type, fs::path>> newest;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(output_dir, error)) {
    if (!is_run_with_checkpoints(entry.path())) continue;
    const auto time = fs::last_write_time(entry.path() / "metrics.jsonl", error);
    if (!error && (!newest || time > newest->first)) newest = {time, entry.path()};
  }
  if (!newest) {
    fail_config("resume is latest, and {} holds no run with a checkpoint; give run_name or output_dir",
                output_dir.string());
  }
  return newest->second;
}

// The run that a given path belongs to: itself, or what its checkpoints lie in. Empty: it cannot be told.
fs::path run_of(const fs::path& path) {
  fs::path folder = fs::absolute(path).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();  // a slash at the end
  for (int up = 0; up < 3 && folder.has_filename(); ++up, folder = folder.parent_path()) {
    if (fs::exists(folder / "config.yaml") && is_run_with_checkpoints(folder)) return folder;
  }
  return {};
}

// Whether a key bears on what the run computes, and not only on where it stands and how it is shown.
bool is_compared(const Key& key) {
  const bool about_the_run = key.group == "Run" || key.group == "Checkpoints";
  return !key.transient && (!about_the_run || key.name == "seed");
}

}  // namespace

std::string run_folder(const TrainConfig& config) {
  return (fs::path(config.output_dir) / config.run_name).string();
}

std::string checkpoint_directory(const TrainConfig& config, bool fp8) {
  if (!config.checkpoint_dir.empty()) return config.checkpoint_dir;
  return (fs::path(run_folder(config)) / kCheckpointFolders[fp8]).string();
}

TrainConfig load_resumable_config(const std::string& path, std::span<const KeySetting> flags) {
  TrainConfig config = load_train_config(path, flags);
  if (config.resume.empty() || (config.resume == kLatest && !config.checkpoint_dir.empty())) return config;
  const bool named = config.is_set("run_name");
  fs::path run;
  if (config.resume != kLatest) {
    run = run_of(config.resume);
  } else if (!named) {
    run = newest_run(config.output_dir);
  } else {
    run = run_folder(config);
  }
  if (run.empty()) return config;
  const fs::path file = run / "config.yaml";
  if (path.empty() && fs::exists(file)) config = load_train_config(file.string(), flags);
  if (!named) {
    config.run_name = run.filename().string();
    config.output_dir = run.parent_path().string();
  }
  return config;
}

std::optional<Checkpoint> find_checkpoint(Env& env, const TrainConfig& config, bool fp8) {
  if (config.resume != kLatest) {
    const fs::path path = config.resume;
    if (!fs::is_directory(path))
      fail_config("resume is {}, which is not a folder; expected latest or a checkpoint's folder",
                  path.string());
    if (fs::exists(path / "manifest.json") || path.filename().string().starts_with("step_")) {
      return open_checkpoint(env, path.string());
    }
    for (const fs::path& folder : {path, path / kCheckpointFolders[fp8], path / kCheckpointFolders[!fp8]}) {
      if (holds_checkpoints(env, folder.string())) return CheckpointStore(env, folder.string()).open_latest();
    }
    fail_config("resume is {}, which holds no checkpoint; expected a folder step_N, checkpoints or a run",
                path.string());
  }
  if (!config.checkpoint_dir.empty()) {
    if (!fs::exists(config.checkpoint_dir)) return std::nullopt;
    return CheckpointStore(env, config.checkpoint_dir).open_latest();
  }
  const fs::path own = fs::path(run_folder(config)) / kCheckpointFolders[fp8];
  const fs::path other = fs::path(run_folder(config)) / kCheckpointFolders[!fp8];
  if (holds_checkpoints(env, own.string())) {
    if (holds_checkpoints(env, other.string())) {
      log_info("resume: {} is taken; this run has checkpoints of another precision too, in {}", own.string(),
               other.string());
    }
    return CheckpointStore(env, own.string()).open_latest();
  }
  if (holds_checkpoints(env, other.string())) return CheckpointStore(env, other.string()).open_latest();
  return std::nullopt;
}

std::vector<std::string> changed_settings(const Checkpoint& checkpoint, const TrainConfig& config) {
  std::vector<std::string> changes;
  if (!checkpoint.has_file(checkpoint_file::kTrainConfig)) return changes;
  TrainConfig before;
  try {
    before = load_train_config(checkpoint.file_path(checkpoint_file::kTrainConfig), {});
  } catch (const Error& error) {
    return {fmt::format("the checkpoint's own settings cannot be read: {}", error.what())};
  }
  for (const Key& key : train_keys().keys()) {
    if (!is_compared(key)) continue;
    const std::string was = config_text(before, key.name), is = config_text(config, key.name);
    if (was != is) changes.push_back(fmt::format("{} {} -> {}", key.name, was, is));
  }
  return changes;
}

}  // namespace octet
