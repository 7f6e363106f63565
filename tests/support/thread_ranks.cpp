#include "support/thread_ranks.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "dist/collective_checks.h"

namespace octet {
namespace {

// One rank's side of a collective: all that the other ranks need of it. `what` and the sizes must be equal.
struct Call {
  bool is_exchange = false;
  std::string what;
  std::vector<int64_t> bytes;      // of a part, per item
  std::vector<const void*> parts;  // per item: the rank's own part, or the first of the parts it sends
  std::vector<int64_t> strides;
};
struct Brought {
  std::string text;  // of a host call
  std::shared_ptr<const Call> call;
};

// What the threads share: the places where they meet, and what became of each.
class Meetings {
 public:
  explicit Meetings(int ranks)
      : ended_(static_cast<size_t>(ranks), false), thrown_(static_cast<size_t>(ranks)) {}

  // Returns what all `members` brought to `tag`, in their order, when all of them have come. RankError, which begins
  // with [what], if one of them cannot come any more, or has not come within `limit`.
  std::vector<Brought> meet(const std::string& tag, std::span<const int> members, int rank, Brought mine,
                            std::chrono::milliseconds limit, std::string_view what) {
    std::unique_lock lock(mutex_);
    const std::shared_ptr<Meeting> meeting = enter(tag, members, rank, std::move(mine));
    const auto deadline = std::chrono::steady_clock::now() + limit;
    try {
      await(lock, what, *meeting, deadline, limit);
    } catch (...) {
      // Nobody may read what this rank brought after it has left.
      meeting->came[index_in(members, rank)] = false;
      throw;
    }
    return meeting->brought;
  }

  // For members that are known to come, because nothing between an earlier meeting and this one can fail. A failure
  // elsewhere does not end the wait: others may still be reading this rank's memory.
  void meet_after(const std::string& tag, std::span<const int> members, int rank) {
    std::unique_lock lock(mutex_);
    const std::shared_ptr<Meeting> meeting = enter(tag, members, rank, {});
    changed_.wait(lock, [&] { return meeting->complete; });
  }

  // The body of `rank` has ended; `thrown` is null if it did not fail.
  void end(int rank, std::exception_ptr thrown, const std::string& message) {
    const std::lock_guard lock(mutex_);
    ended_[static_cast<size_t>(rank)] = true;
    thrown_[static_cast<size_t>(rank)] = thrown;
    if (thrown) note_failure(rank, message);
    changed_.notify_all();
  }
  void report(int rank, const std::string& message) {
    const std::lock_guard lock(mutex_);
    note_failure(rank, message);
  }
  // What the first rank that failed has thrown, null if all went well. Other ranks fail because of it.
  std::exception_ptr first_failure() {
    const std::lock_guard lock(mutex_);
    return failure_ ? thrown_[static_cast<size_t>(failure_->rank)] : nullptr;
  }

 private:
  struct Meeting {
    std::vector<int> members;
    std::vector<Brought> brought;
    std::vector<bool> came;
    bool complete = false;
  };
  struct Failure {
    int rank = 0;
    std::string message;
  };
  using Key = std::pair<std::string, std::vector<int>>;

  void await(std::unique_lock<std::mutex>& lock, std::string_view what, const Meeting& meeting,
             std::chrono::steady_clock::time_point deadline, std::chrono::milliseconds limit) {
    while (!meeting.complete) {
      require_alive(what, meeting);
      if (std::chrono::steady_clock::now() >= deadline) {
        throw RankError(fmt::format("[{}] {} did not come within {:.1f} s", what,
                                    list_of_ranks(missing(meeting)),
                                    static_cast<double>(limit.count()) / 1000));
      }
      changed_.wait_until(lock, deadline);
    }
  }

  static size_t index_in(std::span<const int> members, int rank) {
    return static_cast<size_t>(std::find(members.begin(), members.end(), rank) - members.begin());
  }

  std::shared_ptr<Meeting> enter(const std::string& tag, std::span<const int> members, int rank,
                                 Brought mine) {
    const Key key{tag, {members.begin(), members.end()}};
    std::shared_ptr<Meeting>& open = open_[key];
    if (!open) {
      open = std::make_shared<Meeting>();
      open->members = key.second;
      open->brought.resize(members.size());
      open->came.resize(members.size(), false);
    }
    const std::shared_ptr<Meeting> meeting = open;
    const size_t index = index_in(members, rank);
    meeting->brought[index] = std::move(mine);
    meeting->came[index] = true;
    if (missing(*meeting).empty()) {
      meeting->complete = true;
      open_.erase(key);  // those who come to the same tag from now on mean their next call
      changed_.notify_all();
    }
    return meeting;
  }

