#include "dist/collective_checks.h"
#include "dist/ranks.h"

namespace octet {
namespace {

class SingleHost final : public HostChannel {
 public:
  using HostChannel::all_gather;
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::vector<std::string> all_gather(const std::string& tag, const std::string& mine,
                                      std::chrono::milliseconds, std::span<const int> members) override {
    if (!members.empty()) check_members(members, 0, 1, tag);
    return {mine};
  }
};

class SingleCommunicator final : public Communicator {
 public:
  explicit SingleCommunicator(Device& device) : device_(device) {}
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string description() const override { return "1 rank"; }

  void all_gather(Queue& queue, std::span<const GatherItem> items, std::string_view what) override {
    for (const GatherItem& item : items) {
      const int64_t bytes = part_bytes(item, 1, what);
      if (!is_in_place(item, bytes, 0)) device_.copy(queue, item.whole, item.mine);
    }
  }
  void exchange(Queue& queue, std::span<const ExchangeItem> items, std::string_view what) override {
    for (const ExchangeItem& item : items)
      device_.copy(queue, item.received, bytes_view(item.sent, part_bytes(item, 1, what)));
  }

 private:
  Device& device_;
};

class SingleRank final : public Ranks {
 public:
  const RankPlace& place() const override { return place_; }
  HostChannel& host() override { return host_; }
  Progress& progress() override { return progress_; }
  std::string description() const override { return "1 rank"; }
  std::unique_ptr<Communicator> make_communicator(Device& device, const std::string& name,
                                                  std::span<const int> members) override {
    check_members(members, 0, 1, name);
    return std::make_unique<SingleCommunicator>(device);
  }

 private:
  RankPlace place_;
  SingleHost host_;
  Progress progress_;
};

}  // namespace

std::unique_ptr<Ranks> make_single_rank() {
  return std::make_unique<SingleRank>();
}

}  // namespace octet
