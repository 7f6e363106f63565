// What records may carry next to plain messages: tools, reasoning, pictures, flags of messages, other columns.
#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "chat_fixture.h"
#include "data/records/example_reader.h"
#include "support/error_of.h"
#include "support/places.h"
#include "temporary_folder.h"

namespace octet {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

class Records : public ::testing::Test {
 protected:
  // The texts, what is no target in braces.
  std::vector<std::string> read(const std::string& contents, ExampleOptions options = {}) {
    options.dataset = folder_.write("a.jsonl", contents);
    if (options.chat_template == ChatTemplate::Auto) options.chat_template = ChatTemplate::Plain;
    reader_ = open_examples(options, *tokenizer_);
    std::vector<std::string> shown;
    Example example;
    while (reader_->next(example)) {
      std::string text;
      bool is_open = false;
      for (const ExamplePiece& piece : example.pieces) {
        if (piece.is_target == is_open) text += is_open ? "}" : "{", is_open = !is_open;
        text += piece.text;
      }
      shown.push_back(text + (is_open ? "}" : ""));
    }
    return shown;
  }
  std::string error(const std::string& contents, const ExampleOptions& options = {}) {
    return error_of([&] { read(contents, options); });
  }

  TemporaryFolder folder_;
  std::unique_ptr<Tokenizer> tokenizer_ = all_chats_tokenizer();
  std::unique_ptr<DatasetReader> reader_;
};

TEST_F(Records, PairsOfColumns) {
  for (const char* record :
       {R"({"prompt":"Q","completion":"A"})", R"({"prompt":"Q","response":"A"})",
        R"({"prompt":"Q","answer":"A"})", R"({"prompt":"Q","output":"A"})",
        R"({"question":"Q","answer":"A"})", R"({"question":"Q","response":"A"})",
        R"({"query":"Q","response":"A"})", R"({"query":"Q","answer":"A"})",
        R"({"problem":"Q","generated_solution":"A"})", R"({"problem":"Q","solution":"A"})",
        R"({"instruction":"Q","output":"A"})", R"({"instruction":"Q","response":"A"})",
        R"({"input":"Q","output":"A"})", R"({"user":"Q","assistant":"A"})",
        R"({"conversation":[{"role":"user","content":"Q"},{"role":"assistant","content":"A"}]})"}) {
    EXPECT_THAT(read(record), ElementsAre("{Q\n}A</s>")) << record;
  }
  EXPECT_THAT(read(R"({"instruction":"I","context":"C","response":"A"})"), ElementsAre("{I\nC\n}A</s>"));
  EXPECT_THAT(read(R"({"system_prompt":"S","question":"Q","response":"A"})"), ElementsAre("{S\nQ\n}A</s>"));
  // A format that is named takes its other columns as well.
  EXPECT_THAT(read(R"({"prompt":"Q","response":"A"})", {.format = ExampleFormat::PromptCompletion}),
              ElementsAre("{Q\n}A</s>"));
  EXPECT_EQ(reader_->columns(), "columns prompt, response");
}

TEST_F(Records, ARoleThatIsNoTextIsNamed) {
  EXPECT_THAT(error(R"({"messages":[{"role":7,"content":"Q"}]})"),
              HasSubstr("the role of a message is number"));
}

TEST_F(Records, UnknownColumnsSayWhatIsRecognised) {
  const std::string text = error(R"({"document":"x","summary":"y"})");
  EXPECT_THAT(
      text,
      HasSubstr("a.jsonl] line 1: the columns match no format: document, summary. octet recognises: "
                "messages; conversations; conversation; prompt + completion | response | answer | output;"));
  EXPECT_THAT(text, HasSubstr("user + assistant; text."));
  EXPECT_THAT(text, HasSubstr("prompt_column and completion_column"));
}

TEST_F(Records, PreferenceDataIsRefused) {
  const std::string record = R"({"prompt":"Q","chosen":"A","rejected":"B"})";
  EXPECT_THAT(error(record), HasSubstr("the columns chosen and rejected are preference data (for DPO)"));
  EXPECT_THAT(read(record, {.prompt_column = "prompt", .completion_column = "chosen"}),
              ElementsAre("{Q\n}A</s>"));
  EXPECT_THAT(error(R"({"messages":[],"chosen":"A","rejected":"B"})"), HasSubstr("preference data"));
}

TEST_F(Records, PicturesAndSoundAreRefused) {
  for (
      const char* record :
      {R"({"messages":[{"role":"user","content":"Q"},{"role":"assistant","content":"A"}],"images":["a.jpg"]})",
       R"({"prompt":"Q","response":"A","image":{"bytes":"x","path":null}})",
       R"({"text":"T","audio":"a.wav"})", R"({"prompt":"Q","response":"A","image_path":"a.png"})",
       R"({"prompt":"Q","response":"A","Decoded_Image":"x"})", R"({"prompt":"Q","response":"A","mp3":"x"})",
       R"({"messages":[{"role":"user","content":"Q","images":["x"]},{"role":"assistant","content":"A"}]})"}) {
    EXPECT_THAT(error(record), HasSubstr("octet trains on text alone")) << record;
  }
  for (const char* type : {"image_url", "image", "input_audio", "video"}) {
    const std::string record = fmt::format(
        R"({{"messages":[{{"role":"user","content":[{{"type":"{}","x":1}},{{"type":"text","text":"Q"}}]}}]}})",
        type);
    EXPECT_THAT(error(record), HasSubstr(fmt::format("a part of type {}", type)));
  }
}

TEST_F(Records, PartsOfAContent) {
  const auto chat = [](const char* part) {
    return fmt::format(
        R"({{"messages":[{{"role":"user","content":[{}]}},{{"role":"assistant","content":"A"}}]}})", part);
  };
  for (const char* part : {R"({"type":"text","text":"Q"})", R"({"text":"Q"})", R"({"type":null,"text":"Q"})"})
    EXPECT_THAT(read(chat(part)), ElementsAre("{Q\n}A</s>")) << part;
  EXPECT_THAT(error(chat(R"({"type":5,"text":"Q"})")),
              HasSubstr("a message's content has a part whose type is number, expected text"));
  EXPECT_THAT(error(chat(R"({"type":["text"],"text":"Q"})")), HasSubstr("whose type is array"));
}

TEST_F(Records, EmptyMediaColumnsAndHtmlAreNoMedia) {
  EXPECT_THAT(read(R"({"prompt":"Q","response":"A","images":[],"audio":null,"image":""})"),
              ElementsAre("{Q\n}A</s>"));
  EXPECT_THAT(read(R"({"prompt":"Q","response":"A","num_images":3,"imagery":"x"})"),
              ElementsAre("{Q\n}A</s>"));
  EXPECT_THAT(read(R"({"text":"T","image":"a.jpg"})", {.text_column = "text"}), ElementsAre("T</s>"));
  const auto chat = [](const char* text) {
    return fmt::format(
        R"({{"messages":[{{"role":"user","content":"{}"}},{{"role":"assistant","content":"A"}}]}})", text);
  };
  EXPECT_THAT(error(chat("<image>\\nWhat is it?")), HasSubstr("place for a picture"));
  EXPECT_THAT(error(chat("What is it?\\n<video> ")), HasSubstr("place for a picture"));
  EXPECT_THAT(error(R"({"prompt":"<image>\nWhat is it?","response":"A"})"), HasSubstr("place for a picture"));
  EXPECT_EQ(read(chat("<video>x</video>")).size(), 1u);
  EXPECT_EQ(read(chat("Use <image> in SVG.")).size(), 1u);
}

TEST_F(Records, FlagsOfMessages) {
  const auto chat = [](const char* flag) {
    return fmt::format(
        R"({{"messages":[{{"role":"user","content":"Q"}},{{"role":"assistant","content":"A",{}}},)"
        R"({{"role":"user","content":"R"}},{{"role":"assistant","content":"B"}}]}})",
        flag);
  };
  for (const char* flag : {R"("weight":0)", R"("train":false)", R"("training":false)", R"("weight":0.0)"})
    EXPECT_THAT(read(chat(flag)), ElementsAre("{Q\nA</s>R\n}B</s>")) << flag;
  for (const char* flag : {R"("weight":1)", R"("train":true)", R"("weight":null)"})
    EXPECT_THAT(read(chat(flag)), ElementsAre("{Q\n}A</s>{R\n}B</s>")) << flag;
  EXPECT_THAT(error(chat(R"("weight":0.5)")), HasSubstr("weight of a message is 0.5, expected 0 or 1"));
  EXPECT_THAT(
      read(R"({"messages":[{"role":"user","content":"Q","train":true},{"role":"assistant","content":"A"}]})"),
      ElementsAre("Q{\n}A</s>"));
}

TEST_F(Records, ToolsInTheFormsOfDataFiles) {
  const ExampleOptions chatml{.chat_template = ChatTemplate::Chatml, .default_system = "S"};
  const std::string expected = R"(<tool_call>
{"name": "f", "arguments": {"z": 1, "a": "b"}}
</tool_call><|im_end|>{
<|im_start|>user
<tool_response>
7
</tool_response><|im_end|>
<|im_start|>assistant
}A<|im_end|>{
})";
  // LLaMA-Factory: JSON in the texts. OpenAI: tool_calls, with the arguments as text or as an object.
  for (
      const char* record :
      {R"({"conversations":[{"from":"human","value":"Q"},{"from":"function_call","value":"{\"name\":\"f\",\"arguments\":{\"z\":1,\"a\":\"b\"}}"},{"from":"observation","value":"7"},{"from":"gpt","value":"A"}],"tools":"[{\"name\":\"f\"}]"})",
       R"({"messages":[{"role":"user","content":"Q"},{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"z\":1,\"a\":\"b\"}"}}]},{"role":"tool","tool_call_id":"1","content":"7"},{"role":"assistant","content":"A"}],"tools":[{"type":"function","function":{"name":"f"}}]})",
       R"({"messages":[{"role":"user","content":"Q"},{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":{"z":1,"a":"b"}}}]},{"role":"function","name":"f","content":"7"},{"role":"assistant","content":"A"}],"tools":[{"name":"f"}]})"}) {
    const std::vector<std::string> texts = read(record, chatml);
    ASSERT_EQ(texts.size(), 1u);
    EXPECT_THAT(texts[0], EndsWith(expected)) << record;
    EXPECT_THAT(texts[0],
                HasSubstr("<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"f\"}}\n</tools>"));
  }
  EXPECT_THAT(error(R"({"conversations":[{"from":"function_call","value":"call f"}]})", chatml),
              HasSubstr("a tool call is text but not JSON"));
}

