#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "base/error.h"
#include "data/tokenizer/hf_tokenizer.h"
#include "data/tokenizer/sentencepiece_files.h"
#include "data/tokenizer/stream_decoder.h"
#include "temporary_folder.h"
#include "support/places.h"

namespace octet {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string golden(const std::string& name) {
  std::ifstream file(fs::path(test::source_path("")) / "tests/golden/sentencepiece" / name, std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

template <class Function>
std::string error_of(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// A SentencePiece model, field by field.
class ModelWriter {
 public:
  ModelWriter& piece(const std::string& text, float score, int type = 1) {
    std::string message = bytes_field(1, text) + "\x15";
    const auto bits = std::bit_cast<uint32_t>(score);
    for (int shift = 0; shift < 32; shift += 8) message += static_cast<char>(bits >> shift & 0xFF);
    message += number_field(3, type);
    file_ += bytes_field(1, message);
    return *this;
  }
  ModelWriter& bytes() {
    for (int byte = 0; byte < 256; ++byte) piece(fmt::format("<0x{:02X}>", byte), 0, 6);
    return *this;
  }
  ModelWriter& trainer(const std::string& fields) {
    file_ += bytes_field(2, fields);
    return *this;
  }
  ModelWriter& normalizer(const std::string& fields) {
    file_ += bytes_field(3, fields);
    return *this;
  }
  static std::string number_field(int field, int value) { return varint(field << 3) + varint(value); }
  static std::string bytes_field(int field, const std::string& bytes) {
    return varint(field << 3 | 2) + varint(static_cast<int>(bytes.size())) + bytes;
  }
  std::string file() const { return file_; }

 private:
  static std::string varint(int value) {
    std::string text;
    for (; value >= 0x80; value >>= 7) text += static_cast<char>((value & 0x7F) | 0x80);
    return text + static_cast<char>(value);
  }
  std::string file_;
};

const std::string kMark = "\xE2\x96\x81";

// BPE with byte fallback and nothing but a leading space, as Llama 2's; ids 0-2 special, 3-258 bytes, then pieces.
ModelWriter llama() {
  return ModelWriter()
      .piece("<unk>", 0, 2)
      .piece("<s>", 0, 3)
      .piece("</s>", 0, 3)
      .bytes()
      .trainer(ModelWriter::number_field(3, 2) + ModelWriter::number_field(35, 1))
      .normalizer(ModelWriter::number_field(3, 1) + ModelWriter::number_field(4, 0))
      .piece(kMark + "a", -1)
      .piece("ab", -2)
      .piece("bc", -2)
      .piece(kMark, -10)
      .piece("a", -11)
      .piece("b", -12)
      .piece("c", -13);
}
constexpr int32_t kSpaceA = 259, kAb = 260, kBc = 261, kSpace = 262, kA = 263, kB = 264, kC = 265;

std::unique_ptr<Tokenizer> load(const std::string& model, const std::string& config = "") {
  const TemporaryFolder folder;
  folder.write("tokenizer.model", model);
  if (!config.empty()) folder.write("tokenizer_config.json", config);
  return load_tokenizer(folder.path());
}

TEST(SentencePiece, MergesTheHighestScoreFirstAndTheLeftmostOfEquals) {
  const auto tokenizer = load(llama().file());
  EXPECT_THAT(tokenizer->encode("bc"), ElementsAre(kSpace, kBc));
  EXPECT_THAT(tokenizer->encode("cabc"), ElementsAre(kSpace, kC, kAb, kC));
  EXPECT_THAT(tokenizer->encode("abc"), ElementsAre(kSpaceA, kBc));
  EXPECT_THAT(tokenizer->encode(""), ElementsAre());
  EXPECT_EQ(tokenizer->vocab_size(), 266);
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(tokenizer->eos(), 2);
  EXPECT_EQ(tokenizer->find_token("</s>"), 2);
  EXPECT_EQ(tokenizer->find_token(kMark + "a"), kSpaceA);
  EXPECT_EQ(tokenizer->find_token("abc"), std::nullopt);
  EXPECT_THAT(tokenizer->add_special({kA}), ElementsAre(1, kA));
}

TEST(SentencePiece, UnknownCharactersAndBytesThatAreNotUtf8BecomeByteTokens) {
  const auto tokenizer = load(llama().file());
  EXPECT_THAT(tokenizer->encode("a\xC3\xA9\n"), ElementsAre(kSpaceA, 3 + 0xC3, 3 + 0xA9, 3 + '\n'));
  std::string text;
  for (int byte = 255; byte >= 0; --byte) text += static_cast<char>(byte);
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  EXPECT_THAT(tokenizer->encode("<0x41>"),
              ElementsAre(kSpace, 3 + '<', 3 + '0', 3 + 'x', 3 + '4', 3 + '1', 3 + '>'));
}

TEST(SentencePiece, StreamHoldsBackACharacterInBytes) {
  const auto tokenizer = load(llama().file());
  StreamDecoder stream(*tokenizer, true);
  EXPECT_EQ(stream.push(1), "");
  EXPECT_EQ(stream.push(kSpaceA), "a");  // the space in front of a text is not part of it
  EXPECT_EQ(stream.push(kSpaceA), " a");
  EXPECT_EQ(stream.push(3 + 0xF0), "");
  EXPECT_EQ(stream.push(3 + 0x9F), "");
  EXPECT_EQ(stream.push(3 + 0x98), "");
  EXPECT_EQ(stream.push(3 + 0x80), "\xF0\x9F\x98\x80");
  std::string cut = stream.push(3 + 0xC3);
  cut += stream.finish();
  EXPECT_EQ(cut, "\xEF\xBF\xBD");
  EXPECT_EQ(stream.push(kSpaceA), "a");
  StreamDecoder reply(*tokenizer, true, true);
  std::string replies = reply.push(kSpaceA);
  replies += reply.finish();
  replies += reply.push(kSpaceA);
  EXPECT_EQ(replies, " a a");
}

TEST(SentencePiece, SpaceInFrontOfEveryPartOrOnlyTheFirst) {
  const auto every = load(llama().file());
  EXPECT_THAT(every->encode("a</s>a b"), ElementsAre(kSpaceA, 2, kSpaceA, kSpace, kB));
  EXPECT_THAT(every->encode(" a"), ElementsAre(kSpace, kSpaceA));
  EXPECT_THAT(every->encode_after(Before::Token, "a"), ElementsAre(kSpaceA));
  EXPECT_THAT(every->encode_after(Before::Text, "a</s>a"), ElementsAre(kA, 2, kSpaceA));
  const auto first = load(llama().file(), R"({"legacy": false})");
  EXPECT_THAT(first->encode("a</s>a"), ElementsAre(kSpaceA, 2, kA));
  EXPECT_THAT(first->encode("</s>a"), ElementsAre(2, kA));
  EXPECT_THAT(first->encode_after(Before::Token, "a"), ElementsAre(kA));
  EXPECT_THAT(load(llama().file(), R"({"add_prefix_space": false})")->encode("a"), ElementsAre(kA));
  EXPECT_EQ(every->decode(std::vector<int32_t>{kSpaceA, kSpaceA}), "a a");
  EXPECT_EQ(every->decode_continued(std::vector<int32_t>{kSpaceA, kSpaceA}), " a a");
  EXPECT_NE(every->fingerprint(), first->fingerprint());
}

TEST(SentencePiece, TokenizerConfig) {
  const auto tokenizer =
      load(llama().file(), R"({"add_bos_token": false, "add_eos_token": true, "eos_token": "<|im_end|>",
      "added_tokens_decoder": {"0": {"content": "<unk>", "special": true},
                               "300": {"content": "<|im_end|>", "special": true}, "301": {"content": "b c"}}})");
  EXPECT_THAT(tokenizer->add_special({kA}), ElementsAre(kA, 300));
  EXPECT_THAT(tokenizer->encode("a<|im_end|>b c"), ElementsAre(kSpaceA, 300, 301));
  EXPECT_EQ(tokenizer->vocab_size(), 302);
  EXPECT_THAT(
      error_of([] { load(llama().file(), R"({"added_tokens_decoder": {"263": {"content": "zzz"}}})"); }),
      HasSubstr("token 263 is 'a', but 'zzz'"));
  EXPECT_THAT(error_of([] { load(llama().file(), R"({"add_bos_token": 1})"); }),
              HasSubstr("`add_bos_token` is 1, expected true or false"));
}

TEST(SentencePiece, AddedTokensFile) {
  const TemporaryFolder folder;
  folder.write("tokenizer.model", llama().file());
  folder.write("added_tokens.json", R"({"<|im_end|>": 266})");
  EXPECT_THAT(load_tokenizer(folder.path())->encode("a<|im_end|>"), ElementsAre(kSpaceA, 266));
  const std::vector<TokenizerFile> files = tokenizer_files(folder.path());
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files[0].name, "tokenizer.model");
  EXPECT_EQ(files[1].name, "added_tokens.json");
}

TEST(SentencePiece, LargeTextIsTheSumOfItsParts) {
  const auto tokenizer = load(golden("bpe.model"));
  std::string text;
  for (int i = 0; text.size() < (3u << 20); ++i)
    text += fmt::format("Line {} of  a long \xC3\xA9 text, <user>x\n", i * 7919);
  const std::vector<int32_t> whole = tokenizer->encode(text);
  // The space before "of" is a place where no token crosses.
  std::vector<int32_t> parts;
  Before before = Before::Nothing;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(" of ", begin + 1), text.size());
    const std::vector<int32_t> ids =
        tokenizer->encode_after(before, std::string_view(text).substr(begin, end - begin));
    parts.insert(parts.end(), ids.begin(), ids.end());
    before = Before::Text;
    begin = end;
  }
  EXPECT_EQ(whole, parts);
  EXPECT_EQ(tokenizer->decode(whole), text);
}

