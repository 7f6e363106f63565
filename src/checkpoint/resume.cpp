#include "checkpoint/resume.h"

#include <algorithm>
#include <filesystem>

#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/model_folder.h"
#include "checkpoint/rank_saving.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLatest = "latest";

bool is_run_with_checkpoints(const fs::path& folder) {
  return !checkpoint_folders(posix_env(), folder.string()).empty();
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
    fail_config("resume is latest, but {} holds no run with a checkpoint; set run_name or output_dir",
                output_dir.string());
  }
  return newest->second;
}

// The run that a path belongs to: the folder itself, or a parent of a checkpoint. Empty: unknown.
fs::path run_of(const fs::path& path) {
  fs::path folder = fs::absolute(path).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();  // a slash at the end
  for (int up = 0; up < 3 && folder.has_filename(); ++up, folder = folder.parent_path()) {
    if (fs::exists(folder / "config.yaml") && is_run_with_checkpoints(folder)) return folder;
  }
  return {};
}

// Whether a key changes what the run computes, not only where it is stored and how it is shown.
bool is_compared(const Key& key) {
  const bool about_the_run = key.group == "Run" || key.group == "Checkpoints" || key.group == "Reports";
  return !key.transient && (!about_the_run || key.name == "seed");
}

// The configuration of a run, as octet wrote it. What an older octet wrote means what it meant there: before
// fp8_fast_accum, sums were exact, and fp8_head true put all products of the head in FP8. One thing is not kept:
// an older octet had fast sums of any length. Today, those over more than kMostTokensOfFastSums tokens or
// kMostInputsOfFastSums inputs are exact, because longer fast sums may cost accuracy.
TrainConfig load_stored_config(const std::string& path, std::span<const KeySetting> flags) {
  FileSettings file{.path = path, .settings = {}, .errors = {}};
  file.settings = read_settings_file(path, file.errors);
  const auto find = [&](std::string_view key) {
    return std::ranges::find(file.settings, key, &KeySetting::name);
  };
  const bool older = find("fp8_fast_accum") == file.settings.end();
  if (const auto head = find("fp8_head"); older && head != file.settings.end()) {
    if (head->values == std::vector<std::string>{"true"}) head->values = {"all"};
  }
  TrainConfig config = load_train_config(std::move(file), flags);
  const bool adds_fast = config.fp8_recipe == Fp8Recipe::Delayed || config.fp8_recipe == Fp8Recipe::Current;
  const bool matters = config.mixed_precision == Precision::Fp8 && adds_fast;
  if (older && matters && !config.is_set("fp8_fast_accum")) config.fp8_fast_accum = Fp8FastAccum::None;
  return config;
}

// Nothing if the file cannot be read, for example because a newer octet wrote it.
std::optional<TrainConfig> readable_config(const std::string& path) {
  try {
    return load_stored_config(path, {});
  } catch (const Error&) {
    return std::nullopt;
  }
}

void say_other_dataset(const fs::path& of_checkpoint, const fs::path& of_run) {
  const auto dataset_in = [](const fs::path& path) {
    const std::optional<TrainConfig> config = readable_config(path.string());
    return config ? config_text(*config, "dataset") : "";
  };
  const std::string own = dataset_in(of_checkpoint), later = dataset_in(of_run);
  if (!own.empty() && !later.empty() && own != later)
    log_info("resume: dataset is {}, as when the checkpoint was saved; later the run had {}", own, later);
}

}  // namespace

std::string run_folder(const TrainConfig& config) {
  return (fs::path(config.output_dir) / config.run_name).string();
}

std::string checkpoint_directory(const TrainConfig& config, bool fp8) {
  if (!config.checkpoint_dir.empty()) return config.checkpoint_dir;
  return (fs::path(run_folder(config)) / kCheckpointFolders[fp8]).string();
}

TrainConfig load_resumable_config(const FileSettings& given, std::span<const KeySetting> flags) {
  const std::string& path = given.path;
  TrainConfig config = load_train_config(given, flags);
  if (config.resume.empty() || config.list_checkpoints) return config;
  const bool named = config.is_set("run_name");
  fs::path run;
  if (config.resume != kLatest) {
    run = run_of(config.resume);
  } else if (named) {
    run = run_folder(config);
  } else if (!path.empty() || !config.checkpoint_dir.empty()) {
    fail_config("resume is latest, but no run is named; set run_name{}",
                path.empty() ? "" : fmt::format(", in {} or as --run_name", path));
  } else {
    run = newest_run(config.output_dir);
  }
  if (run.empty()) return config;
  // A checkpoint has the configuration that it was trained with. That of the run may be a later one.
  fs::path file = run / "config.yaml";
  const fs::path own = fs::path(config.resume) / checkpoint_file::kTrainConfig;
  if (config.resume != kLatest && fs::exists(own)) {
    if (path.empty() && fs::exists(file)) say_other_dataset(own, file);
    file = own;
  }
  if (path.empty() && fs::exists(file)) config = load_stored_config(file.string(), flags);
  if (!named) {
    config.run_name = run.filename().string();
    config.output_dir = run.parent_path().string();
  }
  return config;
}

