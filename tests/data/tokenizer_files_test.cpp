#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "base/error.h"
#include "base/log.h"
#include "data/tokenizer/hf_tokenizer.h"
#include "temporary_folder.h"
#include "tiny_tokenizer.h"

namespace octet {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const BytePairs kMerges = {{"t", "h"}, {" ", "th"}, {" th", "e"}};

std::string merges_text() {
  std::string text = "#version: 0.2\n";
  for (const auto& [left, right] : kMerges) text += byte_alphabet(left) + " " + byte_alphabet(right) + "\n";
  return text;
}

std::string error_of(const std::string& path) {
  try {
    load_tokenizer(path);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(TokenizerFiles, VocabAndMerges) {
  const TemporaryFolder folder;
  json vocab = tiny_tokenizer(kMerges)["model"]["vocab"];
  vocab["<|endoftext|>"] = 259;
  folder.write("vocab.json", vocab.dump());
  folder.write("merges.txt", merges_text());
  for (const std::string& path : {folder.path(), folder.file("vocab.json"), folder.file("merges.txt")}) {
    const auto tokenizer = load_tokenizer(path);
    EXPECT_THAT(tokenizer->encode("then the<|endoftext|>"), ElementsAre(256, 'e', 'n', 258, 259));
    EXPECT_EQ(tokenizer->eos(), 259);
    EXPECT_TRUE(tokenizer->is_special(259));
  }
}

TEST(TokenizerFiles, TokenizerConfigNamesClassAndTokens) {
  const TemporaryFolder folder;
  folder.write("vocab.json", tiny_tokenizer(kMerges)["model"]["vocab"].dump());
  folder.write("merges.txt", merges_text());
  json config = {{"tokenizer_class", "Qwen2Tokenizer"},
                 {"bos_token", nullptr},
                 {"eos_token", {{"content", "<|im_end|>"}}},
                 {"added_tokens_decoder", {{"400", {{"content", "<|im_end|>"}, {"special", true}}}}}};
  folder.write("tokenizer_config.json", config.dump());
  const auto tokenizer = load_tokenizer(folder.path());
  EXPECT_THAT(tokenizer->encode("e\u0301<|im_end|>"), ElementsAre(0xC3, 0xA9, 400));  // NFC
  EXPECT_EQ(tokenizer->eos(), 400);
  config["tokenizer_class"] = "LlamaTokenizer";
  folder.write("tokenizer_config.json", config.dump());
  EXPECT_THAT(error_of(folder.path()), HasSubstr("LlamaTokenizer"));
}

TEST(TokenizerFiles, ConfigBesideTokenizerJson) {
  const TemporaryFolder folder;
  json file = tiny_tokenizer(kMerges);
  file["added_tokens"] =
      json::array({added_token(300, "<|endoftext|>", {"special"}), added_token(301, "<|eot|>", {"special"})});
  folder.write("tokenizer.json", file.dump());
  EXPECT_EQ(load_tokenizer(folder.path())->eos(), 300);
  folder.write("tokenizer_config.json", R"({"bos_token": "<|endoftext|>", "eos_token": "<|eot|>"})");
  EXPECT_EQ(load_tokenizer(folder.path())->bos(), 300);
  EXPECT_EQ(load_tokenizer(folder.path())->eos(), 301);
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    unsigned bits = 0;
    for (size_t k = 0; k < 3; ++k)
      bits = bits << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0);
    for (size_t k = 0; k < 4; ++k) text += i + k > bytes.size() ? '=' : kDigits[bits >> (18 - 6 * k) & 63];
  }
  return text;
}

TEST(TokenizerFiles, TiktokenRanks) {
  const TemporaryFolder folder;
  std::string text;
  int rank = 0;
  for (; rank < 256; ++rank)
    text += base64(std::string(1, static_cast<char>(rank))) + " " + std::to_string(rank) + "\n";
  // "aba" can be made of ab+a and of a+ba, at the same rank: the leftmost comes first.
  for (const char* token : {"ab", "ba", "aba", "the"})
    text += base64(token) + " " + std::to_string(rank++) + "\n";
  const std::string path = folder.write("tiny.tiktoken", text);
  const ByteLevelTokenizer gpt2(read_tiktoken(path, TokenizerFamily::Gpt2));
  EXPECT_THAT(gpt2.encode("the"), ElementsAre(259));  // a word with a rank, though nothing merges to it
  EXPECT_THAT(gpt2.encode("abaa"), ElementsAre(258, 'a'));
  EXPECT_THAT(gpt2.encode("xbaa"), ElementsAre('x', 257, 'a'));
  EXPECT_THAT(gpt2.encode("<|endoftext|>"), ElementsAre(260));
  EXPECT_EQ(gpt2.eos(), 260);
  const ByteLevelTokenizer llama(read_tiktoken(path, TokenizerFamily::Llama3));
  EXPECT_THAT(llama.add_special(llama.encode("ab")), ElementsAre(260, 256));
  EXPECT_EQ(llama.find_token("<|eot_id|>"), 269);
  EXPECT_EQ(llama.vocab_size(), 516);
  EXPECT_THAT(error_of(path), AllOf(HasSubstr("260 ranks"), HasSubstr("tiny.tiktoken")));
}

TEST(TokenizerFiles, BadTiktoken) {
  const TemporaryFolder folder;
  const auto error = [&](const std::string& text) { return error_of(folder.write("x.tiktoken", text)); };
  EXPECT_THAT(error("YQ== 0\n!!! 1\n"), AllOf(HasSubstr("x.tiktoken"), HasSubstr("line 2")));
  EXPECT_THAT(error("YQ== 0\nYg== 0\n"), HasSubstr("rank 0 appears twice"));
  EXPECT_THAT(error("YQ== 0\nYQ== 1\n"), HasSubstr("ranks 0 and 1 have the same token"));
  EXPECT_THAT(error("YQ== 99999999999\n"), HasSubstr("line 1"));
  EXPECT_THAT(error("YQ== -1\n"), HasSubstr("line 1"));
  EXPECT_THAT(error("\n\x0E\n\x05<unk>"), HasSubstr("SentencePiece"));
  EXPECT_THAT(error(""), HasSubstr("holds no tokens"));
}

TEST(TokenizerFiles, BadMergesTxt) {
  const TemporaryFolder folder;
  folder.write("vocab.json", tiny_tokenizer({})["model"]["vocab"].dump());
  EXPECT_THAT(error_of(folder.path()), AllOf(HasSubstr("merges.txt"), HasSubstr("open failed")));
  folder.write("merges.txt", "#version: 0.2\na b c\n");
  EXPECT_THAT(error_of(folder.path()), AllOf(HasSubstr("merges.txt"), HasSubstr("line 2")));
  folder.write("merges.txt", "a b\n");
  EXPECT_THAT(error_of(folder.path()), AllOf(HasSubstr("merge 1"), HasSubstr("'ab'")));
}

struct BadFile {
  const char* name;
  std::function<void(json&)> change;
  std::vector<std::string> expected;
};

TEST(TokenizerFiles, BadTokenizerJson) {
  const json unknown = {{"type", "Martian"}};
  const std::vector<BadFile> cases = {
      {"no model", [](json& f) { f.erase("model"); }, {"no `model`"}},
      {"no vocab", [](json& f) { f["model"].erase("vocab"); }, {"no `vocab`"}},
      {"no merges", [](json& f) { f["model"].erase("merges"); }, {"no `merges`"}},
      {"vocab array", [](json& f) { f["model"]["vocab"] = json::array(); }, {"vocabulary is not an object"}},
      {"model type", [](json& f) { f["model"]["type"] = "Unigram"; }, {"model", "Unigram"}},
      {"dropout", [](json& f) { f["model"]["dropout"] = 0.1; }, {"dropout 0.1"}},
      {"byte_fallback", [](json& f) { f["model"]["byte_fallback"] = true; }, {"byte_fallback"}},
      {"suffix", [](json& f) { f["model"]["end_of_word_suffix"] = "</w>"; }, {"end_of_word_suffix", "</w>"}},
      {"merge unknown", [](json& f) { f["model"]["merges"].push_back("q z"); }, {"merge 3", "'qz'"}},
      {"merge parts", [](json& f) { f["model"]["merges"].push_back("a b c"); }, {"merge 3", "a b c"}},
      {"merge number", [](json& f) { f["model"]["merges"].push_back(7); }, {"merge 3", "7"}},
      {"same id", [](json& f) { f["model"]["vocab"]["zz"] = 97; }, {"'a'", "'zz'", "97"}},
      {"negative id", [](json& f) { f["model"]["vocab"]["zz"] = -1; }, {"'zz'", "-1"}},
      {"huge id", [](json& f) { f["model"]["vocab"]["zz"] = 4000000000; }, {"'zz'", "4000000000"}},
      {"string id", [](json& f) { f["model"]["vocab"]["zz"] = "1"; }, {"'zz'", "integer"}},
      {"normalizer", [&](json& f) { f["normalizer"] = unknown; }, {"normalizer", "Martian"}},
      {"NFKC",
       [](json& f) {
         f["normalizer"] = {{"type", "NFKC"}};
       },
       {"normalizer", "NFKC"}},
      {"pre_tokenizer", [&](json& f) { f["pre_tokenizer"] = unknown; }, {"pre_tokenizer", "Martian"}},
      {"no pre_tokenizer", [](json& f) { f["pre_tokenizer"] = nullptr; }, {"pre_tokenizer", "null"}},
      {"pattern", [](json& f) { f["pre_tokenizer"] = split_pre_tokenizer("\\w+"); }, {"pattern", "\\w+"}},
      {"post_processor", [&](json& f) { f["post_processor"] = unknown; }, {"post_processor", "Martian"}},
      {"decoder",
       [](json& f) {
         f["decoder"] = {{"type", "WordPiece"}};
       },
       {"decoder", "WordPiece"}},
      {"no type",
       [](json& f) {
         f["decoder"] = {{"typo", 1}};
       },
       {"decoder", "no `type`"}},
      {"added id taken",
       [](json& f) { f["added_tokens"] = json::array({added_token(97, "<s>")}); },
       {"<s>", "97"}},
      {"added twice",
       [](json& f) {
         f["added_tokens"] = json::array({added_token(300, "<s>"), added_token(301, "<s>")});
       },
       {"<s>", "300", "301"}},
      {"added same id",
       [](json& f) {
         f["added_tokens"] = json::array({added_token(300, "<s>"), added_token(300, "<t>")});
       },
       {"<s>", "<t>", "300"}},
      {"added other id",
       [](json& f) { f["added_tokens"] = json::array({added_token(300, "a")}); },
       {"'a'", "300", "97"}},
      {"added empty",
       [](json& f) { f["added_tokens"] = json::array({added_token(300, "")}); },
       {"300", "empty"}},
      {"added scalar", [](json& f) { f["added_tokens"] = json::array({1}); }, {"added_tokens"}},
      {"template",
       [](json& f) {
         f["post_processor"] = {{"type", "TemplateProcessing"},
                                {"single", {{{"SpecialToken", {{"id", "<s>"}}}}}},
                                {"special_tokens", json::object()}};
       },
       {"TemplateProcessing", "<s>"}},
  };
  for (const BadFile& bad : cases) {
    const TemporaryFolder folder;
    json file = tiny_tokenizer(kMerges);
    bad.change(file);
    const std::string message = error_of(folder.write("tokenizer.json", file.dump()));
    EXPECT_THAT(message, HasSubstr("tokenizer.json]")) << bad.name;
    for (const std::string& part : bad.expected) EXPECT_THAT(message, HasSubstr(part)) << bad.name;
  }
}

TEST(TokenizerFiles, BrokenJson) {
  const TemporaryFolder folder;
  const auto error = [&](const std::string& text) { return error_of(folder.write("tokenizer.json", text)); };
  EXPECT_THAT(error("{\n \"model\": tru}"), AllOf(HasSubstr("tokenizer.json"), HasSubstr("line 2")));
  EXPECT_THAT(error(""), HasSubstr("tokenizer.json"));
  EXPECT_THAT(error(std::string(100000, '[')), AllOf(HasSubstr("tokenizer.json"), HasSubstr("64")));
  EXPECT_THAT(error(R"({"model": {"type": "BPE", "merges": [], "vocab": {"a": 0, "a": 1}}})"),
              HasSubstr("\"a\""));
  EXPECT_THAT(error("[1, 2]"), HasSubstr("no `model`"));
}

TEST(TokenizerFiles, MissingFilesAndFolders) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of(folder.path()), HasSubstr("tokenizer.json, vocab.json"));
  EXPECT_THAT(error_of(folder.file("absent")), HasSubstr("no such file"));
}

