#include "data/tokenizer/bytes_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace octet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(BytesTokenizer, DecodeIsTheInverseForEveryByte) {
  const BytesTokenizer tokenizer;
  std::string text;
  for (int i = 0; i < 256; ++i) text.push_back(static_cast<char>(i));
  text += "caf\xc3\xa9 <|endoftext|>";  // the marker written out is text, not the special token
  const std::vector<int32_t> ids = tokenizer.encode(text);
  ASSERT_EQ(ids.size(), text.size());
  EXPECT_EQ(ids[255], 255);
  EXPECT_EQ(tokenizer.decode(ids), text);
  EXPECT_TRUE(tokenizer.encode("").empty());
}

TEST(BytesTokenizer, EndOfTextIsTheLastId) {
  const BytesTokenizer tokenizer;
  EXPECT_EQ(tokenizer.eos(), std::optional<int32_t>(256));
  EXPECT_EQ(tokenizer.bos(), tokenizer.eos());
  EXPECT_EQ(tokenizer.vocab_size(), 257);
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{'a', 256, 'b'}), "a<|endoftext|>b");
}

TEST(BytesTokenizer, RefusesIdsOutsideTheVocabulary) {
  const BytesTokenizer tokenizer;
  for (int32_t id : {-1, 257}) {
    try {
      tokenizer.decode(std::vector<int32_t>{'a', id});
      FAIL() << "id " << id << " was accepted";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr(std::to_string(id)), HasSubstr("place 1"), HasSubstr("256")));
    }
  }
}

TEST(MakeTokenizer, KnowsBytesAndNamesWhatItKnows) {
  EXPECT_EQ(make_tokenizer("bytes")->vocab_size(), 257);
  try {
    make_tokenizer("no-such-tokenizer");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("no-such-tokenizer"), HasSubstr("bytes")));
  }
}

}  // namespace
}  // namespace octet
