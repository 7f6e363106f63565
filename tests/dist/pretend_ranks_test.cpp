#include "dist/pretend_ranks.h"

#include <gmock/gmock.h>

#include "backend/cpu/cpu_device.h"
#include "dist/collective_support.h"
#include "support/error_of.h"

namespace octet {
namespace {

using testing::HasSubstr;

// Notes what the queue would be paced with.
class PacedDevice final : public CpuDevice {
 public:
  PacedDevice() : CpuDevice(1) {}
  void delay(Queue&, double microseconds) override { delays.push_back(microseconds); }
  std::vector<double> delays;
};

constexpr int64_t kPart = (int64_t{4} << 20) + 1000;  // two pieces
constexpr int kRanks = 3;

TEST(PretendedRanks, GatherFillsEveryPartAtTheGivenSpeed) {
  PacedDevice device;
  const auto ranks = make_pretended_ranks(kRanks, kRanks, 2.0);
  const auto group = ranks->make_communicator(device, "all", test::ranks_up_to(kRanks));
  for (const bool in_place : {true, false}) {
    device.delays.clear();
    std::vector<uint8_t> whole(static_cast<size_t>(kRanks * kPart)), part(static_cast<size_t>(kPart));
    Tensor mine = test::view(part);
    if (in_place) mine.data = whole.data();
    for (int64_t k = 0; k < kPart; ++k) static_cast<uint8_t*>(mine.data)[k] = test::byte_of(0, -1, 0, k);
    group->all_gather(device.queue(), std::vector<GatherItem>{{test::view(whole), mine}}, "gather");
    for (int from = 0; from < kRanks; ++from)
      for (int64_t k = 0; k < kPart; ++k)
        ASSERT_EQ(whole[static_cast<size_t>(from * kPart + k)], test::byte_of(0, -1, 0, k))
            << from << " " << k;
    // 2 GB/s are 2,000 bytes per microsecond. The own part does not arrive.
    const double piece = double(4 << 20) / 2000, part_time = double(kPart) / 2000;
    EXPECT_THAT(device.delays, testing::ElementsAre(0, piece, part_time, part_time + piece,
                                                    testing::DoubleEq(2 * part_time)));
  }
}

TEST(PretendedRanks, ExchangeReceivesTheOwnPartFromAll) {
  PacedDevice device;
  const auto ranks = make_pretended_ranks(4, 2, 100.0);
  EXPECT_EQ(ranks->place().nodes(), 2);
  const std::vector<int> members = {2, 0}, others = {1, 3};
  EXPECT_EQ(ranks->make_communicator(device, "others", others), nullptr);
  const auto group = ranks->make_communicator(device, "cross", members);
  ASSERT_EQ(group->rank(), 1);
  std::vector<uint8_t> received(6), sent = {1, 2, 3, 99, 4, 5, 6, 99};
  group->exchange(device.queue(), std::vector<ExchangeItem>{{test::view(received), sent.data(), 4}},
                  "reduce");
  EXPECT_THAT(received, testing::ElementsAre(4, 5, 6, 4, 5, 6));
  EXPECT_THAT(device.delays, testing::ElementsAre(0, testing::DoubleEq(3e-5)));
}

TEST(PretendedRanks, HostCallsReturnTheOwnTextFromAll) {
  const auto ranks = make_pretended_ranks(3, 3, 1.0);
  EXPECT_THAT(ranks->host().all_gather("tag", "x"), testing::ElementsAre("x", "x", "x"));
  EXPECT_EQ(ranks->host().all_gather("tag", "x", HostChannel::kLimit, std::vector<int>{0, 2}).size(), 2u);
  EXPECT_THAT(ranks->description(), HasSubstr("pretended"));
}

TEST(PretendedRanks, WrongArguments) {
  EXPECT_THAT(error_of([] { make_pretended_ranks(3, 2, 1.0); }), HasSubstr("expected a multiple"));
  EXPECT_THAT(error_of([] { make_pretended_ranks(2, 2, 0.0); }), HasSubstr("0 GB/s"));
}

}  // namespace
}  // namespace octet