TEST(TokenizerFiles, TruncationIsNotAppliedAndSaysSo) {
  const TemporaryFolder folder;
  json file = tiny_tokenizer(kMerges);
  file["truncation"] = {{"max_length", 2}};
  std::string said;
  const LogSink before = set_log_sink([&](LogLevel, std::string_view message) { said += message; });
  const auto tokenizer = load_tokenizer(folder.write("tokenizer.json", file.dump()));
  set_log_sink(before);
  EXPECT_THAT(said, HasSubstr("truncation"));
  EXPECT_EQ(tokenizer->encode("abcd").size(), 4u);
}

// A copy of the files under their standard names is read as the same tokenizer.
TEST(TokenizerFiles, CopiesReadAsTheSameTokenizer) {
  const json tokenizer = tiny_tokenizer(kMerges);
  json with_eos = tokenizer;
  with_eos["added_tokens"] = {added_token(259, "<end>", {"special"})};
  const TemporaryFolder folder;
  for (const char* name : {"json", "other", "pair", "ranks"})
    std::filesystem::create_directory(folder.file(name));
  folder.write("json/tokenizer.json", with_eos.dump());
  folder.write("json/tokenizer_config.json", R"({"eos_token": "<end>"})");
  folder.write("json/chat_template.jinja", "{{ messages }}");
  folder.write("json/README.md", "not of the tokenizer");
  folder.write("other/mine.json", with_eos.dump());
  folder.write("other/tokenizer_config.json", R"({"eos_token": "<end>"})");  // not read with mine.json
  folder.write("pair/small-vocab.json", tokenizer["model"]["vocab"].dump());
  folder.write("pair/small-merges.txt", merges_text());
  folder.write("pair/tokenizer.json", with_eos.dump());  // another tokenizer
  struct Case {
    const char* path;
    std::vector<std::string> names;
  };
  const Case cases[] = {
      {"json", {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}},
      {"json/tokenizer.json", {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}},
      {"other/mine.json", {"tokenizer.json"}},
      {"pair/small-vocab.json", {"vocab.json", "merges.txt"}},
      {"pair/small-merges.txt", {"vocab.json", "merges.txt"}},
  };
  for (const Case& c : cases) {
    const TemporaryFolder copy;
    std::vector<std::string> names;
    for (const TokenizerFile& file : tokenizer_files(folder.file(c.path))) {
      names.push_back(file.name);
      std::filesystem::copy(file.path, copy.file(file.name));
    }
    EXPECT_EQ(names, c.names) << c.path;
    const auto original = load_tokenizer(folder.file(c.path)), read = load_tokenizer(copy.path());
    EXPECT_EQ(read->fingerprint(), original->fingerprint()) << c.path;
    EXPECT_EQ(read->eos(), original->eos()) << c.path;
  }
  folder.write("ranks/qwen.tiktoken", "not looked at");
  ASSERT_EQ(tokenizer_files(folder.file("ranks")).size(), 1u);
  EXPECT_EQ(tokenizer_files(folder.file("ranks"))[0].name, "tokenizer.model");
  EXPECT_TRUE(tokenizer_files("bytes").empty());
}

}  // namespace
}  // namespace octet
