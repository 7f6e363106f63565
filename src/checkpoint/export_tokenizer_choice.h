#pragma once

#include <optional>
#include <string>

#include "checkpoint/export.h"
#include "data/chat/chat_template.h"
#include "hf/export_tokenizer.h"

namespace octet {

// The tokenizer to write with a model, and how a trained model is talked to.
struct TokenizerChoice {
  std::string name;  // as for make_tokenizer; "": none
  std::optional<ExportedChat> chat;
  std::optional<int32_t> pad;  // of the tokenizer, else of the model's folder
};
// Also sets the ids that begin and end a text in the config. `chat` is how a model in training is talked to; one on disk
// says it itself.
TokenizerChoice choose_tokenizer(const ModelFolder& model, const ExportOptions& options, ModelConfig& config,
                                 const std::optional<ChatStyle>& chat = std::nullopt);

}  // namespace octet
