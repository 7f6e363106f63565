#pragma once

#include <optional>
#include <string>

#include "io/checkpoint_store.h"
#include "model/config.h"
#include "train/config.h"

namespace octet {

// A trained model on disk, however it was named.
struct ModelFolder {
  std::string folder;  // holds config.json and the safetensors
  std::string source;  // "Hugging Face folder x", "checkpoint of step 500, runs/a/checkpoints/step_500"
  std::optional<Checkpoint> checkpoint;  // where it is one
  std::optional<TrainConfig> run;        // how a checkpoint was trained, where that can be read
  std::string tokenizer;                 // for make_tokenizer; empty: not known
  ModelConfig config;                    // with the ids that end a text, where folder or tokenizer know them
};

// The folder itself where there is one. Otherwise `name` may be a hub id (org/name, or gpt2 and its sizes), whose files
// are taken from the Hugging Face cache or downloaded into it.
std::string local_model_folder(const std::string& name);

// `name` is a Hugging Face folder or hub id, a checkpoint (step_N), a folder of checkpoints or the folder of a run. Of several
// checkpoints the latest is taken, or the best with `best`. Checksums of what is read are verified. ConfigError that
// says what was looked for where the name leads to no model, Error where the model is broken.
ModelFolder find_model(const std::string& name, bool best = false);

// The tokenizer that the run of a checkpoint used, or the checkpoint's copy where that is gone; empty: not known.
std::string tokenizer_of(const Checkpoint& checkpoint);

// What to read the tokenizer `name` of a resumed run from: `name`, or the checkpoint's copy where that is gone. A copy
// of another tokenizer than `name` is not taken; ConfigError.
std::string tokenizer_source(const Checkpoint& checkpoint, const std::string& name);

// The folders of a run that hold its checkpoints, [whether they are of FP8 training].
constexpr const char* kCheckpointFolders[] = {"checkpoints", "checkpoints_fp8"};
bool holds_checkpoints(Env& env, const std::string& directory);

// The folders of checkpoints of a run (checkpoint_dir too, where its config.yaml names one), or `path` itself where it is one; empty where there are none.
std::vector<std::string> checkpoint_folders(Env& env, const std::string& path);

}  // namespace octet
