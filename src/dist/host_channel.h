#pragma once

#include <chrono>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"

namespace octet {

// Another rank is missing, has failed, or does not agree with this one.
class RankError : public StoppedError {
 public:
  using StoppedError::StoppedError;
};

// Small messages between the processes of all ranks, apart from the devices' queues. Thread-safe.
class HostChannel {
 public:
  virtual ~HostChannel() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // The text of every rank of `members`, in the order of `members`. A text may hold any bytes. All of them call it with
  // the same tag. Calls with different tags may run in several threads at once. A tag may be used again after its call
  // returned. RankError, naming the missing ranks, if not all have called within `limit`. Empty `members`: all ranks.
  virtual std::vector<std::string> all_gather(const std::string& tag, const std::string& mine,
                                              std::chrono::milliseconds limit,
                                              std::span<const int> members) = 0;

  static constexpr std::chrono::milliseconds kLimit{300'000};
  std::vector<std::string> all_gather(const std::string& tag, const std::string& mine) {
    return all_gather(tag, mine, kLimit, {});
  }
  // The text of rank 0; what the others pass is not looked at.
  std::string from_first(const std::string& tag, const std::string& text) {
    return all_gather(tag, rank() == 0 ? text : std::string()).front();
  }
  void barrier(const std::string& tag) { all_gather(tag, {}); }
};

}  // namespace octet
