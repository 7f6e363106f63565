#pragma once

#include <optional>
#include <string>
#include <tuple>

#include "config/trained_run.h"
#include "io/checkpoint_store.h"
#include "model/config.h"

namespace octet {

// An adapter on disk, however it was named.
struct AdapterFolder {
  std::string folder;                    // holds adapter_config.json and adapter_model.safetensors
  std::string source;                    // "adapter x", "checkpoint of step 500, runs/a/checkpoints/step_500"
  std::optional<Checkpoint> checkpoint;  // where it is one
  std::optional<TrainedRun> run;         // how a checkpoint was trained, where that can be read
  std::string tokenizer;                 // as in ModelFolder
};

// A trained model on disk, however it was named.
struct ModelFolder {
  std::string folder;  // holds config.json and the safetensors; with an adapter: of its base
  std::string source;  // "Hugging Face folder x", "checkpoint of step 500, runs/a/checkpoints/step_500"
  std::optional<Checkpoint> checkpoint;  // where it is one
  std::optional<TrainedRun> run;         // how a checkpoint was trained, where that can be read
  std::string tokenizer;  // for make_tokenizer, a checkpoint's own copy first; empty: not known
  bool has_weights = true;
  std::optional<AdapterFolder> adapter;  // to be added to the weights
  bool base_given = false;               // the user named the base of the adapter, not the adapter itself
  std::optional<uint64_t> random_seed;   // of a base without files: its weights are drawn again
  ModelConfig config;                    // with the ids that end a text, where folder or tokenizer know them
};

// The folder itself where there is one. Otherwise `name` may be a hub id (org/name, or gpt2 and its sizes), whose files
// are taken from the Hugging Face cache or downloaded into it.
std::string local_model_folder(const std::string& name);

// `name` is a Hugging Face folder or hub id, a checkpoint (step_N), a folder of checkpoints or the folder of a run. Of
// several checkpoints the latest is taken, or the best with `best`. Checksums of what is read are verified. ConfigError
// that says what was looked for where the name leads to no model, Error where the model is broken. An adapter (see
// find_adapter) is found together with its base. With `adapter`, `name` is the base and `best` is about the adapter.
ModelFolder find_model(const std::string& name, bool best = false, const std::string& adapter = "");

// `name` is a PEFT folder, a hub id of one, a checkpoint of LoRA training, or the folder of such a run. Of several
// checkpoints the latest is taken, or the best.
AdapterFolder find_adapter(const std::string& name, bool best = false);

// The same for the start of a run, where weights are optional: `name` may also be a local folder with config.json and
// no weights in any format, or a .json file. ConfigError for an adapter, which is not named this way.
ModelFolder find_start(const std::string& name);

// The checkpoint's copy of its tokenizer or, where it has none, what the run used; empty: not known.
std::string tokenizer_of(const Checkpoint& checkpoint);

// Where to read the tokenizer `name` of a resumed run: `name` itself, or the copy in the checkpoint if `name` is the
// tokenizer of the run and is gone or changed. ConfigError if it is another tokenizer that does not exist.
std::string tokenizer_source(const Checkpoint& checkpoint, const std::string& name);

// The newer of two checkpoints has the larger tuple: when it was saved, in seconds, and how far the training had come.
// Numbers of saves count in one folder only.
inline std::tuple<int64_t, int64_t, int64_t> order_of(const Checkpoint& checkpoint) {
  return {checkpoint.saved_at, checkpoint.step, checkpoint.sequence};
}

// The folders of a run that hold its checkpoints, [whether they are of FP8 training].
constexpr const char* kCheckpointFolders[] = {"checkpoints", "checkpoints_fp8"};
bool holds_checkpoints(Env& env, const std::string& directory);

// The folders of checkpoints of a run (checkpoint_dir too, where its config.yaml names one), or `path` itself where it
// is one; empty where there are none.
std::vector<std::string> checkpoint_folders(Env& env, const std::string& path);

}  // namespace octet
