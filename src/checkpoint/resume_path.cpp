#include "checkpoint/resume_path.h"

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/model_folder.h"
#include "checkpoint/resume.h"
#include "checkpoint/run_history.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

// Files that only the folder of a run has. A project may have a config.yaml of its own next to a folder of checkpoints.
bool is_run(Env& env, const fs::path& folder) {
  return env.exists((folder / "metrics.jsonl").string()) || env.exists((folder / "plan.json").string());
}

fs::path plain(const std::string& path) {
  const fs::path folder = fs::absolute(path).lexically_normal();
  return folder.has_filename() ? folder : folder.parent_path();  // without a slash at the end
}

std::string said(const std::string& typed, const char* what, const std::string& path) {
  log_info("resume: {} means {}{}", typed, what, path);
  return path;
}

// The folder that is meant by `path`, where that is a pointer of octet's or is not there. Nothing: none.
std::optional<std::string> meant_by(Env& env, const std::string& typed, const fs::path& path) {
  const std::string folder = path.has_parent_path() ? path.parent_path().string() : ".";
  const std::vector<std::string> folders = checkpoint_folders(env, folder);
  if (folders.empty()) return std::nullopt;
  constexpr const char* kEndings[] = {".pt", ".pth", ".ckpt", ".bin", ".safetensors"};
  const bool is_file_of_others = std::ranges::find(kEndings, path.extension()) != std::end(kEndings);
  if (is_file_of_others && env.exists(path.string())) return std::nullopt;
  const std::string name = (is_file_of_others ? path.stem() : path.filename()).string();
  if (const std::string step = join_path(folder, name); env.is_directory(step)) return said(typed, "", step);
  const auto is_called = [&](const char* word) {
    return name == word || (is_file_of_others && name.starts_with(word));
  };
  if (is_called("latest") || is_called("last")) return said(typed, "the latest checkpoint in ", folder);
  if (!is_called("best")) return std::nullopt;
  const std::optional<ChosenCheckpoint> best = best_checkpoint(env, folders);
  if (!best) fail_config("resume is {}, but no checkpoint in {} is marked as the best", typed, folder);
  return said(typed, "", best->checkpoint.path);
}

// A checkpoint names its run as it was typed, so that name may lead to another run of today's folder.
bool keeps_checkpoints_in(Env& env, const std::string& run, const std::string& place) {
  const std::optional<std::string> last = last_checkpoint_of(env, run);
  if (last && !last->empty() && is_same_folder(fs::path(*last).parent_path().string(), place)) return true;
  const std::optional<TrainedRun> config = known_run((fs::path(run) / "config.yaml").string());
  return config && !config->checkpoint_dir.empty() && is_same_folder(config->checkpoint_dir, place);
}

}  // namespace

std::optional<ChosenCheckpoint> newest_checkpoint(Env& env, const std::vector<std::string>& folders) {
  std::optional<ChosenCheckpoint> newest;
  for (const std::string& folder : folders) {
    for (const CheckpointListing& listing : CheckpointStore(env, folder).list()) {
      if (!newest || order_of(listing.checkpoint) > order_of(newest->checkpoint))
        newest = {listing.checkpoint, folder};
    }
  }
  return newest;
}

std::optional<ChosenCheckpoint> best_checkpoint(Env& env, const std::vector<std::string>& folders) {
  std::optional<ChosenCheckpoint> best;
  for (const std::string& folder : folders) {
    for (const CheckpointListing& listing : CheckpointStore(env, folder).list()) {
      const bool is_lower = !best || listing.checkpoint.summary.loss < best->checkpoint.summary.loss;
      if (listing.is_best && is_lower) best = {listing.checkpoint, folder};
    }
  }
  return best;
}

bool is_same_folder(const std::string& a, const std::string& b) {
  return fs::weakly_canonical(plain(a)) == fs::weakly_canonical(plain(b));
}

std::string run_of_checkpoint(Env& env, const std::string& path) {
  fs::path folder = plain(path), below;
  for (int up = 0; up < 3 && folder.has_filename(); ++up, folder = folder.parent_path()) {
    // A metrics.jsonl anywhere above a copied checkpoint does not make a run of its folder.
    const bool is_usual = up == 0 ||
                          std::ranges::find(kCheckpointFolders, below) != std::end(kCheckpointFolders) ||
                          env.exists((folder / "config.yaml").string());
    if (is_usual && is_run(env, folder)) return folder.string();
    below = folder.filename();
  }
  const std::optional<ChosenCheckpoint> newest = newest_checkpoint(env, checkpoint_folders(env, path));
  const fs::path checkpoint = newest ? plain(newest->checkpoint.path) : plain(path);
  const std::optional<TrainedRun> own = known_run((checkpoint / checkpoint_file::kRunConfig).string());
  if (!own || own->checkpoint_dir.empty() || own->run_name.empty()) return "";
  const std::string run = run_folder(*own), place = checkpoint.parent_path().string();
  return is_same_folder(own->checkpoint_dir, place) && keeps_checkpoints_in(env, run, place) ? run : "";
}

std::string resume_path(Env& env, const std::string& typed, const std::function<std::string()>& run) {
  if (typed == "latest" || env.is_directory(typed)) return typed;
  if (typed == "best") {
    const std::string folder = run();
    const std::optional<ChosenCheckpoint> best = best_checkpoint(env, checkpoint_folders(env, folder));
    if (!best) fail_config("resume is best, but {} has no checkpoint that is marked as the best", folder);
    return said(typed, "", best->checkpoint.path);
  }
  if (const auto found = meant_by(env, typed, typed)) return *found;
  if (env.exists(typed)) {
    fail_config(
        "resume is {}, a file that octet does not read: its checkpoints are folders, and it never loads pickles. To start "
        "from such weights, save them as safetensors in a Hugging Face folder "
        "(model.save_pretrained(DIR, safe_serialization=True)) and set model_name_or_path to it",
        typed);
  }
  if (fs::path(typed).is_relative()) {
    if (const std::string folder = run(); !folder.empty()) {
      const std::string inside = join_path(folder, typed);
      if (env.is_directory(inside)) return said(typed, "", inside);
      if (const auto found = meant_by(env, typed, inside)) return *found;
    }
  }
  fail_config(
      "resume is {}, which does not exist; expected latest, best, or the folder of a checkpoint, of checkpoints or of a "
      "run",
      typed);
}

}  // namespace octet