  static std::vector<int> missing(const Meeting& meeting) {
    std::vector<int> ranks;
    for (size_t i = 0; i < meeting.members.size(); ++i)
      if (!meeting.came[i]) ranks.push_back(meeting.members[i]);
    return ranks;
  }

  void require_alive(std::string_view what, const Meeting& meeting) const {
    if (failure_) {
      throw RankError(fmt::format("[{}] rank {} failed: {}", what, failure_->rank, failure_->message));
    }
    for (const int rank : missing(meeting))
      if (ended_[static_cast<size_t>(rank)])
        throw RankError(fmt::format("[{}] rank {} has ended without coming", what, rank));
  }

  void note_failure(int rank, const std::string& message) {
    if (!failure_) failure_ = Failure{rank, message};
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, std::shared_ptr<Meeting>> open_;
  std::vector<bool> ended_;
  std::optional<Failure> failure_;
  std::vector<std::exception_ptr> thrown_;
};

class ThreadHost final : public HostChannel {
 public:
  ThreadHost(Meetings& meetings, int rank, int ranks) : meetings_(meetings), rank_(rank) {
    for (int r = 0; r < ranks; ++r) all_.push_back(r);
  }
  using HostChannel::all_gather;
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(all_.size()); }

  std::vector<std::string> all_gather(const std::string& tag, const std::string& mine,
                                      std::chrono::milliseconds limit,
                                      std::span<const int> members) override {
    if (members.empty()) members = all_;
    require(check_members(members, rank_, size(), tag) >= 0, "[{}] rank {} calls, but is no member", tag,
            rank_);
    std::vector<std::string> texts;
    for (Brought& brought : meetings_.meet("host " + tag, members, rank_, {mine, nullptr}, limit, tag))
      texts.push_back(std::move(brought.text));
    return texts;
  }

 private:
  Meetings& meetings_;
  int rank_;
  std::vector<int> all_;
};

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(Meetings& meetings, Progress& progress, int lane, std::string name,
                     std::span<const int> members, int index)
      : meetings_(meetings),
        progress_(progress),
        lane_(lane),
        name_(std::move(name)),
        members_(members.begin(), members.end()),
        index_(index) {}

  int rank() const override { return index_; }
  int size() const override { return static_cast<int>(members_.size()); }
  std::string description() const override { return fmt::format("{} threads", size()); }

  void all_gather(Queue&, std::span<const GatherItem> items, std::string_view what) override {
    Call call{false, std::string(what), part_bytes(items, size(), what), {}, {}};
    for (const GatherItem& item : items) call.parts.push_back(item.mine.data);
    run(std::move(call), [&](const std::vector<Brought>& all, size_t i, int from) {
      const int64_t bytes = all[0].call->bytes[i];
      if (from == index_ && is_in_place(items[i], bytes, index_)) return;
      copy(part_at(items[i].whole, bytes, from), all[static_cast<size_t>(from)].call->parts[i], bytes);
    });
  }

  void exchange(Queue&, std::span<const ExchangeItem> items, std::string_view what) override {
    Call call{true, std::string(what), part_bytes(items, size(), what), {}, {}};
    for (const ExchangeItem& item : items) {
      call.parts.push_back(item.sent);
      call.strides.push_back(item.stride);
    }
    run(std::move(call), [&](const std::vector<Brought>& all, size_t i, int from) {
      const Call& theirs = *all[static_cast<size_t>(from)].call;
      copy(part_at(items[i].received, theirs.bytes[i], from),
           static_cast<const std::byte*>(theirs.parts[i]) + theirs.strides[i] * index_, theirs.bytes[i]);
    });
  }

 private:
  static void copy(void* to, const void* from, int64_t bytes) {
    if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
  }

