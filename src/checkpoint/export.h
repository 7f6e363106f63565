#pragma once

#include <optional>
#include <string>

#include "checkpoint/model_folder.h"
#include "data/chat/chat_template.h"
#include "io/gguf.h"
#include "io/safetensors.h"
#include "model/adapters.h"
#include "model/transformer.h"

namespace octet {

struct ExportOptions {
  std::optional<SafeDType> dtype;                // F32 or BF16; absent: as the weights are stored
  int64_t shard_bytes = int64_t{5'000'000'000};  // weights above this are cut into files of at most this size
  std::string tokenizer;                         // instead of the model's; as for make_tokenizer
  std::string base;  // of an adapter: name of the base instead of what its config says
};

struct Exported {
  int64_t tensors = 0, bytes = 0, files = 0;  // of the weights
  SafeDType dtype = SafeDType::F32;
  std::string tokenizer;  // what was written of it, in words
  std::string chat_end;   // the token that ends an answer, if a chat template was written
};

// Writes the model as a Hugging Face folder: config.json, generation_config.json, safetensors (with an index where
// there are several) and the tokenizer's files. In F32 the weights of a bf16 run are exact: the remainders of its
// checkpoint are added. An adapter is merged: W + scale * B A in fp32, rounded once. Everything is written to a
// temporary folder next to `output`, which is renamed when it is complete. If `output` exists and is not empty, a
// ConfigError is thrown.
Exported export_model(Env& env, const ModelFolder& model, const std::string& output,
                      const ExportOptions& options);

// Writes the model as one GGUF file for llama.cpp and Ollama, with its tokenizer and chat template. Matrices are stored as
// `type`. An adapter is merged. The file gets its name when it is complete; ConfigError if `output` exists.
Exported export_gguf(Env& env, const ModelFolder& model, const std::string& output, GgmlType type,
                     const ExportOptions& options);

// Writes the adapter of the model as a PEFT folder: adapter_config.json, adapter_model.safetensors in F32 and the
// tokenizer's files, likewise all at once.
struct ExportedAdapter : Exported {
  AdapterPlan plan;
  std::string base;  // base_model_name_or_path; empty: the base has random weights and no name
};
ExportedAdapter export_adapter(Env& env, const ModelFolder& model, const std::string& output,
                               const ExportOptions& options);

// Writes a model in training: with adapters their PEFT folder for the base of this name, else a Hugging Face folder.
// `about` says where its tokenizer is and, if it started from a folder, generation_config.json; `chat`, how it is talked to.
void export_trained(Env& env, Device& device, Transformer& model, const ModelFolder& about,
                    const std::optional<ChatStyle>& chat, const std::string& base, const std::string& output);

// Which programs can load the adapter, one line each: "vLLM: yes, with --max-lora-rank 32".
std::vector<std::string> adapter_loaders(const ModelConfig& config, const AdapterPlan& plan);

}  // namespace octet
