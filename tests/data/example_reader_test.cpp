#include "data/records/example_reader.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "data/records/record_reader.h"
#include "data/tokenizer/bytes_tokenizer.h"
#include "data/tokenizer/hf_tokenizer.h"
#include "data/tokenizer/tokenizer.h"
#include "temporary_folder.h"
#include "tiny_tokenizer.h"
#include "support/places.h"

namespace octet {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Bytes, one merge ("ab") and the special tokens of the chat models; bos is put in front of a text.
std::unique_ptr<Tokenizer> chat_tokenizer() {
  json file = tiny_tokenizer({{"a", "b"}});
  int id = 300;
  for (const char* token : {"<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>",
                            "<|end_header_id|>", "<|eot_id|>", "<|im_start|>", "<|im_end|>"}) {
    file["added_tokens"].push_back(added_token(id++, token, {"special"}));
  }
  ByteLevelSpec spec = parse_tokenizer_json(file.dump(), "chat");
  spec.bos = 300;
  spec.eos = 301;
  spec.prefix = {300};
  return std::make_unique<ByteLevelTokenizer>(spec);
}

// The pieces as one text, what is no target in braces.
std::string show(const Example& example) {
  std::string text;
  bool is_open = false;
  for (const ExamplePiece& piece : example.pieces) {
    if (piece.is_target == is_open) text += is_open ? "}" : "{", is_open = !is_open;
    text += piece.text;
  }
  return text + (is_open ? "}" : "");
}

class Examples : public ::testing::Test {
 protected:
  std::vector<std::string> read(const std::string& name, const std::string& contents,
                                ExampleOptions options = {}) {
    options.dataset = folder_.write(name, contents);
    return read(options);
  }
  std::vector<std::string> read(const ExampleOptions& options) {
    reader_ = open_examples(options, *tokenizer_);
    std::vector<std::string> shown;
    Example example;
    while (reader_->next(example)) shown.push_back(show(example));
    return shown;
  }
  std::string error(const std::string& name, const std::string& contents,
                    const ExampleOptions& options = {}) {
    try {
      read(name, contents, options);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  TemporaryFolder folder_;
  std::unique_ptr<Tokenizer> tokenizer_ = std::make_unique<BytesTokenizer>();
  std::unique_ptr<DatasetReader> reader_;
};

TEST_F(Examples, TextHasTheTokenizersBosAndEos) {
  EXPECT_THAT(read("a.jsonl", "{\"text\":\"one\"}\n{\"text\":\"\"}\n{\"text\":\"two\"}\n"),
              ElementsAre("one<|endoftext|>", "two<|endoftext|>"));
  EXPECT_EQ(reader_->skipped().of(SkipReason::EmptyText), 1);
  EXPECT_EQ(reader_->skipped().describe(), "1 empty text");
  EXPECT_EQ(reader_->examples(), 2);
  EXPECT_EQ(reader_->format(), ExampleFormat::Text);
  EXPECT_EQ(reader_->progress(), 1);
  tokenizer_ = chat_tokenizer();
  EXPECT_THAT(read("a.txt", "one"), ElementsAre("{<|begin_of_text|>}one<|end_of_text|>"));
  EXPECT_THAT(read("a.txt", "one", {.add_bos = false, .add_eos = false}), ElementsAre("one"));
}

TEST_F(Examples, EveryFormatAndTheirColumns) {
  const ExampleOptions plain = {.chat_template = ChatTemplate::Plain};
  const std::string expected = "{Q\n}A<|endoftext|>";
  for (
      const char* record :
      {R"({"prompt":"Q","completion":"A"})", R"({"question":"Q","answer":"A"})",
       R"({"problem":"Q","generated_solution":"A","expected_answer":"1","problem_source":"x"})",
       R"({"instruction":"Q","input":"","output":"A","text":"whole"})", R"({"instruction":"Q","output":"A"})",
       R"({"conversations":[{"from":"human","value":"Q"},{"from":"gpt","value":"A"}]})",
       R"({"messages":[{"role":"user","content":"Q"},{"role":"assistant","content":"A"}]})",
       R"({"messages":[{"role":"user","content":[{"type":"text","text":"Q"}]},{"role":"assistant","content":"A"}]})",
       R"({"prompt":[{"role":"user","content":"Q"}],"completion":[{"role":"assistant","content":"A"}]})"}) {
    EXPECT_THAT(read("a.jsonl", record, plain), ElementsAre(expected)) << record;
  }
  EXPECT_THAT(read("a.csv", "question,answer\nQ,A\n", plain), ElementsAre(expected));
  EXPECT_THAT(read("a.json", R"([{"question":"Q","answer":"A"}])", plain), ElementsAre(expected));
  EXPECT_THAT(read("a.tsv",
                   "messages\n\"[{\"\"role\"\":\"\"user\"\",\"\"content\"\":\"\"Q\"\"},"
                   "{\"\"role\"\":\"\"assistant\"\",\"\"content\"\":\"\"A\"\"}]\"\n",
                   plain),
              ElementsAre(expected));
  ExampleOptions named = plain;
  named.prompt_column = "in", named.completion_column = "out";
  EXPECT_THAT(read("a.jsonl", R"({"in":"Q","out":"A"})", named), ElementsAre(expected));
  EXPECT_THAT(read("a.jsonl", R"({"body":"B","text":"T"})", {.text_column = "body"}),
              ElementsAre("B<|endoftext|>"));
  EXPECT_THAT(read("a.jsonl", R"({"question":"Q","answer":"A","text":"T"})", {.format = ExampleFormat::Text}),
              ElementsAre("T<|endoftext|>"));
}

TEST_F(Examples, Llama3) {
  tokenizer_ = chat_tokenizer();
  const std::string chat =
      R"({"messages":[{"role":"system","content":"S"},{"role":"user","content":" U "},{"role":"assistant","content":"A"}]})";
  EXPECT_THAT(read("a.jsonl", chat),
              ElementsAre("{<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
                          "<|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|>"
                          "<|start_header_id|>assistant<|end_header_id|>\n\n}A<|eot_id|>"));
  EXPECT_EQ(reader_->chat_template(), ChatTemplate::Llama3);
  EXPECT_THAT(read("a.jsonl", chat, {.loss_on = "user, assistant"})[0],
              HasSubstr("user<|end_header_id|>\n\n}U<|eot_id|>{<|start_header_id|>"));
  EXPECT_THAT(read("a.jsonl", chat, {.loss_on = "all"})[0],
              ::testing::StartsWith("{<|begin_of_text|>}<|start"));
}

TEST_F(Examples, ChatmlAndItsSystemMessage) {
  tokenizer_ = chat_tokenizer();
  ExampleOptions options = {.chat_template = ChatTemplate::Chatml};
  const std::string record = R"({"question":"Q","answer":"A"})";
  EXPECT_THAT(
      read("a.jsonl", record, options),
      ElementsAre(
          "{<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful "
          "assistant.<|im_end|>\n<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n}A<|im_end|>{\n}"));
  options.default_system = "Be kind.";
  EXPECT_THAT(read("a.jsonl", record, options)[0], HasSubstr("system\nBe kind.<|im_end|>"));
  options.default_system = "";
  EXPECT_THAT(read("a.jsonl", record, options)[0], ::testing::StartsWith("{<|im_start|>user\nQ"));
}

TEST_F(Examples, Alpaca) {
  EXPECT_THAT(
      read("a.jsonl", R"({"instruction":"I","input":"X","output":"O"})"),
      ElementsAre(
          "{Below is an instruction that describes a task, paired with an input that provides further "
          "context. Write a response that appropriately completes the request.\n\n### Instruction:\nI"
          "\n\n### Input:\nX\n\n### Response:\n}O<|endoftext|>"));
  EXPECT_THAT(
      read("a.jsonl", R"({"instruction":"I","input":"","output":"O","history":[["u","a"]]})"),
      ElementsAre(
          "{Below is an instruction that describes a task. Write a response that appropriately completes "
          "the request.\n\n### Instruction:\nu\n\n### Response:\n}a<|endoftext|>{\n\n### Instruction:\nI"
          "\n\n### Response:\n}O<|endoftext|>"));
}

TEST_F(Examples, PlainPutsANewlineOnlyWhereThereIsNoSpace) {
  const ExampleOptions plain = {.chat_template = ChatTemplate::Plain};
  EXPECT_THAT(read("a.jsonl", R"({"prompt":"Q: x A:","completion":" y"})", plain),
              ElementsAre("{Q: x A:} y<|endoftext|>"));
  EXPECT_THAT(read("a.jsonl", R"({"prompt":"Q\n\n","completion":"y"})", plain),
              ElementsAre("{Q\n\n}y<|endoftext|>"));
}

TEST_F(Examples, ATemplateTheTokenizerCannotSpell) {
  EXPECT_THAT(error("a.jsonl", R"({"question":"Q","answer":"A"})", {.chat_template = ChatTemplate::Llama3}),
              HasSubstr("[chat template llama3] the tokenizer has no token <|begin_of_text|>"));
}

TEST_F(Examples, ErrorsSayWhereAndWhatThereIs) {
  EXPECT_THAT(
      error("a.jsonl", R"({"body":"x","id":1})"),
      HasSubstr(
          "a.jsonl] line 1: the columns match no format: body, id. octet recognises: messages; conversations; "));
  EXPECT_THAT(error("a.jsonl", "{\"text\":\"x\"}\n{\"body\":\"y\"}\n"),
              HasSubstr("a.jsonl] line 2: no column text; the columns are: body"));
  EXPECT_THAT(error("a.jsonl", R"({"text":"x"})", {.text_column = "body"}),
              HasSubstr("format text needs the columns body; the columns are: text"));
  EXPECT_THAT(error("a.jsonl", R"({"instruction":"x","output":"y"})", {.prompt_column = "nope"}),
              HasSubstr("a.jsonl] line 1: prompt_column is 'nope'; the columns are: instruction, output"));
  EXPECT_THAT(error("a.jsonl", R"({"text":5})"), HasSubstr("column text is number, expected text"));
  EXPECT_THAT(error("a.jsonl", R"({"text":null})"), HasSubstr("column text is null, expected text"));
  EXPECT_THAT(error("a.jsonl", R"({"messages":[{"role":"narrator","content":"x"}]})"),
              HasSubstr("role narrator, expected"));
  EXPECT_THAT(error("a.jsonl", R"({"messages":[{"role":"user","content":"x"}]})"),
              HasSubstr("line 1: no message has a role that train_on names (completion)"));
  EXPECT_THAT(error("a.jsonl", R"({"messages":[]})"), HasSubstr("a conversation without messages"));
  EXPECT_THAT(error("a.jsonl", ""), HasSubstr("no examples in 1 file"));
  EXPECT_THAT(error("a.csv", "text\n"), HasSubstr("no examples in 1 file"));
  EXPECT_THAT(error("a.bin", "x"), HasSubstr("not a known kind of dataset file, expected .txt"));
  EXPECT_THAT(error("a.jsonl", R"({"text":"x"})", {.loss_on = "user"}),
              HasSubstr("names roles, but the dataset is text"));
  EXPECT_THAT(error("a.jsonl", R"({"text":"x"})", {.loss_on = "nobody"}),
              HasSubstr("train_on 'nobody', expected"));
  EXPECT_THROW(parse_example_format("jsonl"), ConfigError);
  EXPECT_THROW(parse_chat_template("llama1"), ConfigError);
  EXPECT_THROW(parse_on_error("maybe"), ConfigError);
  EXPECT_EQ(parse_chat_template("llama3.1"), ChatTemplate::Llama31);
  for (const char* name : {"auto", "text", "prompt_completion", "question_answer", "problem_solution",
                           "alpaca", "sharegpt", "messages"}) {
    EXPECT_STREQ(name_of(parse_example_format(name)), name);
  }
}

TEST_F(Examples, SkipCountsAndGoesOn) {
  const std::string lines =
      "{\"text\":\"one\"}\nbroken\n{\"text\":\"\xff\"}\n{\"body\":\"x\"}\n{\"text\":1}\n{\"text\":\"\"}\n{"
      "\"text\":\"two\"}\n";
  EXPECT_THAT(read("a.jsonl", lines, {.on_error = OnError::Skip}),
              ElementsAre("one<|endoftext|>", "two<|endoftext|>"));
  const SkipCounts& skipped = reader_->skipped();
  EXPECT_THAT(skipped.counts, ElementsAre(1, 1, 1, 1, 1, 0, 0));
  EXPECT_EQ(skipped.total(), 5);
  EXPECT_THAT(skipped.first_error, HasSubstr("a.jsonl] line 2, column 1"));
  EXPECT_THAT(error("b.jsonl", "broken\n", {.on_error = OnError::Skip}), HasSubstr("no examples in 1 file"));
}

TEST_F(Examples, ExamplesKeepTheOrderOfTheFiles) {
  folder_.write("b.jsonl", "{\"text\":\"3\"}\n");
  folder_.write("a.jsonl", "{\"text\":\"1\"}\n{\"text\":\"2\"}\n");
  folder_.write("test.jsonl", "{\"text\":\"4\"}\n");
  folder_.write("notes.md", "not data");
  const LogSink previous = set_log_sink([](LogLevel, std::string_view) {});
  EXPECT_THAT(read({.dataset = folder_.path(), .add_eos = false}), ElementsAre("1", "2", "3"));
  set_log_sink(previous);
  EXPECT_THAT(read({.dataset = folder_.path(), .split = "test", .add_eos = false}), ElementsAre("4"));
  EXPECT_THAT(read({.dataset = folder_.file("*.jsonl"), .add_eos = false}), ElementsAre("1", "2", "3", "4"));
  EXPECT_THAT(read({.dataset = folder_.file("{b,a}.jsonl"), .add_eos = false}), ElementsAre("1", "2", "3"));
}

TEST_F(Examples, LongTextInPartsHasOneBosAndOneEos) {
  tokenizer_ = chat_tokenizer();
  std::string text;
  while (text.size() < (size_t{33} << 20)) text += "some line of text\n";
  const std::vector<std::string> parts = read("long.txt", text);
  ASSERT_EQ(parts.size(), 3u);
  std::string whole;
  for (const std::string& part : parts) whole += part;
  EXPECT_TRUE(whole == "{<|begin_of_text|>}" + text + "<|end_of_text|>");
}

TEST_F(Examples, ParquetChat) {
  if (!has_parquet()) GTEST_SKIP() << "built without Parquet";
  ExampleOptions options = {.dataset = test::source_path("/tests/data/files/chat.parquet"),
                            .chat_template = ChatTemplate::Plain,
                            .on_error = OnError::Skip};
  EXPECT_THAT(read(options), ElementsAre("{Hi\n}Hello é😀<|endoftext|>"));
  EXPECT_EQ(reader_->skipped().of(SkipReason::BadValue), 2);
}

TEST(EncodeExample, TextIsEncodedInRunsAndSpecialTokensByName) {
  const auto tokenizer = chat_tokenizer();
  // "ab" is one token (256) inside a run and two across a change of the mask.
  const Example example{{{"<|im_start|>", true, false},
                         {"a", false, false},
                         {"ba", false, false},
                         {"b", false, true},
                         {"<|im_end|>", true, true}}};
  const Document document = encode_example(example, *tokenizer);
  EXPECT_THAT(document.tokens, ElementsAre(305, 256, 'a', 'b', 306));
  EXPECT_THAT(document.is_target, ElementsAre(0, 0, 0, 1, 1));
  try {
    encode_example({{{"<|nothing|>", true, true}}}, *tokenizer);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("no token <|nothing|>"));
  }
}

TEST_F(Examples, AFileWithoutAHeaderIsNoBadRecord) {
  std::filesystem::create_directory(folder_.file("set"));
  folder_.write("set/1.csv", "text\none\n");
  folder_.write("set/2.csv", "\"text\"x\ntwo\n");
  folder_.write("set/3.csv", "text\nthree\n");
  for (const OnError on_error : {OnError::Stop, OnError::Skip}) {
    try {
      read({.dataset = folder_.file("set"), .on_error = on_error});
      FAIL() << "the third file would be lost";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("2.csv] line 1: 'x' after the closing quote"));
    }
  }
}

TEST_F(Examples, AlpacaAndPlainBeginAsATextDoes) {
  tokenizer_ = chat_tokenizer();
  const std::string record = R"({"prompt":"Q","completion":"A"})";
  EXPECT_THAT(read("a.jsonl", record, {.chat_template = ChatTemplate::Plain}),
              ElementsAre("{<|begin_of_text|>Q\n}A<|end_of_text|>"));
  EXPECT_THAT(read("a.jsonl", record, {.chat_template = ChatTemplate::Plain, .loss_on = "all"}),
              ElementsAre("{<|begin_of_text|>}Q\nA<|end_of_text|>"));
  EXPECT_THAT(read("a.jsonl", record, {.chat_template = ChatTemplate::Alpaca}),
              ElementsAre(::testing::StartsWith("{<|begin_of_text|>Below is an instruction")));
  EXPECT_THAT(read("a.jsonl", record, {.chat_template = ChatTemplate::Plain, .add_bos = false}),
              ElementsAre("{Q\n}A<|end_of_text|>"));
}

// Ids and mask of the default: the answer and what ends it are targets, bos and the markers are not.
TEST_F(Examples, TheDefaultMaskInIds) {
  tokenizer_ = chat_tokenizer();
  reader_ = open_examples({.dataset = folder_.write("a.jsonl", R"({"prompt":"Q","completion":"abc"})")},
                          *tokenizer_);
  Example example;
  ASSERT_TRUE(reader_->next(example));
  const Document document = encode_example(example, *tokenizer_);
  std::vector<int32_t> targets;
  for (size_t i = 0; i < document.tokens.size(); ++i) {
    if (document.is_target[i]) targets.push_back(document.tokens[i]);
  }
  EXPECT_THAT(targets, ElementsAre(256, 'c', 304));  // "ab" is one token; <|eot_id|>
  EXPECT_EQ(document.tokens[0], 300);
  EXPECT_EQ(document.is_target[0], 0);
  EXPECT_EQ(document.is_target.back(), 1);
}

TEST_F(Examples, ANullFromIsNoShareGpt) {
  EXPECT_THAT(
      read("a.jsonl",
           R"({"messages":[{"role":"user","content":"Q","from":null},{"role":"assistant","content":"A"}]})",
           {.chat_template = ChatTemplate::Plain}),
      ElementsAre("{Q\n}A<|endoftext|>"));
}

TEST_F(Examples, ALaterParquetFileWithoutTheColumnNamesWhatItHas) {
  if (!has_parquet()) GTEST_SKIP() << "built without Parquet";
  const std::filesystem::path files = std::filesystem::path(test::source_path("")) / "tests/data/files";
  std::filesystem::create_directory(folder_.file("set"));
  std::filesystem::copy_file(files / "rows.parquet", folder_.file("set/1.parquet"));
  std::filesystem::copy_file(files / "chat.parquet", folder_.file("set/2.parquet"));
  try {
    read({.dataset = folder_.file("set")});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("2.parquet]: format text needs the columns text; the columns are: id, kind"));
  }
}

// A space in front of a text is added where the text begins, not where its mask changes.
TEST(EncodeExample, SentencePieceAddsNoSpacesInside) {
  const auto tokenizer = load_tokenizer(test::source_path("/tests/golden/sentencepiece/mistral_v03.json"));
  const Example example = {
      .pieces = {
          {"<s>", true, false}, {"Question:", false, false}, {" answer", false, true}, {"</s>", true, true}}};
  const Document document = encode_example(example, *tokenizer);
  std::vector<int32_t> expected = {1};
  for (const int32_t id : tokenizer->encode("Question: answer")) expected.push_back(id);
  expected.push_back(2);
  EXPECT_EQ(document.tokens, expected);
  const Example turns = {.pieces = {{"<s>", true, false}, {"[INST]", true, false}, {"Hi", false, false}}};
  const std::vector<int32_t> ids = encode_example(turns, *tokenizer).tokens;
  EXPECT_EQ(tokenizer->decode_continued(std::span(ids).subspan(2)), "Hi");
}

}  // namespace
}  // namespace octet
