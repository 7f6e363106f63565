#include "checkpoint/model_folder.h"

#include <algorithm>
#include <filesystem>
#include <tuple>

#include "base/crc32c.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/tensor_files.h"
#include "data/tokenizer/tokenizer.h"
#include "hf/hf_folder.h"
#include "hf/peft_folder.h"
#include "io/checkpoint_manifest.h"
#include "io/hub.h"
#include "report/text.h"

namespace octet {
namespace {

std::optional<TrainedRun> read_trained_run(const std::string& path) {
  try {
    return load_trained_run(path);
  } catch (const Error& error) {
    log_warning("{} cannot be read, so the settings of the run are unknown: {}", path, error.what());
    return std::nullopt;
  }
}

constexpr const char* kTokenizerNames[] = {"tokenizer.json", "vocab.json", "tokenizer.model"};

bool holds_tokenizer(Env& env, const std::string& folder) {
  return std::ranges::any_of(kTokenizerNames,
                             [&](const char* name) { return env.exists(join_path(folder, name)); });
}

bool holds_tokenizer(const Checkpoint& checkpoint) {
  return std::ranges::any_of(kTokenizerNames, [&](const char* name) { return checkpoint.has_file(name); });
}

std::string absolute_path(const std::string& path) {
  return std::filesystem::absolute(path).lexically_normal().string();
}

// Whether the files of the tokenizer `name` are those that the checkpoint has copies of.
bool has_copy_of(const Checkpoint& checkpoint, const std::string& name) {
  Env& env = posix_env();
  try {
    return std::ranges::all_of(tokenizer_files(name), [&](const TokenizerFile& file) {
      const auto copy = std::ranges::find(checkpoint.files, file.name, &CheckpointFile::name);
      return copy != checkpoint.files.end() && copy->crc32c == crc32c(env.read_text(file.path));
    });
  } catch (const Error&) {  // it is gone, or broken
    return false;
  }
}

// Verifies only the files that a model is read from. The training state is several times larger and not needed.
void verify_model_files(Env& env, const Checkpoint& checkpoint) {
  std::vector<std::string_view> names;
  for (const CheckpointFile& file : checkpoint.files) {
    const bool is_training = is_tensor_file(file.name, kOptimizerStem) ||
                             file.name == checkpoint_file::kFp8 || file.name == checkpoint_file::kState;
    if (!is_training) names.push_back(file.name);
  }
  verify_files(env, checkpoint, names);
}

// The newest whole one of all that the run's folders hold (a run that was switched to FP8 has two), or the best.
Checkpoint choose(Env& env, const std::vector<std::string>& folders, const std::string& path, bool best) {
  std::vector<CheckpointListing> found;
  for (const std::string& folder : folders) {
    for (CheckpointListing& listing : CheckpointStore(env, folder).list()) {
      if (!best || listing.is_best) found.push_back(std::move(listing));
    }
  }
  std::stable_sort(found.begin(), found.end(), [&](const CheckpointListing& a, const CheckpointListing& b) {
    if (best) return a.checkpoint.summary.loss < b.checkpoint.summary.loss;
    return order_of(a.checkpoint) > order_of(b.checkpoint);
  });
  for (const CheckpointListing& listing : found) {
    try {
      require(listing.is_whole(), "[{}] is not a complete checkpoint: {}", listing.checkpoint.path,
              listing.broken);
      verify_model_files(env, listing.checkpoint);
      return listing.checkpoint;
    } catch (const Error& error) {
      log_warning("{}; it is skipped", error.what());
    }
  }
  fail("[{}] holds no {}{}checkpoint", path, found.empty() ? "" : "complete ", best ? "best " : "");
}

ModelFolder model_of_checkpoint(Checkpoint checkpoint) {
  ModelFolder model;
  model.folder = checkpoint.path;
  model.source = fmt::format("checkpoint of step {}, {}", checkpoint.step, checkpoint.path);
  if (checkpoint.has_file(checkpoint_file::kRunConfig)) {
    model.run = read_trained_run(checkpoint.file_path(checkpoint_file::kRunConfig));
    if (model.run) model.tokenizer = model.run->tokenizer;
  }
  // The original may have changed or be gone.
  if (holds_tokenizer(checkpoint)) model.tokenizer = checkpoint.path;
  model.checkpoint = std::move(checkpoint);
  return model;
}

// In any format: weights that octet cannot read are an error. Training must not start from random weights instead.
bool holds_any_weights(Env& env, const std::string& folder) {
  for (const std::string& file : env.list(folder)) {
    for (const char* ending : {".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt",
                               ".pth", ".ckpt", ".gguf", ".h5", ".msgpack"}) {
      if (file.ends_with(ending)) return true;
    }
  }
  return false;
}

}  // namespace

std::string tokenizer_of(const Checkpoint& checkpoint) {
  return model_of_checkpoint(checkpoint).tokenizer;
}

std::string tokenizer_source(const Checkpoint& checkpoint, const std::string& name) {
  if (name == "bytes" || !holds_tokenizer(checkpoint)) return name;
  const std::optional<TrainedRun> run = model_of_checkpoint(checkpoint).run;
  if (run && absolute_path(run->tokenizer) == absolute_path(name))
    return has_copy_of(checkpoint, name) ? name : checkpoint.path;
  if (posix_env().exists(name) || is_hub_tokenizer(name)) return name;
  fail_config("[tokenizer] '{}' does not exist; to use the copy in the checkpoint, pass --tokenizer {}", name,
              checkpoint.path);
}

bool holds_checkpoints(Env& env, const std::string& directory) {
  return !CheckpointStore(env, directory).list().empty();
}

std::vector<std::string> checkpoint_folders(Env& env, const std::string& path) {
  if (holds_checkpoints(env, path)) return {path};
  std::vector<std::string> folders;
  for (const char* name : kCheckpointFolders) {
    if (const std::string folder = join_path(path, name); holds_checkpoints(env, folder))
      folders.push_back(folder);
  }
  if (const std::string config = join_path(path, "config.yaml"); env.exists(config)) {
    const std::optional<TrainedRun> run = read_trained_run(config);
    if (run && !run->checkpoint_dir.empty() && holds_checkpoints(env, run->checkpoint_dir))
      folders.push_back(run->checkpoint_dir);
  }
  return folders;
}

std::string local_model_folder(const std::string& name) {
  if (!is_hub_name(name)) return name;
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
  try {
    return hub_snapshot(request);
  } catch (const Error& error) {
    fail("there is no folder {}, and reading it from the hub failed: {}", name, error.what());
  }
}

namespace {

bool is_adapter(const ModelFolder& model) {
  return model.checkpoint ? model.checkpoint->has_file(checkpoint_file::kAdapterConfig)
                          : posix_env().exists(join_path(model.folder, kAdapterConfigName));
}

// The folder behind the name, model or adapter, before its config is read.
ModelFolder locate(const std::string& name, bool best, std::string_view expected) {
  Env& env = posix_env();
  const std::string path = local_model_folder(name);
  if (!env.is_directory(path)) {
    const std::vector<std::string> presets = model_preset_names();
    const bool is_preset = std::find(presets.begin(), presets.end(), name) != presets.end();
    fail_config("[{}] is not a folder, expected {}{}", path, expected,
                is_preset ? fmt::format("; {0} is a preset: use --model_preset {0}", name) : "");
  }
  ModelFolder model;
  if (env.exists(join_path(path, kCheckpointManifestName))) {
    require(!best, "[{}] is a single checkpoint; --best needs the folder of a run", path);
    Checkpoint checkpoint = open_checkpoint(env, path, false);
    verify_model_files(env, checkpoint);
    model = model_of_checkpoint(std::move(checkpoint));
  } else if (env.exists(join_path(path, kAdapterConfigName))) {
    require(!best, "[{}] is the folder of an adapter; --best needs the folder of a run", path);
    model.folder = path;
    model.source = fmt::format("adapter {}", path);
  } else if (env.exists(join_path(path, "config.json"))) {
    require(!best, "[{}] is a Hugging Face folder; --best needs the folder of a run", path);
    model.folder = path;
    model.source = fmt::format("Hugging Face folder {}", path);
  } else {
    const std::vector<std::string> folders = checkpoint_folders(env, path);
    if (folders.empty()) {
      fail_config(
          "[{}] is neither a model nor an adapter: it holds neither config.json (a Hugging Face folder), {} (an "
          "adapter), {} (a checkpoint) nor checkpoints/step_N (a run)",
          path, kAdapterConfigName, kCheckpointManifestName);
    }
    model = model_of_checkpoint(choose(env, folders, path, best));
  }
  if (model.tokenizer.empty() && holds_tokenizer(env, model.folder)) model.tokenizer = model.folder;
  return model;
}

AdapterFolder as_adapter(ModelFolder found) {
  return {.folder = found.folder,
          .source = found.source,
          .checkpoint = std::move(found.checkpoint),
          .run = std::move(found.run),
          .tokenizer = std::move(found.tokenizer)};
}

ModelFolder with_adapter(ModelFolder base, AdapterFolder adapter) {
  if (!base.random_seed) base.source = fmt::format("{}; base: {}", adapter.source, base.source);
  base.checkpoint = adapter.checkpoint;
  base.run = adapter.run;
  if (!adapter.tokenizer.empty()) base.tokenizer = adapter.tokenizer;
  base.adapter = std::move(adapter);
  return base;
}

// The base that the adapter itself names.
ModelFolder named_base(const AdapterFolder& adapter) {
  const std::string place = join_path(adapter.folder, kAdapterConfigName);
  const PeftConfig config = read_peft_config(posix_env(), adapter.folder);
  const std::string advice =
      fmt::format("pass the base as MODEL and the adapter as --adapter_name_or_path {}", adapter.folder);
  if (config.base.empty()) {
    if (!adapter.run)
      fail_config("[{}] base_model_name_or_path is null, so the base is unknown; {}", place, advice);
    ModelFolder base;
    base.folder = adapter.folder;
    base.source = fmt::format("{}; base: random weights of seed {}", adapter.source, adapter.run->seed);
    base.random_seed = static_cast<uint64_t>(adapter.run->seed);
    base.config = read_hf_config(adapter.folder);
    return base;
  }
  if (!posix_env().exists(config.base) && !is_hub_id(config.base)) {
    fail_config("[{}] base_model_name_or_path is {}, which does not exist; {}", place, printable(config.base),
                advice);
  }
  if (!config.revision.empty() && config.revision != "main")
    log_warning("{} names revision {} of its base; octet takes the base as it is found", place,
                printable(config.revision));
  ModelFolder base;
  bool is_base = false;
  try {
    base = locate(config.base, false, "a model");
    is_base = !is_adapter(base);
    if (is_base) base.config = read_hf_config(base.folder);
  } catch (const Error& error) {
    fail("[{}] base_model_name_or_path is {}: {}; {}", place, printable(config.base), error.what(), advice);
  }
  if (!is_base) {
    fail_config(
        "[{0}] base_model_name_or_path is {1}, which is an adapter itself; merge it first: octet export {1} --merge "
        "--output DIR",
        place, printable(config.base));
  }
  return base;
}

constexpr const char* kModelExpected =
    "a model: a Hugging Face folder, a hub id such as org/name, an adapter, a checkpoint or a run";
constexpr const char* kAdapterExpected =
    "an adapter: a PEFT folder, a hub id of one, or a checkpoint or run of LoRA training";

}  // namespace

AdapterFolder find_adapter(const std::string& name, bool best) {
  ModelFolder found = locate(name, best, kAdapterExpected);
  if (!is_adapter(found)) fail_config("[{}] is a whole model, expected {}", found.folder, kAdapterExpected);
  return as_adapter(std::move(found));
}

ModelFolder find_model(const std::string& name, bool best, const std::string& adapter) {
  ModelFolder model = locate(name, best && adapter.empty(), kModelExpected);
  if (!adapter.empty()) {
    if (is_adapter(model))
      fail_config("[{}] is an adapter itself; with --adapter_name_or_path, MODEL must be the base model",
                  model.folder);
    model.config = read_hf_config(model.folder);
    model.base_given = true;
    return with_adapter(std::move(model), find_adapter(adapter, best));
  }
  if (is_adapter(model)) {
    AdapterFolder found = as_adapter(std::move(model));
    ModelFolder base = named_base(found);
    return with_adapter(std::move(base), std::move(found));
  }
  model.config = read_hf_config(model.folder);
  return model;
}

ModelFolder find_start(const std::string& name) {
  Env& env = posix_env();
  if (name.ends_with(".json") && env.exists(name) && !env.is_directory(name)) {
    ModelFolder model;
    model.folder = std::filesystem::absolute(name).parent_path().string();
    model.source = name;
    model.has_weights = false;
    if (holds_tokenizer(env, model.folder)) model.tokenizer = model.folder;
    model.config = model_config_from_hf(env.read_text(name), name);
    return model;
  }
  // A downloaded folder has the weights that octet reads, or none.
  const bool is_here = env.is_directory(name);
  ModelFolder model = locate(name, false, kModelExpected);
  if (is_adapter(model)) {
    fail_config(
        "[model_name_or_path] {} is an adapter; set model_name_or_path to its base model and adapter_name_or_path to "
        "the adapter",
        model.folder);
  }
  model.config = read_hf_config(model.folder);
  if (is_here && !model.checkpoint && !holds_any_weights(env, model.folder)) model.has_weights = false;
  return model;
}

}  // namespace octet