TEST(SentencePiece, AMebibyteWithoutSpacesIsNotQuadratic) {
  const auto start = std::chrono::steady_clock::now();
  for (const char* name : {"bpe.model", "unigram.model"}) {
    const auto tokenizer = load(golden(name));
    EXPECT_GT(tokenizer->encode(std::string(1 << 20, 'e')).size(), 1000u);
    // The Unigram model removes extra spaces.
    EXPECT_EQ(tokenizer->encode(std::string(1 << 20, ' ')).size() > 1000, name == std::string("bpe.model"));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

// Whatever is cut off or changed in a file, it is an Error or a tokenizer that works.
TEST(SentencePiece, BrokenModels) {
  for (const char* name : {"bpe.model", "unigram.model"}) {
    const std::string whole = golden(name);
    const auto attempt = [&](const std::string& bytes) {
      try {
        const SentencePieceTokenizer tokenizer(parse_sentencepiece_model(bytes, "broken"));
        tokenizer.decode(tokenizer.encode("a  b\xEF\xAC\x81 \xFF<s>"));
      } catch (const Error&) {
      }
    };
    for (size_t size = 0; size < whole.size(); size += 3) attempt(whole.substr(0, size));
    std::mt19937 random(7);
    for (int trial = 0; trial < 3000; ++trial) {
      std::string bytes = whole;
      for (int change = 0; change < 3; ++change) bytes[random() % bytes.size()] = static_cast<char>(random());
      attempt(bytes);
    }
  }
  EXPECT_THAT(error_of([] { parse_sentencepiece_model(golden("bpe.model").substr(0, 1000), "cut"); }),
              AnyOf(HasSubstr("[cut] a value that is longer than what is left at byte"), HasSubstr("[cut")));
}

TEST(SentencePiece, WhatIsNotSupportedIsRefused) {
  const auto error = [](const ModelWriter& model) {
    return error_of([&] { parse_sentencepiece_model(model.file(), "m"); });
  };
  using W = ModelWriter;
  EXPECT_THAT(error(llama().trainer(W::number_field(3, 3))), HasSubstr("model type WORD is not supported"));
  EXPECT_THAT(error(llama().trainer(W::number_field(24, 1))), HasSubstr("treat_whitespace_as_suffix"));
  EXPECT_THAT(error(llama().normalizer(W::number_field(5, 0))), HasSubstr("escape_whitespaces"));
  EXPECT_THAT(error(llama().normalizer(W::bytes_field(2, "xyz"))), HasSubstr("precompiled_charsmap"));
  EXPECT_THAT(error(llama().piece("x", 0, 5)), HasSubstr("UNUSED"));
  EXPECT_THAT(error(llama().piece("x", 0, 9)), HasSubstr("[m piece 266] type 9, expected 1 to 6"));
  EXPECT_THAT(error(llama().piece("a", 0)), HasSubstr("tokens 263 and 266 are both 'a'"));
  EXPECT_THAT(error(llama().piece("<0xZZ>", 0, 6)), HasSubstr("a byte named '<0xZZ>'"));
  EXPECT_THAT(error(ModelWriter()), HasSubstr("holds no pieces"));
}

TEST(SentencePiece, JsonPartsThatAreNotKnown) {
  const json whole = json::parse(golden("llama2.json"));
  const auto error = [&](const char* key, const json& value) {
    json file = whole;
    file[json::json_pointer(key)] = value;
    return error_of([&] { make_json_tokenizer(file.dump(), "t"); });
  };
  EXPECT_THAT(error("/normalizer/normalizers/0", {{"type", "NFKC"}}),
              HasSubstr("normalizer '{\"type\":\"NFKC\"}'"));
  EXPECT_THAT(error("/normalizer", {{"type", "Prepend"}, {"prepend", kMark}}),
              HasSubstr("null without a normalizer"));
  EXPECT_THAT(error("/decoder/decoders/0", {{"type", "Metaspace"}}), HasSubstr("decoder"));
  EXPECT_THAT(error("/decoder/decoders/1", {{"type", "Fuse"}}), HasSubstr("without ByteFallback"));
  EXPECT_THAT(error("/model/type", "Unigram"),
              HasSubstr("model 'Unigram' is not supported; octet reads SentencePiece BPE"));
  EXPECT_THAT(error("/model/unk_token", "<none>"), HasSubstr("unk_token '<none>' is not in the vocabulary"));
  EXPECT_THAT(error("/pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "_"}}),
              HasSubstr("pre_tokenizer"));
}

TEST(SentencePiece, VocabularyOfLlama2c) {
  std::string file("\x07\0\0\0", 4);
  const auto add = [&](const std::string& text, float score) {
    const auto length = static_cast<int32_t>(text.size());
    file.append(reinterpret_cast<const char*>(&score), 4).append(reinterpret_cast<const char*>(&length), 4) +=
        text;
  };
  for (const char* text : {"<unk>", "\n<s>\n", "\n</s>\n"}) add(text, 0);
  for (int byte = 0; byte < 256; ++byte) add(fmt::format("<0x{:02X}>", byte), 0);
  add(" a", -1);
  add(" ", -2);
  add("a", -3);
  const TemporaryFolder folder;
  const auto tokenizer = load_tokenizer(folder.write("tok.bin", file));
  EXPECT_THAT(tokenizer->encode("a aa\n"), ElementsAre(259, 259, 261, 3 + '\n'));
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{259, 259}), "a a");
  EXPECT_EQ(tokenizer->eos(), 2);
  EXPECT_EQ(tokenizer->find_token("<s>"), 1);
  for (const size_t size : {size_t{3}, size_t{20}, file.size() - 1})
    EXPECT_THAT(error_of([&] { load_tokenizer(folder.write("cut.bin", file.substr(0, size))); }),
                HasSubstr("cut.bin]"));
}

}  // namespace
}  // namespace octet
