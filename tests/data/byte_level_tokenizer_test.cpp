#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "base/error.h"
#include "base/philox.h"
#include "data/tokenizer/stream_decoder.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/unicode.h"
#include "temporary_folder.h"
#include "tiny_tokenizer.h"

namespace octet {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const BytePairs kMerges = {{"t", "h"}, {" ", "th"}, {" th", "e"}, {"e", "r"}, {"\xC3", "\xA9"}};

std::unique_ptr<Tokenizer> load(const json& file) {
  const TemporaryFolder folder;
  return load_tokenizer(folder.write("tokenizer.json", file.dump()));
}

TEST(ByteLevelTokenizer, EncodesAndDecodes) {
  const auto tokenizer = load(tiny_tokenizer(kMerges));
  EXPECT_THAT(tokenizer->encode("the there"), ElementsAre(256, 'e', 258, 'r', 'e'));
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{256, 'e', 258, 259, 'e'}), "the theere");
  EXPECT_THAT(tokenizer->encode(""), ElementsAre());
  EXPECT_EQ(tokenizer->vocab_size(), 261);
  EXPECT_EQ(tokenizer->find_token(" the"), 258);
  EXPECT_EQ(tokenizer->find_token("there"), std::nullopt);
  EXPECT_EQ(tokenizer->bos(), std::nullopt);
}

TEST(ByteLevelTokenizer, MergesAsPairsAreTheSame) {
  json file = tiny_tokenizer(kMerges);
  json pairs = json::array();
  for (const auto& [left, right] : kMerges) pairs.push_back({byte_alphabet(left), byte_alphabet(right)});
  const auto strings = load(file);
  file["model"]["merges"] = pairs;
  EXPECT_EQ(load(file)->encode("then the father"), strings->encode("then the father"));
}

TEST(ByteLevelTokenizer, IgnoreMerges) {
  json file = tiny_tokenizer(kMerges);
  file["model"]["vocab"]["zz"] = 261;
  EXPECT_THAT(load(file)->encode("zz"), ElementsAre('z', 'z'));
  file["model"]["ignore_merges"] = true;
  EXPECT_THAT(load(file)->encode("zz zzz"), ElementsAre(261, ' ', 'z', 'z', 'z'));
}

TEST(ByteLevelTokenizer, AddedTokens) {
  json file = tiny_tokenizer(kMerges);
  file["added_tokens"] =
      json::array({added_token(300, "<s>", {"special"}), added_token(301, "<s><s>", {"special"}),
                   added_token(302, "<l>", {"lstrip"}), added_token(303, "<r>", {"rstrip"}),
                   added_token(304, "cat", {"single_word"})});
  const auto tokenizer = load(file);
  EXPECT_THAT(tokenizer->encode("a<s>b"), ElementsAre('a', 300, 'b'));
  EXPECT_THAT(tokenizer->encode("<s><s><s>"), ElementsAre(301, 300));  // the longest
  EXPECT_THAT(tokenizer->encode("<s<s>"), ElementsAre('<', 's', 300));
  EXPECT_THAT(tokenizer->encode("a \n\xE3\x80\x80<l> b"), ElementsAre('a', 302, ' ', 'b'));
  EXPECT_THAT(tokenizer->encode("a <r>\xC2\xA0\t b"), ElementsAre('a', ' ', 303, 'b'));
  EXPECT_THAT(tokenizer->encode("<r>  <l>"), ElementsAre(303, 302));
  EXPECT_THAT(tokenizer->encode("cat,cat"), ElementsAre(304, ',', 304));
  EXPECT_THAT(tokenizer->encode("cats"), ElementsAre('c', 'a', 't', 's'));
  EXPECT_THAT(tokenizer->encode("\xC3\xA9"
                                "cat"),
              ElementsAre(260, 'c', 'a', 't'));
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{'a', 300, 304}), "a<s>cat");
  EXPECT_TRUE(tokenizer->is_special(300));
  EXPECT_FALSE(tokenizer->is_special(302));
  EXPECT_FALSE(tokenizer->is_special('a'));
  EXPECT_EQ(tokenizer->find_token("<l>"), 302);
  EXPECT_EQ(tokenizer->vocab_size(), 305);
}

TEST(ByteLevelTokenizer, NfcAndNormalizedAddedTokens) {
  json file = tiny_tokenizer(kMerges);
  file["normalizer"] = {{"type", "NFC"}};
  file["added_tokens"] =
      json::array({added_token(300, "e\u0301t", {"normalized"}), added_token(301, "a\u0301")});
  const auto tokenizer = load(file);
  EXPECT_THAT(tokenizer->encode("e\u0301"), ElementsAre(260));
  EXPECT_THAT(tokenizer->encode("\u00E9t"), ElementsAre(300));  // looked for after NFC
  EXPECT_THAT(tokenizer->encode("e\u0301t"), ElementsAre(300));
  EXPECT_THAT(tokenizer->encode("a\u0301"), ElementsAre(301));  // looked for before
  EXPECT_THAT(tokenizer->encode("\u00E1"), ElementsAre(0xC3, 0xA1));
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}}}};
  EXPECT_THAT(load(file)->encode("e\u0301"), ElementsAre(260));
}

