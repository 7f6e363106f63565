#include "data/tokenizer/unicode.h"

#include <gtest/gtest.h>

namespace octet {
namespace {

TEST(Unicode, Classes) {
  const uint8_t* classes = char_classes();
  const auto has = [&](uint32_t point, uint8_t bit) { return (classes[point] & bit) != 0; };
  for (const uint32_t letter : {0x41u, 0xE9u, 0x17Fu, 0x4F60u, 0xAC00u, 0x10400u, 0x20000u, 0x105C0u})
    EXPECT_TRUE(has(letter, kLetter)) << letter;
  for (const uint32_t number : {0x30u, 0xB2u, 0xBDu, 0x661u, 0x2167u, 0x3007u, 0x1D7D9u, 0x10D40u})
    EXPECT_TRUE(has(number, kNumber)) << number;
  for (const uint32_t space : {0x9u, 0xDu, 0x20u, 0x85u, 0xA0u, 0x1680u, 0x200Au, 0x2028u, 0x3000u})
    EXPECT_TRUE(has(space, kSpace)) << space;
  for (const uint32_t none : {0x21u, 0x1Cu, 0x180Eu, 0x200Bu, 0x301u, 0xFFFDu, 0x1F600u, 0xE000u, 0x10FFFFu})
    EXPECT_EQ(classes[none] & (kLetter | kNumber | kSpace), 0) << none;
  EXPECT_TRUE(has('_', kWord) && has(0x301, kWord) && !has('-', kWord));
}

TEST(Unicode, DecodesOnlyWellFormedSequences) {
  const auto length = [](std::string_view text) {
    const Utf8Char c = decode_utf8(text.data(), text.size());
    return c.valid ? static_cast<int>(c.length) : -static_cast<int>(c.length);
  };
  EXPECT_EQ(length("a"), 1);
  EXPECT_EQ(length("\xC3\xA9"), 2);
  EXPECT_EQ(length("\xE4\xBD\xA0"), 3);
  EXPECT_EQ(length("\xF4\x8F\xBF\xBF"), 4);
  for (const char* bad :
       {"\x80", "\xC3", "\xC0\x80", "\xC1\xBF", "\xE0\x80\x80", "\xE4\xBD", "\xED\xA0\x80",
        "\xF0\x80\x80\x80", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xC3(", "\xE4(\xA0"})
    EXPECT_EQ(length(bad), -1) << bad;
  std::string text;
  for (uint32_t point = 1; point < kCodePoints; point += 7) {
    if (point >= 0xD800 && point < 0xE000) continue;
    text.clear();
    append_utf8(text, point);
    const Utf8Char c = decode_utf8(text.data(), text.size());
    ASSERT_TRUE(c.valid && c.point == point && c.length == text.size()) << point;
  }
}

TEST(Unicode, Nfc) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"plain ascii", "plain ascii"},
      {"cafe\u0301", "caf\u00E9"},
      {"caf\u00E9", "caf\u00E9"},
      {"\u212B\u2126\u212A", "\u00C5\u03A9K"},
      {"a\u0307\u0323", "\u1EA1\u0307"},  // reordered, then composed
      {"\u1E0A\u0323", "\u1E0C\u0307"},   // decomposed, reordered, recomposed
      {"\u1100\u1161\u11A8", "\uAC01"},   // Hangul, three jamo
      {"\uAC00\u11A8", "\uAC01"},         // syllable and trail
      {"\uAC00\u11A7", "\uAC00\u11A7"},   // not a trail
      {"\u0915\u093C", "\u0915\u093C"},   // U+0958 is excluded from composition
      {"\u0958", "\u0915\u093C"},
      {"\u01D5", "\u01D5"},  // two steps down and up
      {"U\u0308\u0304", "\u01D5"},
      {"\u0301e", "\u0301e"},
      {"e\u0315\u0301", "\u00E9\u0315"},
      {"e\u0334\u0301", "\u00E9\u0334"},
      {"e\u0301\u0301", "\u00E9\u0301"},
      {"x\xFF\u0301y\xC3", "x\xFF\u0301y\xC3"},  // ill-formed bytes stay and join nothing
      {"\xE4\xBD"
       "e\u0301",
       "\xE4\xBD\u00E9"},
      {"a\u07FD\u0327", "a\u07FD\u0327"},  // U+07FD is of Unicode 11: class 0 in the library's tables
  };
  for (const auto& [text, expected] : cases) {
    EXPECT_EQ(to_nfc(text), expected) << text;
    EXPECT_EQ(to_nfc(expected), expected);
    EXPECT_TRUE(!surely_nfc(text) || text == expected) << text;
  }
  EXPECT_TRUE(surely_nfc("plain caf\u00E9 \u4F60"));
  EXPECT_FALSE(surely_nfc("e\u0301"));
}

TEST(Unicode, LongRunsOfMarksAreSorted) {
  std::string text = "a", expected = "a";
  for (int i = 0; i < 100000; ++i) text += i % 2 ? "\u0334" : "\u0301";
  expected = "\u00E1";
  for (int i = 0; i < 50000; ++i) expected += "\u0334";
  for (int i = 1; i < 50000; ++i) expected += "\u0301";
  EXPECT_EQ(to_nfc(text), expected);
}

}  // namespace
}  // namespace octet
