// What the models' own templates make of conversations (scripts/make_chat_goldens.py).
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "data/chat/chat_template.h"
#include "data/tokenizer/hf_tokenizer.h"
#include "tiny_tokenizer.h"

namespace octet {
namespace {

nlohmann::json golden_cases() {
  std::ifstream file(std::filesystem::path(OCTET_SOURCE_DIR) / "tests/golden/chat/cases.json");
  return nlohmann::json::parse(file);
}

Example render(const nlohmann::json& entry, const Tokenizer& tokenizer, const char* loss_on) {
  Conversation conversation;
  for (const auto& message : entry["messages"]) {
    const std::string role = message["role"];
    conversation.messages.push_back({role == "system" ? ChatRole::System
                            : role == "user" ? ChatRole::User
                                             : ChatRole::Assistant,
                            message["content"].get<std::string>()});
  }
  const ChatTemplate chat_template = parse_chat_template(entry["template"].get<std::string>());
  return ChatRenderer({chat_template}, tokenizer, parse_loss_roles(loss_on))
      .render(conversation);
}

TEST(ChatTemplateGolden, TextAsTheModelsTemplates) {
  nlohmann::json file = tiny_tokenizer({});
  int id = 300;
  for (const char* token : {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
                            "<|im_start|>", "<|im_end|>"}) {
    file["added_tokens"].push_back(added_token(id++, token, {"special"}));
  }
  const ByteLevelTokenizer tokenizer(parse_tokenizer_json(file.dump(), "tiny"));
  const nlohmann::json cases = golden_cases();
  ASSERT_EQ(cases.size(), 24u);
  for (const auto& entry : cases) {
    for (const char* loss_on : {"completion", "all"}) {
      std::string text;
      for (const ExamplePiece& piece : render(entry, tokenizer, loss_on).pieces) text += piece.text;
      EXPECT_EQ(text, entry["text"].get<std::string>()) << entry["template"];
    }
  }
}

TEST(ChatTemplateGolden, IdsAsTheLibrary) {
  const char* named = std::getenv("OCTET_SHARED_DATA");
  const std::filesystem::path folder =
      (named ? std::filesystem::path(named) : std::filesystem::path(OCTET_SOURCE_DIR) / "../shared/data") /
      "tokenizers";
  if (!std::filesystem::exists(folder / "llama3.1.json") ||
      !std::filesystem::exists(folder / "qwen2.5.json")) {
    GTEST_SKIP() << folder << " has no tokenizers; OCTET_SHARED_DATA names the folder of shared data";
  }
  const auto llama = load_tokenizer((folder / "llama3.1.json").string());
  const auto qwen = load_tokenizer((folder / "qwen2.5.json").string());
  for (const auto& entry : golden_cases()) {
    const Tokenizer& tokenizer = entry["template"] == "chatml" ? *qwen : *llama;
    EXPECT_EQ(encode_example(render(entry, tokenizer, "all"), tokenizer).tokens,
              entry["ids"].get<std::vector<int32_t>>())
        << entry["text"];
  }
}

}  // namespace
}  // namespace octet
