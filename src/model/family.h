#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "model/hf_fields.h"

namespace octet {

// The names of the tensors in a Hugging Face folder, without ".weight" and ".bias". Names of a block follow
// "<block>.<layer>.". A list names the parts of one of octet's matrices, from its first row on.
struct TensorNames {
  std::string embedding;
  std::string positions;  // learned positions only
  std::string block;
  std::string attention_norm;
  std::vector<std::string> qkv;  // one fused matrix, or queries, keys and values
  std::string q_norm, k_norm;    // qk_norm only
  std::string out;
  std::string mlp_norm;
  std::vector<std::string> up;  // one matrix, or gate and up
  std::string down;
  std::string final_norm;
  std::string head;
  bool transposed = false;  // matrices of a block are stored (in, out)
};

// A family of models as data. Code outside src/model/families never asks for a model's family. It depends only on
// fields of ModelConfig and of this struct.
struct FamilySpec {
  std::string name;          // "model_type" of config.json
  std::string alias;         // another name that people use, or none
  std::string architecture;  // the class of Transformers
  TensorNames tensors;
  // Features, and values for a model of which only the sizes are given (see resolve_model).
  ModelConfig defaults;
  int64_t (*default_ffn)(int64_t width) = nullptr;
  int64_t head_dim = 0;  // width of a head, independent of the model's width; 0: width / heads
  // The fields of config.json that the families do not share. When reading, `config` already holds the defaults.
  void (*read)(const HfFields& fields, ModelConfig& config) = nullptr;
  HfJson (*write)(const ModelConfig& config) = nullptr;
  std::vector<ModelConfig> (*presets)() = nullptr;
  // In GGUF files: the architecture, and whether the rotation pairs neighbours there (2i, 2i + 1), so that the rows of
  // queries and keys are reordered.
  std::string gguf_architecture;
  bool gguf_pairs_neighbours = false;

  // A model of the family with all its features and no sizes.
  ModelConfig start() const {
    ModelConfig config = defaults;
    config.family = this;
    config.name = name;
    return config;
  }
};

std::span<const FamilySpec* const> model_families();
// Null if there is none with this name.
const FamilySpec* find_family(std::string_view name);

// One file each, below families/.
const FamilySpec& gpt2_family();
const FamilySpec& llama_family();
const FamilySpec& qwen2_family();
const FamilySpec& qwen3_family();
const FamilySpec& mistral_family();

}  // namespace octet