TEST(ByteLevelTokenizer, AddPrefixSpace) {
  json file = tiny_tokenizer(kMerges);
  file["pre_tokenizer"]["add_prefix_space"] = true;
  file["added_tokens"] = json::array({added_token(300, "<s>")});
  EXPECT_THAT(load(file)->encode("the<s>the the"), ElementsAre(258, 300, 258, 258));
  EXPECT_THAT(load(file)->encode(" the"), ElementsAre(258));
}

TEST(ByteLevelTokenizer, SplitPatternAndNoPattern) {
  json file = tiny_tokenizer({{"1", "2"}, {"3", "4"}, {"a", " "}});
  EXPECT_THAT(load(file)->encode("1234"), ElementsAre(256, 257));
  file["pre_tokenizer"] = split_pre_tokenizer(kLlama3Pattern);
  EXPECT_THAT(load(file)->encode("1234"), ElementsAre(256, '3', '4'));
  file["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  EXPECT_THAT(load(file)->encode("a b"), ElementsAre(258, 'b'));
}

// The ids are those of the `tokenizers` library. U+11DE0 is a digit since Unicode 17, so the space before it is no part of
// its word.
TEST(ByteLevelTokenizer, DigitsAreSplitBeforeThePattern) {
  json file =
      tiny_tokenizer({{"1", "2"}, {" ", "1"}, {" ", " "}, {"3", "4"}, {"'", "s"}, {" ", "a"}, {" ", "\xF0"}});
  const json byte_level = file["pre_tokenizer"];
  const auto with_digits = [&](bool individual) {
    file["pre_tokenizer"] = {
        {"type", "Sequence"},
        {"pretokenizers", {{{"type", "Digits"}, {"individual_digits", individual}}, byte_level}}};
    return load(file);
  };
  const auto each = with_digits(true), runs = with_digits(false);
  const std::string text = "x12 12  34's a";
  EXPECT_THAT(each->encode(text), ElementsAre('x', '1', '2', ' ', '1', '2', 258, '3', '4', 260, 261));
  EXPECT_THAT(runs->encode(text), ElementsAre('x', 256, ' ', 256, 258, 259, 260, 261));
  EXPECT_THAT(each->encode("\u00BD12"), ElementsAre(0xC2, 0xBD, '1', '2'));
  EXPECT_THAT(runs->encode("\u00BD12"), ElementsAre(0xC2, 0xBD, 256));
  EXPECT_THAT(runs->encode(" \U00011DE0"), ElementsAre(' ', 0xF0, 0x91, 0xB7, 0xA0));
  EXPECT_NE(each->fingerprint(), runs->fingerprint());
}

TEST(ByteLevelTokenizer, PostProcessorGivesBosAndEos) {
  json file = tiny_tokenizer(kMerges);
  file["added_tokens"] =
      json::array({added_token(300, "<s>", {"special"}), added_token(301, "</s>", {"special"})});
  const json piece = {{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}};
  const json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const json end = {{"SpecialToken", {{"id", "</s>"}, {"type_id", 0}}}};
  const json specials = {{"<s>", {{"id", "<s>"}, {"ids", {300}}, {"tokens", {"<s>"}}}},
                         {"</s>", {{"id", "</s>"}, {"ids", {301}}, {"tokens", {"</s>"}}}}};
  file["post_processor"] = {
      {"type", "Sequence"},
      {"processors",
       {{{"type", "ByteLevel"}},
        {{"type", "TemplateProcessing"}, {"single", {piece, text, end}}, {"special_tokens", specials}}}}};
  const auto tokenizer = load(file);
  EXPECT_THAT(tokenizer->encode("a"), ElementsAre('a'));
  EXPECT_THAT(tokenizer->add_special(tokenizer->encode("a")), ElementsAre(300, 'a', 301));
  EXPECT_EQ(tokenizer->bos(), 300);
  EXPECT_EQ(tokenizer->eos(), 301);
}

TEST(ByteLevelTokenizer, IdWithoutTokenIsAnError) {
  json file = tiny_tokenizer(kMerges);
  file["added_tokens"] = json::array({added_token(300, "<s>")});
  const auto tokenizer = load(file);
  for (const int32_t id : {-1, 270, 301, INT32_MAX}) {
    try {
      tokenizer->decode(std::vector<int32_t>{'a', id});
      FAIL() << id;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(std::to_string(id)));
      EXPECT_THAT(error.what(), HasSubstr("tokenizer.json"));
    }
  }
}

std::string random_bytes(uint64_t seed, size_t size) {
  const Philox random(seed);
  std::string text(size, '\0');
  for (size_t i = 0; i < size; ++i) text[i] = static_cast<char>(random.below(i, 256));
  return text;
}

