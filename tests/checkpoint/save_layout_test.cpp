// Which rank writes which tensors of a checkpoint.

#include "checkpoint/save_layout.h"

#include <gtest/gtest.h>

#include "support/tiny_run.h"

namespace octet::test {
namespace {

TEST(DealByBytes, IsEvenAndTheSameEverywhere) {
  EXPECT_EQ(deal_by_bytes(std::vector<int64_t>{5, 1, 1, 3}, 2), (std::vector<int>{0, 1, 1, 1}));
  EXPECT_EQ(deal_by_bytes(std::vector<int64_t>{1, 1}, 4), (std::vector<int>{0, 1}));
  EXPECT_EQ(deal_by_bytes({}, 4), (std::vector<int>{}));
}

TEST(SaveLayout, HasAtMostEightWritersSpreadOverTheRanks) {
  const TinyRun run({.precision = Precision::Fp32, .threads = 1});
  std::vector<int> writers;
  for (int rank = 0; rank < 32; ++rank) {
    const SaveLayout layout(run.model->parameters(), {.rank = rank, .ranks = 32, .group = 32});
    EXPECT_EQ(layout.my_weights().empty(), layout.my_bytes() == 0) << rank;
    if (layout.my_bytes() > 0) writers.push_back(rank);
  }
  EXPECT_EQ(writers, (std::vector<int>{0, 4, 8, 12, 16, 20, 24, 28}));
}

}  // namespace
}  // namespace octet::test
