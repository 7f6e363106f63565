#include "support/thread_ranks.h"

#include <gmock/gmock.h>

#include <atomic>
#include <mutex>

#include "dist/collective_support.h"
#include "support/error_of.h"

namespace octet {
namespace {

using std::chrono::milliseconds;
using test::check_all_gather;
using test::check_exchange;
using test::ranks_up_to;
using testing::AllOf;
using testing::HasSubstr;

class ThreadRanksOf : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ThreadRanksOf, testing::Values(1, 2, 3, 4));

TEST_P(ThreadRanksOf, GatherAndExchange) {
  run_thread_ranks(GetParam(), GetParam(), [&](Ranks& ranks) {
    const auto device = make_cpu_device(1);
    const auto members = ranks_up_to(GetParam());
    const auto group = ranks.make_communicator(*device, "all", members);
    ASSERT_EQ(group->rank(), ranks.place().rank);
    ASSERT_EQ(group->size(), GetParam());
    for (int round = 0; round < 20; ++round) {
      EXPECT_EQ(check_all_gather(*group, *device, "gather"), "");
      EXPECT_EQ(check_exchange(*group, *device, round % 5, "exchange"), "");
    }
  });
}

TEST_P(ThreadRanksOf, HostCalls) {
  std::atomic<int> bodies = 0;
  run_thread_ranks(GetParam(), 1, [&](Ranks& ranks) {
    ++bodies;
    EXPECT_EQ(ranks.place().nodes(), GetParam());
    HostChannel& host = ranks.host();
    for (int round = 0; round < 50; ++round) {
      const auto texts = host.all_gather("texts", fmt::format("{}.{}", host.rank(), round));
      ASSERT_EQ(texts.size(), static_cast<size_t>(GetParam()));
      for (int r = 0; r < GetParam(); ++r)
        EXPECT_EQ(texts[static_cast<size_t>(r)], fmt::format("{}.{}", r, round));
    }
    EXPECT_EQ(host.from_first("first", fmt::format("from {}", host.rank())), "from 0");
    host.barrier("end");
  });
  EXPECT_EQ(bodies, GetParam());
}

TEST(ThreadRanks, GroupsOfSomeRanks) {
  run_thread_ranks(4, 2, [](Ranks& ranks) {
    const auto device = make_cpu_device(1);
    const int me = ranks.place().rank;
    EXPECT_EQ(ranks.place().node(), me / 2);
    EXPECT_EQ(ranks.place().local_rank, me % 2);
    const std::vector<int> first = {0, 1}, second = {2, 3}, mixed = {3, 1, 0};
    const auto a = ranks.make_communicator(*device, "node 0", first);
    const auto b = ranks.make_communicator(*device, "node 1", second);
    const auto c = ranks.make_communicator(*device, "mixed", mixed);
    EXPECT_EQ(a != nullptr, me < 2);
    EXPECT_EQ(b != nullptr, me >= 2);
    EXPECT_EQ(c != nullptr, me != 2);
    Communicator& node = a ? *a : *b;
    EXPECT_EQ(node.rank(), me % 2);
    EXPECT_EQ(check_all_gather(node, *device, "gather"), "");
    if (c) {
      // In the order of the members.
      EXPECT_EQ(c->rank(), me == 3 ? 0 : me == 1 ? 1 : 2);
      EXPECT_EQ(check_exchange(*c, *device, 1, "exchange"), "");
      const auto texts = ranks.host().all_gather("some", std::to_string(me), milliseconds(60'000), mixed);
      EXPECT_THAT(texts, testing::ElementsAre("3", "1", "0"));
    }
  });
}

TEST(ThreadRanks, HostCallsFromSeveralThreads) {
  run_thread_ranks(3, 3, [](Ranks& ranks) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        const auto tag = fmt::format("thread {}", t);
        for (int round = 0; round < 20; ++round) {
          const auto texts = ranks.host().all_gather(tag, fmt::format("{} {}", t, ranks.place().rank));
          EXPECT_EQ(texts[2], fmt::format("{} 2", t));
        }
      });
    }
    for (auto& thread : threads) thread.join();
  });
}

// Rank 1 fails while the others wait: each of them learns who failed and why, and the caller gets the failure itself.
TEST(ThreadRanks, FailureOfOneEndsTheOthers) {
  std::mutex mutex;
  std::vector<std::string> seen;
  const auto wait_and_note = [&](const std::function<void()>& wait) {
    try {
      wait();
    } catch (const RankError& error) {
      const std::lock_guard lock(mutex);
      seen.emplace_back(error.what());
      throw;
    }
  };
  const std::string message = error_of([&] {
    run_thread_ranks(4, 4, [&](Ranks& ranks) {
      const auto device = make_cpu_device(1);
      const auto group = ranks.make_communicator(*device, "all", ranks_up_to(4));
      if (ranks.place().rank == 1) fail("[disk] it is full");
      if (ranks.place().rank == 2) {
        wait_and_note([&] { ranks.host().barrier("saved"); });
      } else {
        wait_and_note([&] { check_all_gather(*group, *device, "gather layers.3"); });
      }
    });
  });
  EXPECT_EQ(message, "[disk] it is full");
  EXPECT_THAT(seen, testing::UnorderedElementsAre("[saved] rank 1 failed: [disk] it is full",
                                                  "[gather layers.3] rank 1 failed: [disk] it is full",
                                                  "[gather layers.3] rank 1 failed: [disk] it is full"));
}