TEST_F(Records, WhatATemplateCannotShowIsRefusedOrCounted) {
  const std::string tool = R"({"messages":[{"role":"user","content":"Q"},{"role":"tool","content":"7"}]})";
  const std::string tools =
      R"({"messages":[{"role":"user","content":"Q"},{"role":"assistant","content":"A"}],"tools":[{"name":"f"}]})";
  const std::string thought =
      R"({"messages":[{"role":"user","content":"Q"},{"role":"assistant","thinking":"T","content":"A"}]})";
  EXPECT_THAT(error(tool),
              HasSubstr("line 1: a message has the role tool, which template plain cannot show"));
  EXPECT_THAT(error(tools, {.chat_template = ChatTemplate::Llama3}), HasSubstr("the record has tools"));
  EXPECT_THAT(
      error(thought, {.chat_template = ChatTemplate::Chatml}),
      HasSubstr("a message has reasoning, which template chatml cannot show; set chat_template to qwen3"));
  const std::string good =
      R"({"messages":[{"role":"user","content":"Q"},{"role":"assistant","content":"A"}]})";
  const std::string turns =
      R"({"messages":[{"role":"assistant","content":"A"},{"role":"user","content":"Q"}]})";
  EXPECT_THAT(error(turns, {.chat_template = ChatTemplate::Llama2}),
              HasSubstr("message 1 is of role assistant, expected user"));
  EXPECT_EQ(read(good + "\n" + tool + "\n" + thought + "\n", {.on_error = OnError::Skip}).size(), 1u);
  EXPECT_EQ(reader_->skipped().describe(), "2 unsupported content");
}

