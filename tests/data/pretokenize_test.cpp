#include "data/tokenizer/pretokenize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "base/philox.h"

namespace octet {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> words(SplitPattern pattern, std::string_view text,
                               DigitSplit digits = DigitSplit::None) {
  std::vector<std::string> result;
  for (size_t begin = 0; begin < text.size();) {
    const std::string_view part = text.substr(0, digit_part_end(digits, text, begin));
    EXPECT_GT(part.size(), begin);
    while (begin < part.size()) {
      const size_t end = word_end(pattern, part, begin);
      EXPECT_GT(end, begin);
      result.emplace_back(part.substr(begin, end - begin));
      begin = end;
    }
  }
  return result;
}

TEST(Pretokenize, Gpt2) {
  const auto cut = [](std::string_view text) { return words(SplitPattern::Gpt2, text); };
  EXPECT_THAT(cut("Hello world"), ElementsAre("Hello", " world"));
  EXPECT_THAT(cut("I'm you'RE"), ElementsAre("I", "'m", " you", "'", "RE"));
  EXPECT_THAT(cut("x12 345!?  y"), ElementsAre("x", "12", " 345", "!?", " ", " y"));
  EXPECT_THAT(cut("a  \n"), ElementsAre("a", "  \n"));
  EXPECT_THAT(cut("a\n\nb"), ElementsAre("a", "\n", "\n", "b"));
  EXPECT_THAT(cut("\tx"), ElementsAre("\t", "x"));
}

TEST(Pretokenize, Llama3) {
  const auto cut = [](std::string_view text) { return words(SplitPattern::Llama3, text); };
  EXPECT_THAT(cut("I'M 'ſx"), ElementsAre("I", "'M", " '", "ſx"));  // the quote is gone by then
  EXPECT_THAT(cut("'ſx"), ElementsAre("'ſ", "x"));
  EXPECT_THAT(cut("\tx (y)"), ElementsAre("\tx", " (", "y", ")"));
  EXPECT_THAT(cut("(y 12345 6"), ElementsAre("(y", " ", "123", "45", " ", "6"));
  EXPECT_THAT(cut("a!\n\n b"), ElementsAre("a", "!\n\n", " b"));
  EXPECT_THAT(cut("a \n  \n  b"), ElementsAre("a", " \n  \n", " ", " b"));
  EXPECT_THAT(cut("\n\nx"), ElementsAre("\n\n", "x"));
  EXPECT_THAT(cut("\xC2\xA0x\xE3\x80\x80"), ElementsAre("\xC2\xA0x", "\xE3\x80\x80"));
}

TEST(Pretokenize, Qwen2TakesDigitsOneByOne) {
  EXPECT_THAT(words(SplitPattern::Qwen2, "a123 ½"), ElementsAre("a", "1", "2", "3", " ", "½"));
}

TEST(Pretokenize, IllFormedBytesAreNeitherLetterNorSpace) {
  EXPECT_THAT(words(SplitPattern::Gpt2, "a\xFF\x80 b"), ElementsAre("a", "\xFF\x80", " b"));
  EXPECT_THAT(words(SplitPattern::Llama3, "a\xE4\xBD"), ElementsAre("a", "\xE4\xBD"));
}

TEST(Pretokenize, KnowsPatternsByTheirText) {
  EXPECT_EQ(
      find_split_pattern(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"),
      SplitPattern::Gpt2);
  EXPECT_EQ(find_split_pattern(R"(\s+)"), std::nullopt);
}

// Cutting where safe_cut says must not change the words, wherever it is asked to start.
TEST(Pretokenize, SafeCutsChangeNothing) {
  const std::vector<std::string> pieces = {"ab", " ",  "\n", "'s", "12", "!",  "é",   "你",
                                           "\t", "  ", "\r", "'",  "x",  "。", "\xFF"};
  const Philox random(5);
  uint64_t draw = 0;
  for (const SplitPattern pattern : {SplitPattern::Gpt2, SplitPattern::Llama3, SplitPattern::Qwen2}) {
    for (size_t trial = 0; trial < 2000; ++trial) {
      const DigitSplit digits = std::array{DigitSplit::None, DigitSplit::Each, DigitSplit::Runs}[trial % 3];
      std::string text;
      for (int i = 0; i < 12; ++i) text += pieces[random.below(draw++, pieces.size())];
      const size_t cut = safe_cut(pattern, text, random.below(draw++, text.size()));
      std::vector<std::string> parts = words(pattern, std::string_view(text).substr(0, cut), digits);
      for (std::string& word : words(pattern, std::string_view(text).substr(cut), digits))
        parts.push_back(word);
      ASSERT_EQ(parts, words(pattern, text, digits)) << text << " cut at " << cut;
    }
  }
}

}  // namespace
}  // namespace octet
