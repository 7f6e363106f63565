#include "checkpoint/resume.h"

#include <algorithm>
#include <filesystem>

#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/model_folder.h"
#include "checkpoint/rank_saving.h"
#include "checkpoint/resume_path.h"
#include "checkpoint/run_history.h"
#include "io/checkpoint_manifest.h"

namespace octet {

namespace fs = std::filesystem;

std::string RunFolders::run() const {
  return (fs::path(output_dir) / run_name).string();
}

std::string RunFolders::checkpoints(bool fp8) const {
  return checkpoint_dir.empty() ? (fs::path(run()) / kCheckpointFolders[fp8]).string() : checkpoint_dir;
}

std::optional<TrainedRun> known_run(const std::string& configuration) {
  try {
    return load_trained_run(configuration);
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::vector<std::string> latest_folders(Env& env, const CommonKeys& config) {
  std::vector<std::string> folders = checkpoint_folders(env, run_folder(config));
  const std::string& own = config.checkpoint_dir;
  if (own.empty()) return folders;
  const bool is_new =
      std::ranges::none_of(folders, [&](const std::string& folder) { return is_same_folder(folder, own); });
  if (is_new && holds_checkpoints(env, own)) folders.push_back(own);
  return folders;
}

namespace {

// A run that has saved something and whose checkpoints are out of sight must not begin again: its metrics, and
// later its checkpoints, would be lost. One that was ended before its first save may.
void refuse_lost_checkpoints(Env& env, const CommonKeys& config) {
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
void refuse_checkpoints_of_others(Env& env, const CommonKeys& config, const ChosenCheckpoint& found) {
  const std::string run = run_folder(config);
  const std::vector<std::string> own = checkpoint_folders(env, run);
  if (std::ranges::find(own, found.folder) != own.end() || last_checkpoint_of(env, run)) return;
  const std::optional<TrainedRun> saved =
      known_run(join_path(found.checkpoint.path, checkpoint_file::kRunConfig));
  if (!saved || saved->run_name.empty() || is_same_folder(run_folder(*saved), run)) return;
  fail_config(
      "resume is latest, but the checkpoints in checkpoint_dir {} are of the run {}, and {} has saved none; to begin a run "
      "with one of them, pass --resume {} and another checkpoint_dir, or none",
      found.folder, run_folder(*saved), run, found.folder);
}

// `check` is called with every candidate, and says what is wrong with its files; without it checksums are verified.
std::optional<Checkpoint> find_checkpoint_alone(Env& env, const CommonKeys& config, const FileCheck& check) {
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

std::optional<Checkpoint> find_checkpoint(Env& env, const CommonKeys& config, HostChannel* host) {
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

}  // namespace octet