TEST_F(Records, ReasoningIsLearned) {
  const ExampleOptions qwen3{.chat_template = ChatTemplate::Qwen3};
  for (const char* key : {"reasoning_content", "reasoning", "thinking"}) {
    const std::string record = fmt::format(
        R"({{"messages":[{{"role":"user","content":"Q"}},{{"role":"assistant","{}":"T","content":"A"}}]}})",
        key);
    EXPECT_THAT(read(record, qwen3)[0], EndsWith("assistant\n}<think>\nT\n</think>\n\nA<|im_end|>{\n}"));
  }
  EXPECT_THAT(read(R"({"prompt":"Q","response":"A"})", qwen3)[0],
              EndsWith("assistant\n}<think>\n\n</think>\n\nA<|im_end|>{\n}"));
}

TEST_F(Records, LlamaFactorysToolDemo) {
  const char* named = std::getenv("OCTET_SHARED_DATA");
  const std::filesystem::path file =
      (named ? std::filesystem::path(named) : std::filesystem::path(test::source_path("")) / "../shared/data") /
      "lf_data/glaive_toolcall_en_demo.json";
  if (!std::filesystem::exists(file))
    GTEST_SKIP() << file << " is absent; OCTET_SHARED_DATA names its folder";
  for (const ChatTemplate chat_template :
       {ChatTemplate::Chatml, ChatTemplate::Qwen3, ChatTemplate::Llama31}) {
    ExampleOptions options{
        .dataset = file.string(), .chat_template = chat_template, .on_error = OnError::Skip};
    reader_ = open_examples(options, *tokenizer_);
    Example example;
    int64_t with_calls = 0;
    while (reader_->next(example)) {
      const std::string text = text_of(example);
      with_calls +=
          text.find("<tool_call>\n{\"name\": \"") != text.npos || text.find("ipython<") != text.npos;
    }
    EXPECT_EQ(reader_->skipped().total(), 0) << reader_->skipped().first_error;
    EXPECT_GT(with_calls, 50);
  }
}

}  // namespace
}  // namespace octet
