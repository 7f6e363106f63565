#include <gmock/gmock.h>

#include <condition_variable>
#include <csignal>
#include <mutex>

#include "dist/collective_support.h"
#include "dist/engines.h"
#include "support/rank_processes.h"

// Two NCCL ranks share one GPU. NCCL refuses that on one host, so each of them claims to be a host of its own.

namespace octet::test {
namespace {

using testing::HasSubstr;
constexpr int kRanks = 2;

std::vector<std::string> environment_of(int rank) {
  return {"NCCL_HOSTID=octet-test-" + std::to_string(rank), "NCCL_SOCKET_IFNAME=lo", "NCCL_IB_DISABLE=1"};
}

class NotingProgress final : public Progress {
 public:
  void queued(int, std::string_view) override { count(begun_); }
  void finished(int) override { count(ended_); }
  void failed(int, std::string_view reason) override {
    const std::lock_guard lock(mutex_);
    failure_ = reason;
    changed_.notify_all();
  }
  // False if not all collectives were reported as finished within a minute.
  bool wait_for_all() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60), [&] { return begun_ == ended_; });
  }
  std::string wait_for_failure() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(60), [&] { return !failure_.empty(); });
    return failure_;
  }

 private:
  void count(int& counter) {
    const std::lock_guard lock(mutex_);
    ++counter;
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  int begun_ = 0, ended_ = 0;
  std::string failure_;
};

std::unique_ptr<Communicator> make_group(RankProcess& process, Device& device, Progress& progress,
                                         const std::string& name) {
  return make_nccl_communicator(device,
                                {process.host, progress, 0, name, ranks_up_to(process.ranks), "127.0.0.1"});
}

void expect_right(const std::string& fault) {
  if (!fault.empty()) fail("{}", fault);
}

const bool added_collectives = add_rank_process("nccl collectives", [](RankProcess& process) {
  const auto device = make_cuda_device({.deterministic = true});
  NotingProgress progress;
  const DeviceBytes registered(*device, std::vector<uint8_t>(1 << 20));
  const auto gather = make_group(process, *device, progress, "gather");
  const auto reduce = make_group(process, *device, progress, "reduce");
  require(gather->rank() == process.rank && gather->size() == process.ranks, "wrong place in the group");
  gather->register_memory(registered.data(), 1 << 20);
  for (int round = 0; round < 10; ++round) {
    expect_right(check_all_gather(*gather, *device, "gather"));
    expect_right(check_exchange(*reduce, *device, round % 3, "exchange"));
  }
  // Both at once, each on a queue of its own.
  const auto first = device->make_queue(), second = device->make_queue();
  const int64_t part = int64_t{8} << 20;
  const auto bytes = static_cast<size_t>(process.ranks * part);
  const DeviceBytes whole(*device, std::vector<uint8_t>(bytes, static_cast<uint8_t>(10 + process.rank)));
  const DeviceBytes sent(*device, std::vector<uint8_t>(bytes, static_cast<uint8_t>(20 + process.rank)));
  const DeviceBytes received(*device, std::vector<uint8_t>(bytes));
  device->synchronize();
  const Tensor mine{whole.data() + process.rank * part, DType::U8, {part}};
  gather->all_gather(*first, std::vector<GatherItem>{{whole.tensor(), mine}}, "gather");
  reduce->exchange(*second, std::vector<ExchangeItem>{{received.tensor(), sent.data(), part}}, "exchange");
  require(progress.wait_for_all(), "not all collectives were reported as finished");
  const auto gathered = whole.read(), exchanged = received.read();
  for (int64_t k = 0; k < process.ranks * part; ++k) {
    const auto from = static_cast<uint8_t>(k / part);
    require(gathered[static_cast<size_t>(k)] == 10 + from && exchanged[static_cast<size_t>(k)] == 20 + from,
            "byte {} is wrong", k);
  }
  process.host.barrier("end");
});

// Rank 1 dies. Rank 0 has a collective on the GPU that waits for it.
const bool added_death = add_rank_process("nccl death", [](RankProcess& process) {
  const auto device = make_cuda_device({.deterministic = true});
  NotingProgress progress;
  const DeviceBytes whole(*device, std::vector<uint8_t>(size_t{kRanks} << 20));
  const auto queue = device->make_queue();
  const auto group = make_group(process, *device, progress, "all");
  expect_right(check_all_gather(*group, *device, "gather"));
  if (process.rank == 1) std::raise(SIGKILL);
  const Tensor mine{whole.data(), DType::U8, {1 << 20}};
  try {
    group->all_gather(*queue, std::vector<GatherItem>{{whole.tensor(), mine}}, "gather layers.3");
    require(!progress.wait_for_failure().empty(), "the dead rank was not noticed within a minute");
    group->all_gather(*queue, std::vector<GatherItem>{{whole.tensor(), mine}}, "gather layers.4");
  } catch (const RankError& error) {
    std::puts(error.what());
    return;
  }
  fail("nothing was thrown");
});

class Nccl : public testing::Test {
 protected:
  void SetUp() override {
    const CudaProbe probe = probe_cuda();
    if (!probe.usable) GTEST_SKIP() << "no GPU: " << probe.reason;
    if (!nccl_description().starts_with("NCCL ")) GTEST_SKIP() << nccl_description();
  }
};

TEST_F(Nccl, CollectivesOfTwoProcesses) {
  for (const auto& result : run_rank_processes("nccl collectives", kRanks, environment_of))
    EXPECT_EQ(result.exit_code, 0) << result.err << result.out;
}

TEST_F(Nccl, DeadProcessIsNoticed) {
  const auto results = run_rank_processes("nccl death", kRanks, environment_of);
  EXPECT_EQ(results[1].exit_code, 128 + SIGKILL);
  EXPECT_EQ(results[0].exit_code, 0) << results[0].err << results[0].out;
  EXPECT_THAT(results[0].out, HasSubstr("[gather layers.3] NCCL says: "));
}

}  // namespace
}  // namespace octet::test
