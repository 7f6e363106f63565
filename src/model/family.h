#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "model/hf_fields.h"

namespace octet {

// The names of the tensors in a Hugging Face folder, without ".weight" and ".bias". Those of a block stand behind
// "<block>.<layer>.". A list names the parts of one of octet's matrices from its first row on.
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

// A family of models as data. Code outside src/model/families never asks which family a model is of: what it may depend
// on is a field of ModelConfig or stands here.
struct FamilySpec {
  std::string name;          // "model_type" of config.json
  std::string architecture;  // the class of Transformers
  TensorNames tensors;
  // Features, and the values of a model for which only its sizes are given (see resolve_model).
  ModelConfig defaults;
  int64_t (*default_ffn)(int64_t width) = nullptr;
  int64_t head_dim = 0;  // width of a head whatever the width of the model is; 0: width / heads
  // The fields of config.json that the families do not share. `config` holds the defaults when it is read into.
  void (*read)(const HfFields& fields, ModelConfig& config) = nullptr;
  HfJson (*write)(const ModelConfig& config) = nullptr;
  std::vector<ModelConfig> (*presets)() = nullptr;

  // A model of the family with all its features and no sizes.
  ModelConfig start() const {
    ModelConfig config = defaults;
    config.family = this;
    config.name = name;
    return config;
  }
};

std::span<const FamilySpec* const> model_families();
// Null where there is none of this name.
const FamilySpec* find_family(std::string_view name);

// One file each, below families/.
const FamilySpec& gpt2_family();
const FamilySpec& llama_family();
const FamilySpec& qwen2_family();
const FamilySpec& qwen3_family();
const FamilySpec& mistral_family();

}  // namespace octet
