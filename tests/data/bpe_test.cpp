#include "data/tokenizer/bpe.h"

#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "base/philox.h"

namespace octet {
namespace {

struct TestModel {
  std::vector<std::string> tokens;
  std::vector<BpeModel::Merge> merges;

  int32_t id(const std::string& bytes) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] == bytes) return static_cast<int32_t>(i);
    }
    tokens.push_back(bytes);
    return static_cast<int32_t>(tokens.size() - 1);
  }
  void merge(const std::string& left, const std::string& right) {
    const auto rank = static_cast<uint32_t>(merges.size());
    merges.push_back({id(left), id(right), id(left + right), rank});
  }
};

std::vector<int32_t> encode(const BpeModel& model, std::string_view word, BpeScratch& scratch) {
  std::vector<int32_t> out;
  model.encode_word(word, word.size(), scratch, out);
  return out;
}

// The definition: as long as a pair has a rank, merge the lowest, leftmost first.
std::vector<int32_t> reference(const TestModel& model, std::string_view word) {
  std::map<std::pair<int32_t, int32_t>, size_t> ranks;
  for (size_t i = 0; i < model.merges.size(); ++i) ranks[{model.merges[i].left, model.merges[i].right}] = i;
  std::vector<int32_t> ids;
  for (const char c : word) {
    for (size_t i = 0; i < model.tokens.size(); ++i) {
      if (model.tokens[i] == std::string(1, c)) ids.push_back(static_cast<int32_t>(i));
    }
  }
  for (;;) {
    size_t best = SIZE_MAX, at = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto found = ranks.find({ids[i], ids[i + 1]});
      if (found != ranks.end() && found->second < best) best = found->second, at = i;
    }
    if (best == SIZE_MAX) return ids;
    ids[at] = model.merges[best].result;
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(at) + 1);
  }
}

TEST(Bpe, LowestRankFirst) {
  TestModel test;
  test.merge("b", "c");
  test.merge("a", "b");
  test.merge("a", "bc");
  BpeScratch scratch;
  const BpeModel model(test.tokens, test.merges, false);
  EXPECT_EQ(encode(model, "abc", scratch), std::vector{test.id("abc")});
  EXPECT_EQ(encode(model, "ab", scratch), std::vector{test.id("ab")});
  EXPECT_EQ(encode(model, "abab", scratch), (std::vector{test.id("ab"), test.id("ab")}));
  EXPECT_EQ(model.find("abc"), test.id("abc"));
  EXPECT_EQ(model.find("cab"), std::nullopt);
}

TEST(Bpe, IgnoreMergesTakesWholeWords) {
  TestModel test;
  test.merge("a", "b");
  test.id("c");
  const int32_t whole = test.id("abc");
  BpeScratch scratch, other;
  EXPECT_EQ(encode(BpeModel(test.tokens, test.merges, false), "abc", scratch),
            (std::vector{test.id("ab"), test.id("c")}));
  EXPECT_EQ(encode(BpeModel(test.tokens, test.merges, true), "abc", other), std::vector{whole});
}

TEST(Bpe, LaterMergeOfTheSamePairCounts) {
  TestModel test;
  test.merge("a", "a");
  test.merge("a", "b");
  test.merge("a", "a");
  BpeScratch scratch;
  EXPECT_EQ(encode(BpeModel(test.tokens, test.merges, false), "aab", scratch),
            (std::vector{test.id("a"), test.id("ab")}));
}

// Random merges over few letters, words of all lengths around the limits of cache, scan and heap, each word
// twice so that it comes from the cache too.
TEST(Bpe, EqualsTheDefinition) {
  const Philox random(11);
  uint64_t draw = 0;
  for (int trial = 0; trial < 60; ++trial) {
    TestModel test;
    for (const char* letter : {"a", "b", "c"}) test.id(letter);
    for (int i = 0; i < 40; ++i) {
      const std::string left = test.tokens[random.below(draw++, test.tokens.size())];
      const std::string right = test.tokens[random.below(draw++, test.tokens.size())];
      test.merge(left, right);
    }
    const BpeModel model(test.tokens, test.merges, false);
    BpeScratch scratch;
    for (const size_t length : {1, 2, 7, 8, 16, 30, 31, 32, 33, 39, 40, 41, 42, 80, 200}) {
      std::string word;
      for (size_t i = 0; i < length; ++i) word += static_cast<char>('a' + random.below(draw++, 3));
      const std::vector<int32_t> expected = reference(test, word);
      ASSERT_EQ(encode(model, word, scratch), expected) << word;
      ASSERT_EQ(encode(model, word, scratch), expected) << word;
      // The same word inside a longer text, where the cache may read past its end.
      std::vector<int32_t> out;
      const std::string text = word + std::string(40, 'z');
      model.encode_word(std::string_view(text).substr(0, length), text.size(), scratch, out);
      ASSERT_EQ(out, expected) << word;
    }
  }
}

TEST(Bpe, LongRunsTakeNoQuadraticTime) {
  TestModel test;
  for (size_t length = 1; length <= 64; length *= 2)
    test.merge(std::string(length, 'a'), std::string(length, 'a'));
  const BpeModel model(test.tokens, test.merges, false);
  BpeScratch scratch;
  const std::vector<int32_t> ids = encode(model, std::string(size_t{1} << 20, 'a'), scratch);
  EXPECT_EQ(ids, std::vector<int32_t>(8192, test.id(std::string(128, 'a'))));
}

TEST(Bpe, ByteWithoutTokenIsAnError) {
  TestModel test;
  test.merge("a", "b");
  const BpeModel model(test.tokens, test.merges, false);
  BpeScratch scratch;
  EXPECT_THROW(encode(model, "abz", scratch), Error);
}

}  // namespace
}  // namespace octet
