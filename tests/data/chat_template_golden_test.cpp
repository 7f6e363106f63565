// What the models' own templates make of conversations (scripts/make_chat_goldens.py).
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "chat_fixture.h"
#include "support/places.h"

namespace octet {
namespace {

ChatRenderer renderer_of(const nlohmann::ordered_json& entry, const Tokenizer& tokenizer,
                         const char* loss_on) {
  return ChatRenderer({parse_chat_template(entry["template"].get<std::string>())}, tokenizer,
                      parse_loss_roles(loss_on));
}

TEST(ChatTemplateGolden, TextAsTheModelsTemplates) {
  const auto tokenizer = all_chats_tokenizer();
  const nlohmann::ordered_json cases = chat_goldens();
  ASSERT_EQ(cases.size(), 66u);
  for (const auto& entry : cases) {
    for (const char* loss_on : {"completion", "all"}) {
      Conversation conversation = conversation_in(entry);
      const ChatRenderer renderer = renderer_of(entry, *tokenizer, loss_on);
      if (entry.contains("text")) {
        EXPECT_EQ(text_of(renderer.render(conversation)), entry["text"].get<std::string>())
            << entry["template"];
      }
      if (!entry.contains("prompt")) continue;
      if (conversation.messages.back().role == ChatRole::Assistant) conversation.messages.pop_back();
      EXPECT_EQ(text_of(renderer.prompt(conversation)), entry["prompt"].get<std::string>())
          << entry["template"];
    }
  }
}

TEST(ChatTemplateGolden, IdsAsTheLibrary) {
  const char* named = std::getenv("OCTET_SHARED_DATA");
  const std::filesystem::path folder =
      (named ? std::filesystem::path(named) : std::filesystem::path(test::source_path("")) / "../shared/data") /
      "tokenizers";
  if (!std::filesystem::exists(folder / "llama3.1.json") ||
      !std::filesystem::exists(folder / "qwen2.5.json")) {
    GTEST_SKIP() << folder << " has no tokenizers; OCTET_SHARED_DATA names the folder of shared data";
  }
  const auto llama = load_tokenizer((folder / "llama3.1.json").string());
  const auto qwen = load_tokenizer((folder / "qwen2.5.json").string());
  for (const auto& entry : chat_goldens()) {
    if (!entry.contains("ids")) continue;
    const Tokenizer& tokenizer = entry["template"].get<std::string>().starts_with("llama") ? *llama : *qwen;
    const Example example = renderer_of(entry, tokenizer, "all").render(conversation_in(entry));
    EXPECT_EQ(encode_example(example, tokenizer).tokens, entry["ids"].get<std::vector<int32_t>>())
        << entry["text"];
  }
}

}  // namespace
}  // namespace octet