TEST(ThreadRanks, ReportedFailure) {
  for (int round = 0; round < 20; ++round) {
    EXPECT_EQ(error_of([] {
                run_thread_ranks(3, 3, [](Ranks& ranks) {
                  if (ranks.place().rank == 2) ranks.report_failure("[data] a bad record");
                  ranks.host().barrier("never");
                });
              }),
              "[data] a bad record");
  }
}

TEST(ThreadRanks, RankThatEndsEarly) {
  EXPECT_EQ(error_of([] {
              run_thread_ranks(2, 2, [](Ranks& ranks) {
                if (ranks.place().rank == 0) ranks.host().barrier("step 3");
              });
            }),
            "[step 3] rank 1 has ended without coming");
}

TEST(ThreadRanks, HostCallsHaveALimit) {
  std::string message;
  run_thread_ranks(3, 3, [&](Ranks& ranks) {
    HostChannel& host = ranks.host();
    if (ranks.place().rank == 1)
      message = error_of([&] { host.all_gather("late", "", milliseconds(100), ranks_up_to(2)); });
    // Who gave up has not failed for good.
    host.barrier("end");
  });
  EXPECT_EQ(message, "[late] rank 0 did not come within 0.1 s");
}

TEST(ThreadRanks, SizesThatDiffer) {
  std::atomic<int> errors = 0;
  const auto message_of = [&](const std::function<void(Ranks&, Communicator&, Device&)>& call) {
    return error_of([&] {
      run_thread_ranks(3, 3, [&](Ranks& ranks) {
        const auto device = make_cpu_device(1);
        const auto group = ranks.make_communicator(*device, "all", ranks_up_to(3));
        try {
          call(ranks, *group, *device);
        } catch (const RankError&) {
          ++errors;
          throw;
        }
      });
    });
  };
  EXPECT_EQ(message_of([](Ranks& ranks, Communicator& group, Device& device) {
              std::vector<uint8_t> part(ranks.place().rank == 2 ? 5 : 4), whole(3 * part.size());
              group.all_gather(device.queue(), std::vector<GatherItem>{{test::view(whole), test::view(part)}},
                               "gather head");
            }),
            "[gather head] rank 0 has 4 bytes per part in item 0, rank 2 5 bytes, expected the same");
  EXPECT_EQ(errors, 3);
  EXPECT_EQ(message_of([](Ranks& ranks, Communicator& group, Device& device) {
              const ExchangeItem nothing{.received = {nullptr, DType::U8, {0}}};
              const std::vector<ExchangeItem> items(ranks.place().rank == 1 ? 2 : 1, nothing);
              group.exchange(device.queue(), items, "reduce head");
            }),
            "[reduce head] rank 0 has 1 items, rank 1 2 items, expected the same");
  EXPECT_EQ(message_of([](Ranks& ranks, Communicator& group, Device& device) {
              check_all_gather(group, device, fmt::format("gather {}", ranks.place().rank / 2));
            }),
            "[gather 0] rank 0 is in 'gather 0', rank 2 in 'gather 1', expected the same");
  EXPECT_EQ(message_of([](Ranks& ranks, Communicator& group, Device& device) {
              ranks.place().rank == 1 ? check_all_gather(group, device, "x")
                                      : check_exchange(group, device, 0, "x");
            }),
            "[x] rank 0 exchanges, rank 1 gathers, expected the same");
}

TEST(ThreadRanks, WrongArguments) {
  EXPECT_THAT(error_of([] { run_thread_ranks(3, 2, [](Ranks&) {}); }), HasSubstr("3 ranks with 2 per node"));
  run_thread_ranks(1, 1, [](Ranks& ranks) {
    const auto device = make_cpu_device(1);
    const std::vector<int> none, outside = {0, 1}, twice = {0, 0}, alone = {0};
    EXPECT_THAT(error_of([&] { ranks.make_communicator(*device, "a", none); }), HasSubstr("no members"));
    EXPECT_THAT(error_of([&] { ranks.make_communicator(*device, "a", outside); }), HasSubstr("rank 1"));
    EXPECT_THAT(error_of([&] { ranks.make_communicator(*device, "a", twice); }), HasSubstr("twice"));
    const auto group = ranks.make_communicator(*device, "a", alone);
    EXPECT_THAT(error_of([&] { ranks.make_communicator(*device, "a", alone); }), HasSubstr("already"));
    std::vector<uint8_t> part(4), whole(8);
    EXPECT_THAT(error_of([&] {
                  group->all_gather(device->queue(),
                                    std::vector<GatherItem>{{test::view(whole), test::view(part)}}, "g");
                }),
                AllOf(HasSubstr("[g] the whole tensor has 8 bytes"), HasSubstr("1 equal parts")));
  });
  EXPECT_EQ(error_of([] {
              run_thread_ranks(2, 2, [](Ranks& ranks) {
                const auto device = make_cpu_device(1);
                const std::vector<int> both = {0, 1}, one = {1};
                ranks.make_communicator(*device, "reduce", ranks.place().rank == 0 ? both : one);
              });
            }),
            "[ranks] group 'reduce' has ranks 0 and 1 for rank 0, rank 1 for rank 1, expected the same");
}

}  // namespace
}  // namespace octet
