#pragma once

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/model_folder.h"
#include "data/chat/chat_template.h"

// How to talk to a model, and where its answers end.

namespace octet {

namespace checkpoint_file {
constexpr const char* kChat = "chat.json";  // of a run that was trained on conversations
}

std::string to_chat_json(const ChatStyle& style);
ChatStyle chat_style_from_json(std::string_view text, std::string_view place);

struct ModelChat {
  std::optional<ChatStyle> style;  // absent: not known
  std::string source;              // where it was found: "chat.json of ...", "the chat template in ..."
  std::string unknown;             // the file of a chat template that octet does not recognise
};

// The chat style that the run was trained with, or the chat template in the folder of the model, its adapter or its tokenizer.
ModelChat find_chat_style(const ModelFolder& model);

// The chat template in a folder, for example of a tokenizer.
ModelChat chat_style_in(const std::string& folder);

// The chat template of the folders of find_chat_style as it is written there, whether octet knows it or not; "": none.
std::string find_chat_jinja(const ModelFolder& model);

// The ids that end a text of the model: of the chat template (which may be null), of config.json and
// generation_config.json; with a template or without any of these also the tokenizer's eos. The template's is the first.
std::vector<int32_t> end_ids_of(const ModelFolder& model, const Tokenizer* tokenizer,
                                const ChatRenderer* renderer);

// The renderer of the style; nothing if the tokenizer lacks a token of the template.
std::optional<ChatRenderer> renderer_for(const std::optional<ChatStyle>& style, const Tokenizer& tokenizer);

}  // namespace octet
