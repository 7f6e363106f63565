// The chat template that a model's folder names, in whatever form.

#include "checkpoint/chat_style.h"

#include <gmock/gmock.h>

#include <fstream>

#include "support/process.h"

namespace octet::test {
namespace {

struct ChatStyleOfAFolder : testing::Test {
  ModelChat style_with(const std::string& name, const std::string& text) {
    std::ofstream(folder.path() + "/" + name) << text;
    ModelFolder model;
    model.folder = folder.path();
    return find_chat_style(model);
  }
  TemporaryFolder folder;
};

TEST_F(ChatStyleOfAFolder, OneOfSeveralTemplates) {
  const ModelChat chat = style_with("tokenizer_config.json", R"({"chat_template": [
      {"name": "tool_use", "template": "x"}, {"name": 5, "template": "y"}, 7,
      {"name": "default", "template": "<|start_header_id|><|eot_id|>"}]})");
  EXPECT_EQ(chat.style, ChatStyle{ChatTemplate::Llama3});
}

TEST_F(ChatStyleOfAFolder, ATemplateThatIsNoTextIsNone) {
  for (const char* text : {R"({"chat_template": [{"name": "default", "template": 5}]})",
                           R"({"chat_template": [{"name": ["default"], "template": "x"}]})",
                           R"({"chat_template": {"default": "x"}})", R"([])", R"({"chat_template": null})"})
    EXPECT_FALSE(style_with("tokenizer_config.json", text).style) << text;
}

TEST_F(ChatStyleOfAFolder, ATemplateThatIsNoUtf8IsUnknown) {
  const ModelChat chat = style_with("chat_template.jinja", "<|im_start|>system\n\xff<|im_end|>");
  EXPECT_FALSE(chat.style);
  EXPECT_EQ(chat.unknown, folder.path() + "/chat_template.jinja");
}

}  // namespace
}  // namespace octet::test