  // Calls take(all calls, item, rank of the group) for every part that this rank receives.
  template <class Take>
  void run(Call call, const Take& take) {
    const size_t items = call.bytes.size();
    const std::string what = call.what;
    progress_.queued(lane_, what);
    const auto all =
        meetings_.meet("collective " + name_, members_, members_[static_cast<size_t>(index_)],
                       {{}, std::make_shared<const Call>(std::move(call))}, HostChannel::kLimit, what);
    for (size_t r = 1; r < all.size(); ++r)
      require_equal(*all[0].call, *all[r].call, members_[0], members_[r]);
    for (size_t i = 0; i < items; ++i)
      for (int from = 0; from < size(); ++from) take(all, i, from);
    meetings_.meet_after("after " + name_, members_, members_[static_cast<size_t>(index_)]);
    progress_.finished(lane_);
  }

  // Every member compares the same calls, so that all of them fail or none.
  static void require_equal(const Call& first, const Call& other, int first_rank, int other_rank) {
    const auto check = [&](bool equal, const std::string& here, const std::string& there) {
      if (equal) return;
      throw RankError(fmt::format("[{}] rank {} {}, rank {} {}, expected the same", first.what, first_rank,
                                  here, other_rank, there));
    };
    check(first.is_exchange == other.is_exchange, first.is_exchange ? "exchanges" : "gathers",
          other.is_exchange ? "exchanges" : "gathers");
    check(first.what == other.what, "is in '" + first.what + "'", "in '" + other.what + "'");
    check(first.bytes.size() == other.bytes.size(), fmt::format("has {} items", first.bytes.size()),
          fmt::format("{} items", other.bytes.size()));
    for (size_t i = 0; i < first.bytes.size(); ++i)
      check(first.bytes[i] == other.bytes[i],
            fmt::format("has {} bytes per part in item {}", first.bytes[i], i),
            fmt::format("{} bytes", other.bytes[i]));
  }

  Meetings& meetings_;
  Progress& progress_;
  int lane_;
  std::string name_;
  std::vector<int> members_;
  int index_;  // of this rank in members_
};

class ThreadRanks final : public Ranks {
 public:
  ThreadRanks(Meetings& meetings, RankPlace place)
      : meetings_(meetings), place_(place), host_(meetings, place.rank, place.ranks) {}

  const RankPlace& place() const override { return place_; }
  HostChannel& host() override { return host_; }
  Progress& progress() override { return progress_; }
  std::string description() const override {
    return fmt::format("{} rank{} as threads of one process", place_.ranks, place_.ranks == 1 ? "" : "s");
  }

  std::unique_ptr<Communicator> make_communicator(Device& device, const std::string& name,
                                                  std::span<const int> members) override {
    require(!device.capabilities().separate_memory,
            "[ranks] ranks that are threads copy host memory, but {} has its own memory", device.name());
    const int index = check_members(members, place_.rank, place_.ranks, name);
    require(names_.insert(name).second, "[ranks] there is a group '{}' already", name);
    const auto lists = host_.all_gather("make group " + name, list_of_ranks(members));
    for (size_t r = 1; r < lists.size(); ++r) {
      if (lists[r] == lists[0]) continue;
      throw RankError(fmt::format("[ranks] group '{}' has {} for rank 0, {} for rank {}, expected the same",
                                  name, lists[0], lists[r], r));
    }
    const int lane = lanes_++;
    if (index < 0) return nullptr;
    return std::make_unique<ThreadCommunicator>(meetings_, progress_, lane, name, members, index);
  }

  void report_failure(const std::string& reason) override {
    if (place_.ranks == 1) return;
    meetings_.report(place_.rank, reason);
    throw RankError(reason);
  }

 private:
  Meetings& meetings_;
  RankPlace place_;
  ThreadHost host_;
  Progress progress_;
  std::set<std::string> names_;
  int lanes_ = 0;
};

}  // namespace

void run_thread_ranks(int ranks, int local_ranks, const std::function<void(Ranks&)>& body) {
  require(ranks >= 1 && local_ranks >= 1 && ranks % local_ranks == 0,
          "[ranks] {} ranks with {} per node, expected a multiple", ranks, local_ranks);
  Meetings meetings(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadRanks mine(
          meetings,
          {.rank = rank, .ranks = ranks, .local_rank = rank % local_ranks, .local_ranks = local_ranks});
      try {
        body(mine);
        meetings.end(rank, nullptr, "");
      } catch (const std::exception& error) {
        meetings.end(rank, std::current_exception(), error.what());
      } catch (...) {
        meetings.end(rank, std::current_exception(), "an unknown exception");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (const auto failure = meetings.first_failure()) std::rethrow_exception(failure);
}

}  // namespace octet
