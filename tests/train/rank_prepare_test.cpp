// Ranks that have different files, as nodes with disks of their own may.

#include "train/rank_prepare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/thread_ranks.h"
#include "support/error_of.h"

namespace octet::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// What the ranks of two nodes with two ranks each say, if they have these data.
std::string error_with(const std::vector<DataHashes>& data) {
  return error_of([&] {
    run_thread_ranks(static_cast<int>(data.size()), 2, [&](Ranks& ranks) {
      const int rank = ranks.place().rank;
      compare_data(ranks, data[static_cast<size_t>(rank)], rank < 2 ? "one" : "two");
    });
  });
}

TEST(RankPrepare, RanksWithOtherFilesAreNamed) {
  const DataHashes usual{.training = 1, .evaluation = 2, .tokenizer = 3};
  DataHashes data = usual, evaluation = usual, tokenizer = usual;
  data.training = 7;
  evaluation.evaluation = 7;
  tokenizer.tokenizer = tokenizer.training = 7;
  EXPECT_EQ(error_with({usual, usual, usual, usual}), "nothing was thrown");
  EXPECT_THAT(error_with({usual, usual, data, usual}),
              HasSubstr("rank 2 on two has other training data than rank 0 on one"));
  EXPECT_THAT(error_with({data, usual, usual, usual}),
              HasSubstr("rank 0 on one has other training data than rank 1 on one"));
  EXPECT_THAT(error_with({usual, usual, evaluation, evaluation}),
              HasSubstr("rank 2 on two, rank 3 on two have other evaluation data than rank 0 on one"));
  // Other tokens follow from another tokenizer: that one is the reason.
  EXPECT_THAT(error_with({usual, usual, usual, tokenizer}),
              HasSubstr("rank 3 on two has another tokenizer than rank 0 on one"));
}

}  // namespace
}  // namespace octet::test