TEST(ByteLevelTokenizer, AnyBytesComeBack) {
  json file = tiny_tokenizer(kMerges);
  for (const bool llama : {false, true}) {
    if (llama) file["pre_tokenizer"] = split_pre_tokenizer(kLlama3Pattern);
    const auto tokenizer = load(file);
    for (uint64_t seed = 0; seed < 200; ++seed) {
      const std::string text = random_bytes(seed, seed);
      ASSERT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
    }
  }
}

TEST(StreamDecoder, EmitsWholeCharactersOnly) {
  const auto tokenizer = load(tiny_tokenizer(kMerges));
  StreamDecoder decoder(*tokenizer);
  EXPECT_EQ(decoder.push('a'), "a");
  EXPECT_EQ(decoder.push(0xE4), "");
  EXPECT_EQ(decoder.push(0xBD), "");
  EXPECT_EQ(decoder.push(0xA0), "\u4F60");
  EXPECT_EQ(decoder.push(0xE4), "");
  EXPECT_EQ(decoder.push('b'), "\uFFFDb");  // can no longer become a character
  EXPECT_EQ(decoder.push(0xFF), "\uFFFD");
  EXPECT_EQ(decoder.push(0xF0), "");
  EXPECT_EQ(decoder.finish(), "\uFFFD");
  EXPECT_EQ(decoder.finish(), "");
}

TEST(StreamDecoder, SkipsSpecialTokens) {
  json file = tiny_tokenizer(kMerges);
  file["added_tokens"] = json::array({added_token(300, "<s>", {"special"}), added_token(301, "<t>")});
  const auto tokenizer = load(file);
  StreamDecoder decoder(*tokenizer, true);
  EXPECT_EQ(decoder.push(300) + decoder.push(301), "<t>");
}

TEST(StreamDecoder, PiecesAreUtf8AndAddUpToTheRepairedWhole) {
  const auto tokenizer = load(tiny_tokenizer(kMerges));
  for (uint64_t seed = 0; seed < 300; ++seed) {
    std::string text = random_bytes(seed, 40);
    if (seed % 2) text += "\u4F60\u597D \U0001F600" + text;
    StreamDecoder decoder(*tokenizer);
    std::string whole;
    const auto check = [&](const std::string& piece) {
      for (size_t i = 0; i < piece.size();) {
        const Utf8Char c = decode_utf8(piece.data() + i, piece.size() - i);
        ASSERT_TRUE(c.valid);
        i += c.length;
      }
      whole += piece;
    };
    for (const int32_t id : tokenizer->encode(text)) check(decoder.push(id));
    check(decoder.finish());
    ASSERT_EQ(whole, repair_utf8(text));
  }
}

TEST(StreamDecoder, ReplacesByMaximalSubparts) {
  // The example of the Unicode standard, table 3-8 and 3-11.
  EXPECT_EQ(repair_utf8("\xF0\x80\x80\x41"),
            "\uFFFD\uFFFD\uFFFD"
            "A");
  EXPECT_EQ(repair_utf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"),
            "\uFFFD\uFFFD\uFFFD\uFFFD"
            "A");
  EXPECT_EQ(repair_utf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
}

// Text above the limit for threads: the same ids as its parts, cut where nothing can join.
TEST(ByteLevelTokenizer, LargeTextIsTheSumOfItsParts) {
  const auto tokenizer = load(tiny_tokenizer(kMerges));
  const std::string part = "the father\n\n  reads 1234 caf\u00E9s, isn't it? \u4F60\u597D\u3002 \xFF then";
  std::string text;
  std::vector<int32_t> expected;
  const std::vector<int32_t> first = tokenizer->encode(part), other = tokenizer->encode(" " + part);
  while (text.size() < size_t{3} << 20) {
    text += text.empty() ? part : " " + part;
    const std::vector<int32_t>& ids = expected.empty() ? first : other;
    expected.insert(expected.end(), ids.begin(), ids.end());
  }
  EXPECT_TRUE(tokenizer->encode(text) == expected);
}

TEST(ByteLevelTokenizer, OneMebibyteOfOneCharacter) {
  json file = tiny_tokenizer({{"a", "a"}, {"\n", "\n"}, {" ", " "}, {"\xCC", "\x81"}});
  file["normalizer"] = {{"type", "NFC"}};
  file["pre_tokenizer"] = split_pre_tokenizer(kLlama3Pattern);
  const auto tokenizer = load(file);
  const auto start = std::chrono::steady_clock::now();
  for (const std::string unit : {"a", "\n", " ", "\u0301", "'", "1", "\xFF", "<", " \n"}) {
    std::string text;
    while (text.size() < size_t{1} << 20) text += unit;
    EXPECT_TRUE(tokenizer->decode(tokenizer->encode(text)) == text) << unit;
  }
  // Quadratic time would be minutes; the rest is room for sanitizers and a busy machine.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

TEST(ByteLevelTokenizer, ManyThreadsAtOnce) {
  const auto tokenizer = load(tiny_tokenizer(kMerges));
  const std::string text = "the other father there, then the rest\n";
  const std::vector<int32_t> expected = tokenizer->encode(text);
  std::atomic<int> wrong = 0;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 200; ++i) wrong += tokenizer->encode(text) != expected;
      });
    }
  }
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace octet
