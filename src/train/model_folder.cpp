#include "train/model_folder.h"

#include <algorithm>

#include "base/log.h"
#include "data/tokenizer.h"
#include "io/checkpoint_manifest.h"
#include "io/hub.h"
#include "report/text.h"
#include "train/checkpoint.h"
#include "train/config.h"
#include "train/hf_folder.h"

namespace octet {
namespace {

std::optional<TrainConfig> read_run_config(const std::string& path) {
  try {
    return load_train_config(path, {});
  } catch (const Error& error) {
    log_warning("{} cannot be read, so what it says of the run is not known: {}", path, error.what());
    return std::nullopt;
  }
}

bool holds_tokenizer(Env& env, const std::string& folder) {
  for (const char* name : {"tokenizer.json", "vocab.json", "tokenizer.model"}) {
    if (env.exists(join_path(folder, name))) return true;
  }
  return false;
}

// The newest of all that the run's folders hold; a run that was switched to FP8 has two.
Checkpoint choose(Env& env, const std::vector<std::string>& folders, const std::string& path, bool best) {
  std::optional<Checkpoint> chosen;
  for (const std::string& folder : folders) {
    const CheckpointStore store(env, folder);
    std::optional<Checkpoint> candidate = best ? store.open_best() : store.open_latest();
    if (!candidate) continue;
    const bool better = !chosen || (best ? candidate->summary.loss < chosen->summary.loss
                                         : candidate->saved_at > chosen->saved_at);
    if (better) chosen = std::move(candidate);
  }
  require(chosen.has_value(), "[{}] holds no {}checkpoint", path, best ? "best " : "");
  return *chosen;
}

ModelFolder model_of_checkpoint(Checkpoint checkpoint) {
  ModelFolder model;
  model.folder = checkpoint.path;
  model.source = fmt::format("checkpoint of step {}, {}", checkpoint.step, checkpoint.path);
  if (checkpoint.has_file(checkpoint_file::kTrainConfig)) {
    model.run = read_run_config(checkpoint.file_path(checkpoint_file::kTrainConfig));
    if (model.run) model.tokenizer = model.run->tokenizer;
  }
  model.checkpoint = std::move(checkpoint);
  return model;
}

}  // namespace

bool holds_checkpoints(Env& env, const std::string& directory) {
  if (!env.is_directory(directory)) return false;
  for (const std::string& name : env.list(directory)) {
    if (name.starts_with("step_")) return true;
  }
  return false;
}

std::vector<std::string> checkpoint_folders(Env& env, const std::string& path) {
  if (holds_checkpoints(env, path)) return {path};
  std::vector<std::string> folders;
  for (const char* name : kCheckpointFolders) {
    if (const std::string folder = join_path(path, name); holds_checkpoints(env, folder))
      folders.push_back(folder);
  }
  if (const std::string config = join_path(path, "config.yaml"); env.exists(config)) {
    const std::optional<TrainConfig> run = read_run_config(config);
    if (run && !run->checkpoint_dir.empty() && holds_checkpoints(env, run->checkpoint_dir))
      folders.push_back(run->checkpoint_dir);
  }
  return folders;
}

std::string local_model_folder(const std::string& name) {
  if (posix_env().exists(name) || !is_hub_id(name)) return name;
  // A bare word is more often a mistyped folder than one of the hub's few models without an owner.
  if (name.find('/') == std::string::npos && !name.starts_with("gpt2")) return name;
  HubRequest request{.kind = HubKind::Model, .id = name, .files = hub_model_files()};
  double said = 0;
  request.on_progress = [&said](const HubProgress& progress) {
    const double share = static_cast<double>(progress.done_bytes) /
                         static_cast<double>(std::max<int64_t>(progress.total_bytes, 1));
    if (share >= said + 0.1 || said == 0) {
      log_info("hub: {} ({:.0f} % of {})", progress.file, 100 * share,
               human_bytes(static_cast<double>(progress.total_bytes)));
      said = std::max(share, 1e-9);
    }
    return true;
  };
  return hub_snapshot(request);
}

ModelFolder find_model(const std::string& name, bool best) {
  Env& env = posix_env();
  const std::string path = local_model_folder(name);
  require(env.is_directory(path),
          "[{}] is no folder, expected a model: a Hugging Face folder, a checkpoint or a run", path);
  ModelFolder model;
  if (env.exists(join_path(path, kManifestName))) {
    require(!best, "[{}] is one checkpoint, --best is for the folder of a run", path);
    model = model_of_checkpoint(open_checkpoint(env, path));
  } else if (env.exists(join_path(path, "config.json"))) {
    require(!best, "[{}] is a Hugging Face folder, --best is for the folder of a run", path);
    model.folder = path;
    model.source = fmt::format("Hugging Face folder {}", path);
  } else {
    const std::vector<std::string> folders = checkpoint_folders(env, path);
    require(!folders.empty(),
            "[{}] is no model: it holds neither config.json (a Hugging Face folder), {} (a checkpoint) nor "
            "checkpoints/step_N (a run)",
            path, kManifestName);
    model = model_of_checkpoint(choose(env, folders, path, best));
  }
  if (model.tokenizer.empty() && holds_tokenizer(env, model.folder)) model.tokenizer = model.folder;
  model.config = read_hf_config(model.folder);
  return model;
}

}  // namespace octet
