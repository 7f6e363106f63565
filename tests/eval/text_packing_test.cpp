#include "eval/text_packing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/error_of.h"

namespace octet {
namespace {

using testing::ElementsAre;
using testing::Pair;

TEST(TextPacking, TextsFollowOneAnotherAsDocuments) {
  const std::vector<ScoredText> texts = {{{1, 2, 3, 4}, 2}, {{5, 6}, 1}, {{7, 8, 9, 10, 11}, 4}};
  const TextPacking packing(texts, 2, 4);  // 3 + 1 + 4 inputs fill one batch
  ASSERT_EQ(packing.batches(), 1);
  Batch batch;
  packing.fill(0, batch);
  EXPECT_THAT(batch.tokens, ElementsAre(1, 2, 3, 5, 7, 8, 9, 10));
  EXPECT_THAT(batch.targets, ElementsAre(-1, 3, 4, 6, 8, 9, 10, 11));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 2, 0, 0, 1, 2, 3));
  EXPECT_THAT(batch.document_starts, ElementsAre(0, 3, 4, 8));
  EXPECT_EQ(batch.target_count, 7);
}

TEST(TextPacking, ATextThatDoesNotFitBeginsTheNextBatchAndTheRestIsPadding) {
  const std::vector<ScoredText> texts = {{{1, 2, 3, 4}, 1}, {{5, 6, 7, 8, 9}, 1}, {{1, 2}, 1}};
  const TextPacking packing(texts, 1, 4);
  ASSERT_EQ(packing.batches(), 3);
  EXPECT_THAT(packing.texts_of(1), Pair(1, 2));
  Batch batch;
  packing.fill(0, batch);
  EXPECT_THAT(batch.tokens, ElementsAre(1, 2, 3, 0));
  EXPECT_THAT(batch.targets, ElementsAre(-1, -1, 4, -1));
  EXPECT_THAT(batch.document_starts, ElementsAre(0, 3, 4));
  packing.fill(2, batch);
  EXPECT_THAT(batch.targets, ElementsAre(2, -1, -1, -1));
  EXPECT_THAT(batch.document_starts, ElementsAre(0, 1, 4));
}

// A document is never longer than the positions that the model has room for.
TEST(TextPacking, PaddingIsCutIntoDocumentsOfARow) {
  const std::vector<ScoredText> texts = {{{1, 2}, 1}};
  Batch batch;
  TextPacking(texts, 3, 2).fill(0, batch);
  EXPECT_THAT(batch.document_starts, ElementsAre(0, 1, 3, 5, 6));
  EXPECT_THAT(batch.positions, ElementsAre(0, 0, 1, 0, 1, 0));
}

TEST(TextPacking, ATextLongerThanARowIsRefused) {
  const std::vector<ScoredText> texts = {{{1, 2, 3, 4}, 1}};
  EXPECT_EQ(error_of([&] { TextPacking(texts, 4, 2); }), "[eval] a text of 3 input tokens, expected 1 to 2");
}

}  // namespace
}  // namespace octet
