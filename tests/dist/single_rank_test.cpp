#include <gtest/gtest.h>

#include "dist/collective_support.h"
#include "support/error_of.h"

namespace octet {
namespace {

TEST(SingleRank, CollectivesAreCopies) {
  const auto ranks = make_single_rank();
  EXPECT_EQ(ranks->place(), RankPlace{});
  EXPECT_TRUE(ranks->place().is_first());
  const auto device = make_cpu_device(1);
  const std::vector<int> alone = {0}, other = {1};
  const auto group = ranks->make_communicator(*device, "all", alone);
  ASSERT_EQ(group->size(), 1);
  EXPECT_EQ(test::check_all_gather(*group, *device, "gather"), "");
  EXPECT_EQ(test::check_exchange(*group, *device, 3, "exchange"), "");
  EXPECT_NE(error_of([&] { ranks->make_communicator(*device, "other", other); }), "nothing was thrown");
}

TEST(SingleRank, HostCallsReturnTheOwnText) {
  const auto ranks = make_single_rank();
  EXPECT_EQ(ranks->host().all_gather("tag", "text"), std::vector<std::string>{"text"});
  EXPECT_EQ(ranks->host().from_first("tag", "text"), "text");
  ranks->host().barrier("tag");
  ranks->report_failure("returns: there are no others");
}

}  // namespace
}  // namespace octet
