#include <gmock/gmock.h>

#include <atomic>
#include <csignal>

#include "dist/collective_support.h"
#include "dist/engines.h"
#include "support/error_of.h"
#include "support/rank_processes.h"

// Every test runs in several processes of this program, on the loopback interface.

namespace octet {
namespace {

using test::RankProcess;
using testing::HasSubstr;

class CountingProgress final : public Progress {
 public:
  void queued(int lane, std::string_view) override { begun += lane == 7; }
  void finished(int lane) override { ended += lane == 7; }
  std::atomic<int> begun = 0, ended = 0;
};

std::unique_ptr<Communicator> make_group(RankProcess& process, Progress& progress, const std::string& name,
                                         std::vector<int> members) {
  return make_gloo_communicator({process.host, progress, 7, name, std::move(members), "127.0.0.1"});
}

void expect_right(const std::string& fault) {
  if (!fault.empty()) fail("{}", fault);
}

const bool added_collectives = test::add_rank_process("gloo collectives", [](RankProcess& process) {
  CountingProgress progress;
  const auto device = make_cpu_device(1);
  const auto all = make_group(process, progress, "all", test::ranks_up_to(process.ranks));
  require(all->rank() == process.rank && all->size() == process.ranks, "wrong place in the group");
  for (int round = 0; round < 10; ++round) {
    expect_right(test::check_all_gather(*all, *device, "gather"));
    expect_right(test::check_exchange(*all, *device, round % 3, "exchange"));
  }
  require(progress.begun == 20 && progress.ended == 20, "{} queued and {} finished, expected 20",
          progress.begun.load(), progress.ended.load());
  // Groups of some ranks, in another order, and of one.
  if (process.rank != 1) {
    const auto two = make_group(process, progress, "two", {2, 0});
    require(two->rank() == (process.rank == 2 ? 0 : 1), "wrong place in the group of two");
    expect_right(test::check_all_gather(*two, *device, "gather"));
    expect_right(test::check_exchange(*two, *device, 1, "exchange"));
  } else {
    const auto alone = make_group(process, progress, "alone", {1});
    expect_right(test::check_all_gather(*alone, *device, "gather"));
    expect_right(test::check_exchange(*alone, *device, 1, "exchange"));
  }
  process.host.barrier("end");
});

// Rank 1 dies. The others are in a collective, where each has one connection to it and one to a rank that lives.
const bool added_death = test::add_rank_process("gloo death", [](RankProcess& process) {
  Progress progress;
  const auto device = make_cpu_device(1);
  const auto all = make_group(process, progress, "all", test::ranks_up_to(process.ranks));
  expect_right(test::check_all_gather(*all, *device, "gather"));
  if (process.rank == 1) std::raise(SIGKILL);
  try {
    for (int round = 0; round < 100; ++round) test::check_exchange(*all, *device, 0, "exchange layers.3");
  } catch (const RankError& error) {
    std::puts(error.what());
    return;
  }
  fail("nothing was thrown");
});

bool has_gloo() {
  return gloo_description() == "Gloo";
}

TEST(Gloo, CollectivesOfThreeProcesses) {
  if (!has_gloo()) GTEST_SKIP() << gloo_description();
  for (const auto& result : test::run_rank_processes("gloo collectives", 3)) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
}

TEST(Gloo, DeadProcessIsAnErrorInTheOthers) {
  if (!has_gloo()) GTEST_SKIP() << gloo_description();
  for (const int ranks : {2, 4}) {
    const auto results = test::run_rank_processes("gloo death", ranks);
    for (size_t rank = 0; rank < results.size(); ++rank) {
      if (rank == 1) {
        EXPECT_EQ(results[rank].exit_code, 128 + SIGKILL);
        continue;
      }
      EXPECT_EQ(results[rank].exit_code, 0) << results[rank].err;
      EXPECT_THAT(results[rank].out, HasSubstr("[exchange layers.3] Gloo says: "));
    }
  }
}

}  // namespace
}  // namespace octet