namespace {

// `check` is called with every candidate, and says what is wrong with its files; without it checksums are verified.
std::optional<Checkpoint> find_checkpoint_alone(Env& env, const TrainConfig& config, const FileCheck& check) {
  const bool latest = config.resume == kLatest;
  std::vector<std::string> folders;
  if (!latest) {
    const fs::path path = config.resume;
    if (!fs::is_directory(path)) {
      fail_config("resume is {}, which is not a folder; expected latest or a checkpoint's folder",
                  path.string());
    }
    if (fs::exists(path / "manifest.json") || path.filename().string().starts_with("step_")) {
      const Checkpoint chosen = open_checkpoint(env, path.string(), !check);
      const std::string broken = check ? check(chosen) : "";
      require(broken.empty(), "[{}] is not a complete checkpoint: {}", chosen.path, broken);
      return chosen;
    }
    folders = checkpoint_folders(env, path.string());
  } else if (!config.checkpoint_dir.empty()) {
    if (holds_checkpoints(env, config.checkpoint_dir)) folders = {config.checkpoint_dir};
  } else {
    folders = checkpoint_folders(env, run_folder(config));
  }
  // A run that changed its precision has two folders. The newest checkpoint of both is the current state.
  std::optional<Checkpoint> newest;
  std::string newest_folder;
  for (const std::string& folder : folders) {
    for (const CheckpointListing& listing : CheckpointStore(env, folder).list()) {
      if (newest && order_of(listing.checkpoint) <= order_of(*newest)) continue;
      newest = listing.checkpoint;
      newest_folder = folder;
    }
  }
  if (newest) return CheckpointStore(env, newest_folder).open_latest(check);
  if (latest) return std::nullopt;
  if (env.exists(join_path(config.resume, "metrics.jsonl"))) {
    const fs::path run = fs::absolute(config.resume).lexically_normal();
    const fs::path folder = run.has_filename() ? run : run.parent_path();
    fail_config(
        "resume is {}, a run that has saved no checkpoint (see save_strategy and save_steps); to start it again from the "
        "beginning: --output_dir {} --run_name {} --resume latest",
        config.resume, folder.parent_path().string(), folder.filename().string());
  }
  fail_config("resume is {}, which holds no checkpoint; expected a folder step_N, checkpoints or a run",
              config.resume);
}

}  // namespace

std::optional<Checkpoint> find_checkpoint(Env& env, const TrainConfig& config, HostChannel* host) {
  if (!host || host->size() == 1) return find_checkpoint_alone(env, config, {});
  // The first rank chooses, so that ranks that see other folders do not choose differently. Each candidate is named to
  // the others, and all verify some of its files; no name ends the search.
  const std::string tag = "checkpoint candidate";
  const auto verify = [&](const std::string& path) {
    return check_files_together(env, open_checkpoint(env, path, false), *host);
  };
  if (host->rank() == 0) {
    const auto chosen = find_checkpoint_alone(
        env, config, [&](const Checkpoint& found) { return verify(host->from_first(tag, found.path)); });
    host->from_first(tag, "");
    host->from_first("checkpoint", chosen ? chosen->path : "");
    return chosen;
  }
  for (std::string path; !(path = host->from_first(tag, "")).empty();) verify(path);
  const std::string chosen = host->from_first("checkpoint", "");
  return chosen.empty() ? std::nullopt : std::optional(open_checkpoint(env, chosen, false));
}

std::optional<TrainConfig> settings_of(const Checkpoint& checkpoint) {
  if (!checkpoint.has_file(checkpoint_file::kTrainConfig)) return std::nullopt;
  return readable_config(checkpoint.file_path(checkpoint_file::kTrainConfig));
}

std::vector<std::string> changed_settings(const Checkpoint& checkpoint, const TrainConfig& config) {
  std::vector<std::string> changes;
  if (!checkpoint.has_file(checkpoint_file::kTrainConfig)) return changes;
  TrainConfig before;
  try {
    before = load_stored_config(checkpoint.file_path(checkpoint_file::kTrainConfig), {});
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
