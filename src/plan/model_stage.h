#pragma once

#include <optional>
#include <string>

#include "checkpoint/model_folder.h"
#include "config/data_keys.h"
#include "io/checkpoint_store.h"
#include "model/adapters.h"
#include "model/config.h"

// The first stage of a run: which model, and where its weights come from.

namespace octet {

struct ModelChoice {
  ModelConfig config;
  // Where the weights come from; without either they are drawn from the seed. Both are there only if adapters are
  // trained: then `start` is their frozen base.
  std::optional<ModelFolder> start;   // what model_name_or_path names
  std::optional<Checkpoint> resumed;  // what the run continues from
  // With finetuning_type lora.
  AdapterPlan adapters;
  std::optional<LoraConfig> lora;  // of the adapter that the run starts or continues from
  std::string adapter_folder;      // where adapter_name_or_path leads; empty: new adapters
  std::string base_name;  // of the base for PEFT: a hub id or an absolute path; empty: random weights
  std::string tokenizer;  // that the model came with, as for make_tokenizer; "": none is known

  // Whether `start` has weights: a config.json may come without them.
  bool has_weights() const { return start && start->has_weights; }
};

// The model of `resumed` where there is one: what model_name_or_path names is not needed any more, and model_preset and
// sizes must not be those of another model. Otherwise what the keys name: a preset or family with sizes, or a model on
// disk. ConfigError or Error that says what is wrong.
ModelChoice choose_model(const ModelKeys& given, std::optional<Checkpoint> resumed = std::nullopt);

// ConfigError if the model has too few positions for sequences of this length.
void check_length(const ModelChoice& model, int64_t max_seq_length);

// The hub id of the tokenizer that the preset of the keys was made for; "": none is known, or the keys name no preset.
std::string tokenizer_of_preset(const ModelKeys& keys);

// The functions that follow complete the keys.

// What follows from the model: all sizes where one is given, so that config.yaml holds the whole architecture, and the
// default of max_seq_length.
void take_model(DataKeys& keys, const ModelConfig& model);

// The settings of the adapter that the run starts or continues from.
void take_adapter(ModelKeys& keys, const ModelChoice& model);

// If chat_template is auto: the chat template in the folder of the tokenizer, if octet knows that template. Without the key
// `tokenizer`, the model's own folder has both. Without `may_download`, a tokenizer on the hub is not looked at.
void take_chat(DataKeys& keys, const std::optional<ModelFolder>& start, bool may_download = true);

// Error, naming every fault, unless the weights of `model.start` are all there with the right shapes. Reads the headers
// of the files alone.
void check_weights(const ModelChoice& model);

}  // namespace octet
