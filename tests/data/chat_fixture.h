#pragma once

#include <fstream>
#include <nlohmann/json.hpp>

#include "data/chat/chat_template.h"
#include "data/records/record_reader.h"
#include "data/tokenizer/hf_tokenizer.h"
#include "tiny_tokenizer.h"
#include "support/places.h"

namespace octet {

// Bytes and the special tokens of all chat templates. `first_and_last`: the tokens that begin and end a text.
inline std::unique_ptr<Tokenizer> all_chats_tokenizer(
    const std::pair<std::string, std::string>& first_and_last = {"<s>", "</s>"}) {
  nlohmann::json file = tiny_tokenizer({});
  int id = 300;
  for (const char* token :
       {"<s>", "</s>", "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
        "<|eot_id|>", "<|im_start|>", "<|im_end|>", "[INST]", "[/INST]"}) {
    file["added_tokens"].push_back(added_token(id++, token, {"special"}));
  }
  ByteLevelSpec spec = parse_tokenizer_json(file.dump(), "chats");
  const ByteLevelTokenizer plain(spec);
  spec.bos = plain.find_token(first_and_last.first);
  spec.eos = plain.find_token(first_and_last.second);
  return std::make_unique<ByteLevelTokenizer>(spec);
}

// What the models' own templates make of conversations (scripts/make_chat_goldens.py).
inline nlohmann::ordered_json chat_goldens() {
  std::ifstream file(test::source_path("/tests/golden/chat/cases.json"));
  return nlohmann::ordered_json::parse(file);
}

// The conversation of an object with `messages` and perhaps `tools`.
inline Conversation conversation_in(const nlohmann::ordered_json& entry) {
  const std::string text = entry.dump();
  const nlohmann::json record = nlohmann::json::parse(text);
  return conversation_of(record, choose_format({}, columns_of(record), "test]"), "test]", text);
}

inline std::string text_of(const Example& example) {
  std::string text;
  for (const ExamplePiece& piece : example.pieces) text += piece.text;
  return text;
}

}  // namespace octet
