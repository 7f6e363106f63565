#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "checkpoint/save_layout.h"
#include "dist/host_channel.h"
#include "ops/device.h"

namespace octet {

// Functions that saving needs if ranks share a model. All functions are called by all ranks in the same order.
struct RankSaving {
  HostChannel* host = nullptr;  // also used by the thread that writes
  Sharding sharding;
  // `parts` = the equal parts of all ranks, in the order of the ranks, queued with the computation. `part` is this
  // rank's part of `parts`, in place.
  std::function<void(Tensor parts, Tensor part, std::string_view what)> gather;
  std::function<void()> merge_slots;  // the FP8 scales of all ranks become equal
};

// Brings tensors whose rows are spread over ranks to the rank that writes them, through a buffer on the device. The
// buffer is allocated with the first save and kept. It is not part of the plan of the model's memory.
class PartGatherer {
 public:
  static constexpr int64_t kMostBytes = int64_t{64} << 20;
  // The buffer is as large as the largest tensor needs, and at most this, but at least a row of every rank.
  explicit PartGatherer(int64_t most_bytes = kMostBytes) : most_bytes_(most_bytes) {}

  int64_t buffer_bytes(const SaveLayout& layout) const;
  void reserve(Device& device, const SaveLayout& layout);
  // Collective. `to` gets all rows, in their order in the whole tensor; null: another rank writes it.
  void gather(const SavedTensor& tensor, std::byte* to, const RankSaving& ranks);

 private:
  int64_t piece_rows(const SavedTensor& tensor, const Sharding& sharding) const;

  int64_t most_bytes_;
  Device* device_ = nullptr;
  std::shared_ptr<void> memory_;
  int64_t bytes_ = 0;
};

// Does `work` on every rank. If it fails on one, all ranks throw an Error that names it. `tag` as in HostChannel. With a
// null `host`, it is only called.
void agree(HostChannel* host, const std::string& tag, const std::function<void()>& work);

// Verifies the checksums of a checkpoint's files: each rank of some of them. The same result on all ranks: what is wrong,
// or empty.
std::string check_files_together(Env& env, const Checkpoint& checkpoint, HostChannel& host);

}  // namespace octet
