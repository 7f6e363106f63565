#pragma once

#include <optional>
#include <string>

#include "checkpoint/model_folder.h"
#include "io/safetensors.h"

namespace octet {

struct ExportOptions {
  std::optional<SafeDType> dtype;                // F32 or BF16; absent: as the weights are stored
  int64_t shard_bytes = int64_t{5'000'000'000};  // weights above this are cut into files of at most this size
  std::string tokenizer;                         // instead of the model's; as for make_tokenizer
};

struct Exported {
  int64_t tensors = 0, bytes = 0, files = 0;  // of the weights
  SafeDType dtype = SafeDType::F32;
  std::string tokenizer;  // what was written of it, in words
};

// Writes the model as a Hugging Face folder: config.json, generation_config.json, safetensors (with an index where
// there are several) and the tokenizer's files. In F32 the weights of a bf16 run are exact: the remainders of its
// checkpoint are added. Everything is written to a temporary folder next to `output`, which is renamed when it is
// complete. If `output` exists and is not empty, a ConfigError is thrown.
Exported export_model(Env& env, const ModelFolder& model, const std::string& output,
                      const ExportOptions& options);

}  // namespace octet
