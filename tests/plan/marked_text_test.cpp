#include "plan/marked_text.h"

#include <gtest/gtest.h>

#include "data/tokenizer/bytes_tokenizer.h"

namespace octet {
namespace {

Document document_of(const std::string& text, const std::string& trained) {
  Document document;
  for (size_t i = 0; i < text.size(); ++i) {
    document.tokens.push_back(static_cast<unsigned char>(text[i]));
    document.is_target.push_back(trained[i] == '1');
  }
  return document;
}

TEST(MarkedText, TellsTrainedTokensApart) {
  const BytesTokenizer tokenizer;
  const Document document = document_of("Qx\nA\x1b!", "0001100");
  EXPECT_EQ(marked_text(document, tokenizer, MarkStyle::Brackets), "Qx\n[[A\\x1b]]!");
  EXPECT_EQ(marked_text(document, tokenizer, MarkStyle::Color),
            "\x1b[2mQx\n\x1b[0m\x1b[32mA\\x1b\x1b[0m\x1b[2m!\x1b[0m");
  EXPECT_EQ(marked_counts(document), "6 tokens, 2 trained (33.3 %)");
  EXPECT_EQ(marked_counts(document_of("abcd", "1111")), "4 tokens, 3 trained (75.0 %)")
      << "nothing predicts the first";
  EXPECT_EQ(marked_counts({}), "0 tokens, 0 trained (0.0 %)");
}

TEST(MarkedText, IsCutInTheMiddle) {
  const BytesTokenizer tokenizer;
  const std::string text(100, 'a'), all(100, '1');
  EXPECT_EQ(marked_text(document_of(text, all), tokenizer, MarkStyle::Brackets, 10), "[[aaaaa ... aaaaa]]");
  // Over several stretches, and never inside a character.
  const std::string umlauts = "\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4";
  EXPECT_EQ(marked_text(document_of(umlauts, "000000111111"), tokenizer, MarkStyle::Brackets, 6),
            "\xc3\xa4\xc3\xa4 ... [[\xc3\xa4]]");
}

}  // namespace
}  // namespace octet
