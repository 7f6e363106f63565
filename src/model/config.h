#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/checked.h"
#include "ops/device.h"

namespace octet {

struct FamilySpec;  // model/family.h

// rope_scaling of type "llama3": low frequencies are divided by `factor`, high ones kept, those between blended.
struct RopeScaling {
  double factor = 1;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_max_positions = 8192;
  bool operator==(const RopeScaling&) const = default;
};

// A decoder-only model as data: the families differ in these fields, not in code.
struct ModelConfig {
  std::string name;
  const FamilySpec* family = nullptr;  // names of tensors and the form of config.json
  int64_t vocab = 0;
  int64_t layers = 0;
  int64_t width = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t ffn = 0;
  int64_t max_positions = 0;
  NormKind norm = NormKind::RmsNorm;
  float norm_epsilon = 1e-5f;
  Activation activation = Activation::SwiGlu;
  bool learned_positions = false;  // GPT-2's table; otherwise rotary
  double rope_theta = 10000;
  std::optional<RopeScaling> rope_scaling;
  int64_t window = 0;    // tokens that a query sees, including itself; 0: all before it
  bool qk_norm = false;  // RMSNorm of every query and key head, before the rotation
  bool qkv_bias = false;
  bool out_bias = false;  // of the attention output and of the MLP
  bool tied_head = false;
  bool scaled_residual_init =
      false;  // projections into the residual stream start smaller, scaled by their number
  float init_std = 0.02f;
  // The tokens that begin and end a text, if known. A model may have several end tokens.
  std::optional<int32_t> bos_id;
  std::vector<int32_t> eos_ids;
  std::optional<int32_t> pad_id;  // octet pads with any id; kept for other programs

  bool operator==(const ModelConfig&) const = default;

  // Rows of the embedding and head as stored: padded for alignment. The extra rows stay zero and get no probability.
  int64_t padded_vocab() const { return round_up(vocab, vocab >= 4096 ? 128 : 16); }
  int64_t up_width() const { return activation == Activation::SwiGlu ? 2 * ffn : ffn; }
  AttentionShape attention() const;

  // Parameters of the unpadded model.
  int64_t parameter_count() const;
  // Throws Error naming the first invalid field.
  void validate() const;
};

// A preset by name ("gpt2", "llama-3.2-1b", "qwen2.5-14b", "llama-tiny"); otherwise ConfigError with the nearest
// name.
ModelConfig model_preset(std::string_view name);
std::vector<std::string> model_preset_names();

// Sizes that replace those of a preset, a family or a config.json; 0 or absent: not given.
struct ModelSizes {
  int64_t vocab = 0, layers = 0, width = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0, max_positions = 0;
  std::optional<bool> tied_head;
  bool operator==(const ModelSizes&) const = default;
};
// The base with these sizes. Sizes that depend on others are derived again: key/value heads from heads, head_dim from
// width and heads, and the MLP's width from the width by the family's rule. ConfigError if the result is not a model
// of the family.
ModelConfig resolve_model(const ModelConfig& base, const ModelSizes& sizes);
// The same, starting from a preset or a family (such as "llama"). A family needs its main sizes given.
ModelConfig resolve_model(std::string_view preset_or_family, const ModelSizes& sizes);

// Throws ConfigError when sequences of `length` tokens are too long for the model. `key` names the setting of the
// length. A model that starts from random weights can have more positions, which the message then says.
void check_sequence_length(const ModelConfig& config, std::string_view key, int64_t length,
                           bool random_start = false);

// From the text of a Hugging Face config.json; `place` names the file in errors.
ModelConfig model_config_from_hf(std::string_view json_text, std::string_view place);
// The inverse: the text of a config.json from which both octet and Transformers build this model. `weights` (F32 or
// BF16) is the dtype of the folder's tensors. The name is not stored: a model read back has its family's name.
std::string to_hf_config(const ModelConfig& config, DType weights);

// The frequencies (D / 2) of the rotary embedding, scaled as the config says, and the table of the rope ops:
// (positions, D), cos then sin.
std::vector<double> rope_frequencies(const ModelConfig& config);
std::vector<float> rope_table(const ModelConfig& config, int64_t positions);

}  // namespace octet
