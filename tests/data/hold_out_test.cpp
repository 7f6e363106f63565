#include "data/datasets/hold_out.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/philox.h"

namespace octet {
namespace {

// Texts of these lengths, or conversations of this many turns of question and answer.
std::vector<TokenizePipeline::Item> documents(const std::vector<int64_t>& lengths, int turns = 0) {
  std::vector<TokenizePipeline::Item> items;
  for (const int64_t length : lengths) {
    TokenizePipeline::Item item{std::ssize(items), {}};
    item.document.tokens.assign(static_cast<size_t>(length), 1);
    item.document.is_target.assign(static_cast<size_t>(length), 1);
    for (int64_t i = 0; turns > 0 && i < length; ++i)
      item.document.is_target[static_cast<size_t>(i)] = (i * 2 * turns / length) % 2 != 0;
    items.push_back(std::move(item));
  }
  return items;
}

std::vector<int64_t> uneven(size_t count, uint64_t seed) {
  std::vector<int64_t> lengths;
  const Philox random(seed);
  for (size_t i = 0; i < count; ++i) {
    const auto draw = static_cast<int64_t>(random.below(i, 1000));
    lengths.push_back(draw < 20 ? 20'000 + draw : 20 + draw);  // a few are much longer than the others
  }
  return lengths;
}

double held_out_share(const std::vector<int64_t>& lengths, double share, size_t per_block, int turns = 0,
                      uint64_t seed = 42) {
  const auto items = documents(lengths, turns);
  HoldOut hold_out(share, seed, 0, 0);
  int64_t held = 0;
  for (size_t begin = 0; begin < items.size(); begin += per_block) {
    const size_t count = std::min(per_block, items.size() - begin);
    const auto block = std::span(items).subspan(begin, count);
    const auto tails = hold_out.choose(block, begin + count == items.size(), turns == 0);
    for (size_t i = 0; i < count; ++i) {
      EXPECT_LE(tails[i], std::ssize(block[i].document.tokens));
      held += tails[i];
    }
  }
  return static_cast<double>(held) /
         static_cast<double>(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}));
}

TEST(HoldOut, TheShareIsOneOfTokens) {
  for (const double share : {0.01, 0.05, 0.2, 0.5}) {
    for (const size_t per_block : {1000u, 64u, 7u}) {
      for (uint64_t seed = 1; seed <= 5; ++seed) {
        EXPECT_NEAR(held_out_share(uneven(2000, seed), share, per_block, 0, seed), share, 0.004);
        EXPECT_NEAR(held_out_share(std::vector<int64_t>(500, 30), share, per_block, 2, seed), share, 0.004);
      }
    }
  }
}

TEST(HoldOut, FewTextsAreCutWhereWholeOnesMissTheShare) {
  for (const size_t count : {1u, 2u, 3u, 10u, 30u}) {
    EXPECT_NEAR(held_out_share(std::vector<int64_t>(count, 1000), 0.05, 1000), 0.05, 0.004) << count;
    EXPECT_NEAR(held_out_share(uneven(count, 3), 0.05, 1000), 0.05, 0.005) << count;
  }
}

TEST(HoldOut, ConversationsStayWholeUnlessThereIsOnlyOne) {
  for (const int turns : {1, 2}) {
    EXPECT_DOUBLE_EQ(held_out_share(std::vector<int64_t>(30, 100), 0.05, 1000, turns), 1.0 / 30);
    EXPECT_DOUBLE_EQ(held_out_share(std::vector<int64_t>(3, 100), 0.05, 1000, turns), 1.0 / 3);
    EXPECT_DOUBLE_EQ(held_out_share({400}, 0.05, 1000, turns), 0.05);
  }
}

TEST(HoldOut, SomethingIsLeftAndNothingIsHeldOutOfAShareOfZero) {
  EXPECT_EQ(held_out_share(std::vector<int64_t>(20, 10), 0, 1000), 0);
  EXPECT_LT(held_out_share({10, 10}, 0.99, 1000, 2), 1);
  EXPECT_EQ(held_out_share({3}, 0.5, 1000), 0) << "too short to cut";
}

TEST(HoldOut, ABlockDependsOnlyOnWhatWasCountedBeforeIt) {
  const auto items = documents(uneven(300, 8));
  HoldOut whole(0.1, 5, 0, 0);
  const auto first = whole.choose(std::span(items).first(150), false, true);
  const auto second = whole.choose(std::span(items).subspan(150), true, true);
  int64_t seen = 0, held = 0;
  for (size_t i = 0; i < 150; ++i) seen += std::ssize(items[i].document.tokens), held += first[i];
  HoldOut resumed(0.1, 5, seen, held);
  EXPECT_EQ(resumed.choose(std::span(items).subspan(150), true, true), second);
  HoldOut other(0.1, 6, seen, held);
  EXPECT_NE(other.choose(std::span(items).subspan(150), true, true), second);
}

}  // namespace
}  // namespace octet
