#include "dist/pretend_ranks.h"

#include <algorithm>

#include "dist/collective_checks.h"

namespace octet {
namespace {

constexpr int64_t kPiece = int64_t{4}
                           << 20;  // bytes that are copied at once; real collectives do not arrive at once

// Every rank sends what this one sends.
class PretendedHost final : public HostChannel {
 public:
  explicit PretendedHost(int ranks) : ranks_(ranks) {}
  using HostChannel::all_gather;
  int rank() const override { return 0; }
  int size() const override { return ranks_; }
  std::vector<std::string> all_gather(const std::string& tag, const std::string& mine,
                                      std::chrono::milliseconds, std::span<const int> members) override {
    if (members.empty()) return std::vector<std::string>(static_cast<size_t>(ranks_), mine);
    require(check_members(members, 0, ranks_, tag) >= 0, "[{}] rank 0 calls, but is no member", tag);
    return std::vector<std::string>(members.size(), mine);
  }

 private:
  int ranks_;
};

class PretendedCommunicator final : public Communicator {
 public:
  PretendedCommunicator(Device& device, int size, int index, double gigabytes_per_second)
      : device_(device), size_(size), index_(index), bytes_per_microsecond_(gigabytes_per_second * 1e3) {}

  int rank() const override { return index_; }
  int size() const override { return size_; }
  std::string description() const override { return fmt::format("{} pretended ranks", size_); }

  void all_gather(Queue& queue, std::span<const GatherItem> items, std::string_view what) override {
    const auto parts = part_bytes(items, size_, what);
    device_.delay(queue, 0);
    int64_t arrived = 0;
    for (size_t i = 0; i < items.size(); ++i) {
      for (int from = 0; from < size_; ++from) {
        if (from == index_ && is_in_place(items[i], parts[i], index_)) continue;
        receive(queue, part_at(items[i].whole, parts[i], from), items[i].mine.data, parts[i], from, arrived);
      }
    }
  }

  void exchange(Queue& queue, std::span<const ExchangeItem> items, std::string_view what) override {
    const auto parts = part_bytes(items, size_, what);
    device_.delay(queue, 0);
    int64_t arrived = 0;
    for (size_t i = 0; i < items.size(); ++i)
      for (int from = 0; from < size_; ++from)
        receive(queue, part_at(items[i].received, parts[i], from), sent_part(items[i], index_), parts[i],
                from, arrived);
  }

 private:
  // `arrived` counts the bytes of the collective that other ranks would have sent; each piece is there when its time has
  // come.
  void receive(Queue& queue, std::byte* to, const void* source, int64_t bytes, int from, int64_t& arrived) {
    const auto* begin = static_cast<const std::byte*>(source);
    for (int64_t done = 0; done < bytes; done += kPiece) {
      const int64_t piece = std::min(kPiece, bytes - done);
      device_.copy(queue, bytes_view(to + done, piece), bytes_view(begin + done, piece));
      if (from == index_) continue;
      arrived += piece;
      device_.delay(queue, static_cast<double>(arrived) / bytes_per_microsecond_);
    }
  }

  Device& device_;
  int size_, index_;
  double bytes_per_microsecond_;
};

class PretendedRanks final : public Ranks {
 public:
  PretendedRanks(RankPlace place, double gigabytes_per_second)
      : place_(place), host_(place.ranks), gigabytes_per_second_(gigabytes_per_second) {}

  const RankPlace& place() const override { return place_; }
  HostChannel& host() override { return host_; }
  Progress& progress() override { return progress_; }
  std::string description() const override {
    return fmt::format("pretended: rank 0 of {} on {} node{}, {:g} GB/s", place_.ranks, place_.nodes(),
                       place_.nodes() == 1 ? "" : "s", gigabytes_per_second_);
  }
  std::unique_ptr<Communicator> make_communicator(Device& device, const std::string& name,
                                                  std::span<const int> members) override {
    const int index = check_members(members, 0, place_.ranks, name);
    if (index < 0) return nullptr;
    return std::make_unique<PretendedCommunicator>(device, static_cast<int>(members.size()), index,
                                                   gigabytes_per_second_);
  }

 private:
  RankPlace place_;
  PretendedHost host_;
  Progress progress_;
  double gigabytes_per_second_;
};

}  // namespace

std::unique_ptr<Ranks> make_pretended_ranks(int ranks, int local_ranks, double gigabytes_per_second) {
  require(ranks >= 1 && local_ranks >= 1 && ranks % local_ranks == 0,
          "[ranks] {} pretended ranks with {} per node, expected a multiple", ranks, local_ranks);
  require(gigabytes_per_second > 0, "[ranks] the pretended bandwidth is {} GB/s, expected more than 0",
          gigabytes_per_second);
  return std::make_unique<PretendedRanks>(RankPlace{.ranks = ranks, .local_ranks = local_ranks},
                                          gigabytes_per_second);
}

}  // namespace octet
