#include "checkpoint/resume.h"

#include <algorithm>
#include <filesystem>

#include "base/log.h"
#include "base/regular_file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/model_folder.h"
#include "checkpoint/rank_saving.h"
#include "checkpoint/resume_path.h"
#include "checkpoint/run_history.h"
#include "io/checkpoint_manifest.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLatest = "latest";

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

// The configuration of a run, as octet wrote it. What an older octet wrote means what it meant there: before
// fp8_fast_accum, sums were exact, and fp8_head true put all products of the head in FP8. One thing is not kept:
// an older octet had fast sums of any length. Today, those over more than kMostTokensOfFastSums tokens or
// kMostInputsOfFastSums inputs are exact, because longer fast sums may cost accuracy.
TrainConfig load_stored_config(const std::string& path, std::span<const KeySetting> flags) {
  FileSettings file{.path = path, .settings = {}, .errors = {}};
  require_regular_file(path);
  file.settings = read_settings_file(path, file.errors);
  const auto find = [&](std::string_view key) {
    return std::ranges::find(file.settings, key, &KeySetting::name);
  };
  const bool older = find("fp8_fast_accum") == file.settings.end();
  if (const auto head = find("fp8_head"); older && head != file.settings.end()) {
    if (head->values == std::vector<std::string>{"true"}) head->values = {"all"};
  }
  TrainConfig config = load_train_config(std::move(file), flags);
  const bool matters = config.mixed_precision == Precision::Fp8 && has_scale_per_tensor(config.fp8_recipe);
  if (older && matters && !config.is_set("fp8_fast_accum")) config.fp8_fast_accum = Fp8FastAccum::None;
  return config;
}

void say_other_dataset(const fs::path& of_checkpoint, const fs::path& of_run) {
  const auto dataset_in = [](const fs::path& path) {
    const std::optional<TrainConfig> config = stored_config(path.string());
    return config ? config_text(*config, "dataset") : "";
  };
  const std::string own = dataset_in(of_checkpoint), later = dataset_in(of_run);
  if (!own.empty() && !later.empty() && own != later)
    log_info("resume: dataset is {}, as when the checkpoint was saved; later the run had {}", own, later);
}

}  // namespace

std::string RunFolders::run() const {
  return (fs::path(output_dir) / run_name).string();
}

std::string RunFolders::checkpoints(bool fp8) const {
  return checkpoint_dir.empty() ? (fs::path(run()) / kCheckpointFolders[fp8]).string() : checkpoint_dir;
}

std::optional<TrainConfig> stored_config(const std::string& path) {
  try {
    return load_stored_config(path, {});
  } catch (const Error&) {
    return std::nullopt;
  }
}

namespace {

// Where `latest` looks: in the run's folders, in the checkpoint_dir that it had, and in the one that is set now.
std::vector<std::string> latest_folders(Env& env, const TrainConfig& config) {
  std::vector<std::string> folders = checkpoint_folders(env, run_folder(config));
  const std::string& own = config.checkpoint_dir;
  if (own.empty()) return folders;
  const bool is_new =
      std::ranges::none_of(folders, [&](const std::string& folder) { return is_same_folder(folder, own); });
  if (is_new && holds_checkpoints(env, own)) folders.push_back(own);
  return folders;
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
  const bool is_checkpoint = !latest && (env.exists(own) || env.exists(join_path(checkpoint, kManifestName)));
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
    const std::optional<TrainConfig> stored = stored_config(origin.configuration);
    if (!stored || stored->is_demo()) return;
    fail_config("{} names no dataset, but the run was trained on {}; set dataset (demo is the built-in data)",
                given.path, config_text(*stored, "dataset"));
  }
  const bool has_run = !origin.run.empty() && has_text(fs::path(origin.run) / "metrics.jsonl");
  if (!origin.configuration.empty() || (origin.checkpoint.empty() && !has_run)) return;
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
    config = load_stored_config(origin.configuration, flags);
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

namespace {

// A run that has saved something and whose checkpoints are out of sight must not begin again: its metrics, and
// later its checkpoints, would be lost. One that was ended before its first save may.
void refuse_lost_checkpoints(Env& env, const TrainConfig& config) {
  const std::string folder = run_folder(config);
  const std::optional<std::string> last = last_checkpoint_of(env, folder);
  if (!last) return;
  fail_config(
      "resume is latest, and {} has saved checkpoints{}, but none of them is there now; nothing is changed. If their disk is "
      "not mounted, mount it. If they were moved, pass --checkpoint_dir with the folder that holds them. To start again "
      "from the beginning, choose another run_name",
      folder, last->empty() ? "" : fmt::format(" (the last one is {})", *last));
}

// A run that has saved nothing must not go on as the run of another name, because that one's checkpoints are where its
// own would be.
void refuse_checkpoints_of_others(Env& env, const TrainConfig& config, const ChosenCheckpoint& found) {
  const std::string run = run_folder(config);
  const std::vector<std::string> own = checkpoint_folders(env, run);
  if (std::ranges::find(own, found.folder) != own.end() || last_checkpoint_of(env, run)) return;
  const std::optional<TrainConfig> saved =
      stored_config(join_path(found.checkpoint.path, checkpoint_file::kRunConfig));
  if (!saved || saved->run_name.empty() || is_same_folder(run_folder(*saved), run)) return;
  fail_config(
      "resume is latest, but the checkpoints in checkpoint_dir {} are of the run {}, and {} has saved none; to begin a run "
      "with one of them, pass --resume {} and another checkpoint_dir, or none",
      found.folder, run_folder(*saved), run, found.folder);
}

// `check` is called with every candidate, and says what is wrong with its files; without it checksums are verified.
std::optional<Checkpoint> find_checkpoint_alone(Env& env, const TrainConfig& config, const FileCheck& check) {
  const bool latest = config.resume == kLatest;
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
  }
  const auto newest =
      newest_checkpoint(env, latest ? latest_folders(env, config) : checkpoint_folders(env, config.resume));
  if (newest && latest) refuse_checkpoints_of_others(env, config, *newest);
  if (newest) return CheckpointStore(env, newest->folder).open_latest(check);
  if (latest) {
    refuse_lost_checkpoints(env, config);
    return std::nullopt;
  }
  if (env.exists(join_path(config.resume, "metrics.jsonl"))) {
    const fs::path run = fs::absolute(config.resume).lexically_normal();
    const fs::path folder = run.has_filename() ? run : run.parent_path();
    const std::optional<std::string> last = last_checkpoint_of(env, folder.string());
    if (last) {
      fail_config("resume is {}, a run whose checkpoints are not there any more{}", config.resume,
                  last->empty() ? "" : fmt::format("; the last one was {}", *last));
    }
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
  if (!checkpoint.has_file(checkpoint_file::kRunConfig)) return std::nullopt;
  return stored_config(checkpoint.file_path(checkpoint_file::kRunConfig));
}

std::vector<std::string> changed_settings(const Checkpoint& checkpoint, const TrainConfig& config) {
  std::vector<std::string> changes;
  if (!checkpoint.has_file(checkpoint_file::kRunConfig)) return changes;
  TrainConfig before;
  try {
    before = load_stored_config(checkpoint.file_path(checkpoint_file::kRunConfig), {});
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
