#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/common_keys.h"

namespace octet {

// The model of a run that names a dataset and no model.
inline constexpr const char* kAssumedPreset = "gpt2";

enum class TieWordEmbeddings { Auto, Yes, No };
enum class FinetuningType { Full, Lora };

// Which model is trained, and which of its weights.
struct ModelKeys : CommonKeys {
  std::string model_preset;  // "" with no model_name_or_path: resolved to gpt2, and to llama-tiny in the demo
  std::string model_name_or_path;  // a Hugging Face folder
  // Override the sizes of the model, for a start from random weights. 0: not set. If one is set, all are filled in.
  int64_t hidden_size = 0, num_hidden_layers = 0, num_attention_heads = 0, num_key_value_heads = 0;
  int64_t head_dim = 0, intermediate_size = 0, vocab_size = 0, max_position_embeddings = 0;
  TieWordEmbeddings tie_word_embeddings = TieWordEmbeddings::Auto;

  // LoRA. With adapter_name_or_path, the adapter decides rank, alpha, targets and rslora, see its help.
  FinetuningType finetuning_type = FinetuningType::Full;  // Lora if adapter_name_or_path is set
  int64_t lora_rank = 16;
  // 0 is resolved to 2 x lora_rank. It stays 0 if an adapter decides it, and without LoRA.
  double lora_alpha = 0;
  double lora_dropout = 0;
  std::vector<std::string> lora_target = {"all"};
  bool use_rslora = false;
  double loraplus_lr_ratio = 1;      // 1: off
  std::string adapter_name_or_path;  // "": new adapters

  bool is_lora() const { return finetuning_type == FinetuningType::Lora; }
};

// The value of a key of this struct as users write it.
std::string config_text(const ModelKeys& keys, std::string_view key);

// Whether the model is GPT-2 because the keys of this new run name none.
bool assumes_gpt2(const ModelKeys& keys);
// Whether they say how large the model is, so that it is not one of those that people know.
bool sets_model_sizes(const ModelKeys& keys);

}  // namespace octet
