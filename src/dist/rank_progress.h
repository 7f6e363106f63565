#pragma once

#include <array>
#include <mutex>
#include <string>
#include <vector>

#include "dist/ranks.h"
#include "dist/rendezvous_messages.h"

namespace octet {

// Remembers what this rank does; the heartbeats carry it to rank 0. Lanes from kMostLanes on are not followed.
class ProgressBoard final : public Progress {
 public:
  static constexpr int kMostLanes = 64;

  void begin_step(int64_t step) override;
  void begin_phase(std::string_view phase) override;
  void queued(int lane, std::string_view what) override;
  void finished(int lane) override;
  void failed(int lane, std::string_view reason) override;

  HeartbeatMessage state() const;
  // Why a collective of this rank can never finish; empty: none.
  std::string failure() const;

 private:
  // The names of the collectives that may not have finished yet. Older ones than these have lost their name.
  static constexpr size_t kNames = 64;
  struct Lane {
    uint64_t queued = 0, finished = 0;
    std::array<std::string, kNames> names;  // by number modulo kNames
  };
  Lane* lane_at(int lane);

  mutable std::mutex mutex_;
  int64_t step_ = -1;
  std::string phase_, failure_;
  std::vector<Lane> lanes_;
};

// A rank's activity, in words: "step 12, saving; gather: 42 queued, last 'gather layers.3', 41 finished".
// `lane_names` may be shorter than the lanes.
std::string describe_progress(const HeartbeatMessage& state, const std::vector<std::string>& lane_names);

}  // namespace octet
