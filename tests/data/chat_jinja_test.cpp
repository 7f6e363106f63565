// The Jinja forms of octet's templates, and which templates of others are recognised.
#include <gmock/gmock.h>

#include <cstdlib>

#include "chat_fixture.h"

namespace octet {
namespace {

constexpr ChatTemplate kAll[] = {
    ChatTemplate::Llama3, ChatTemplate::Llama31,   ChatTemplate::Chatml,    ChatTemplate::Qwen3,
    ChatTemplate::Llama2, ChatTemplate::MistralV1, ChatTemplate::MistralV3, ChatTemplate::MistralV3Tekken,
    ChatTemplate::Alpaca, ChatTemplate::Plain};
constexpr const char* kSystem = "It's \"mine\" \\ {% #} %}\nGr\u00fc\u00dfe \U0001f600";

TEST(ChatJinja, OctetReadsItsOwnTemplatesBack) {
  const auto tokenizer = all_chats_tokenizer();
  for (const ChatTemplate chat_template : kAll) {
    for (const std::optional<std::string>& system :
         {std::optional<std::string>(), std::optional<std::string>(""),
          std::optional<std::string>(kSystem)}) {
      const ChatStyle style{chat_template, system};
      EXPECT_EQ(recognise_chat_template(ChatRenderer(style, *tokenizer, {}).jinja()), style)
          << name_of(chat_template);
    }
  }
}

TEST(ChatJinja, RecognisesTheFormsOfOthers) {
  const auto style = [](const char* jinja) { return recognise_chat_template(jinja); };
  EXPECT_EQ(style("{{ '<|start_header_id|>' + role + '<|end_header_id|>\\n\\n' + content + '<|eot_id|>' }}"),
            ChatStyle{ChatTemplate::Llama3});
  EXPECT_EQ(style("<|start_header_id|>system \"Cutting Knowledge Date: December 2023\\n\" <|eot_id|>"),
            ChatStyle{ChatTemplate::Llama31});
  EXPECT_EQ(style("'<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful "
                  "assistant.<|im_end|>\\n'"),
            ChatStyle{ChatTemplate::Chatml});
  EXPECT_EQ(style("'<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n'"),
            (ChatStyle{ChatTemplate::Chatml, "You are a helpful assistant."}));
  EXPECT_EQ(style("{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"),
            (ChatStyle{ChatTemplate::Chatml, ""}));
  EXPECT_EQ(style("<|im_start|> message.reasoning_content </think> <|im_end|>"),
            ChatStyle{ChatTemplate::Qwen3});
  EXPECT_EQ(style("bos_token + '[INST] ' + '<<SYS>>'"), ChatStyle{ChatTemplate::Llama2});
  EXPECT_EQ(style("{{- ' [INST] ' + message['content'] + ' [/INST]' }}"), ChatStyle{ChatTemplate::MistralV1});
  EXPECT_EQ(style("{{- '[INST] ' + message['content'] + '[/INST]' }}"), ChatStyle{ChatTemplate::MistralV3});
  EXPECT_EQ(style("{{- \"[INST]\" + message[\"content\"] + \"[/INST]\" }}"),
            ChatStyle{ChatTemplate::MistralV3Tekken});
  for (const char* unknown :
       {"", "<|im_start|>user<|im_sep|><|im_end|>", "<start_of_turn>user", "[SYSTEM_PROMPT] [INST]",
        "{#- octet: {\"chat_template\": \"new\"} #}", "{#- octet: {\"chat_template\": 5} #}",
        "{#- octet: [1] #}", "{#- octet: ", "<|im_start|>system\n\xff<|im_end|>"}) {
    EXPECT_EQ(style(unknown), std::nullopt) << unknown;
  }
}

TEST(ChatJinja, TheEndOfAnAnswer) {
  const auto tokenizer = all_chats_tokenizer();
  const auto end = [&](ChatTemplate chat_template) {
    return ChatRenderer({chat_template}, *tokenizer, {}).end_token();
  };
  EXPECT_EQ(end(ChatTemplate::Llama31), "<|eot_id|>");
  EXPECT_EQ(end(ChatTemplate::Qwen3), "<|im_end|>");
  for (const ChatTemplate other : {ChatTemplate::Alpaca, ChatTemplate::Plain, ChatTemplate::Llama2})
    EXPECT_EQ(end(other), "</s>");
}

// For check_chat_templates.py, which renders the same conversations with Jinja itself.
TEST(ChatJinja, WritesTheCasesForTheReader) {
  const char* path = std::getenv("OCTET_CHAT_CASES");
  if (!path) GTEST_SKIP() << "OCTET_CHAT_CASES names no file; check_chat_templates.py sets it";
  const auto tokenizer = all_chats_tokenizer();
  nlohmann::ordered_json cases = nlohmann::ordered_json::array();
  for (const ChatTemplate chat_template : kAll) {
    for (const std::optional<std::string>& system :
         {std::optional<std::string>(), std::optional<std::string>(""),
          std::optional<std::string>(kSystem)}) {
      const ChatRenderer renderer({chat_template, system}, *tokenizer, parse_loss_roles("completion"));
      for (const auto& entry : chat_goldens()) {
        Conversation conversation = conversation_in(entry);
        nlohmann::ordered_json result = {{"name", name_of(chat_template)},
                                         {"jinja", renderer.jinja()},
                                         {"messages", entry["messages"]},
                                         {"tools", entry.value("tools", nlohmann::ordered_json())}};
        try {
          result["text"] = text_of(renderer.render(conversation));
          if (conversation.messages.back().role == ChatRole::Assistant) conversation.messages.pop_back();
          if (!conversation.messages.empty()) result["prompt"] = text_of(renderer.prompt(conversation));
        } catch (const Error&) {
          continue;  // the template cannot show it
        }
        cases.push_back(std::move(result));
      }
    }
  }
  std::ofstream(path) << cases.dump();
}

}  // namespace
}  // namespace octet
