#pragma once

#include <functional>

#include "checkpoint/snapshot.h"

namespace octet {

struct Publication {
  CheckpointSummary summary;
  bool best = false;
  std::function<void(CheckpointWriter&)> add_files;  // on the first rank: what is not of the snapshot
  std::function<void()> published;                   // on the first rank, when the checkpoint is there
};

// Writes a checkpoint together with the other ranks, which have all taken their snapshot of the same step. The first
// rank makes the folder. Each rank writes its files of tensors and says so. When all are safe, the first rank writes
// the other files and publishes, and tells all. Returns the bytes of all snapshots.
//
// If anything fails on any rank, nothing is published, and all ranks throw an Error that names the rank. A rank that
// fails with anything but an Error or for want of memory throws that itself. RankError if a rank does not answer.
int64_t save_together(Env& env, CheckpointStore& store, const Snapshot& snapshot, HostChannel& host,
                      const Publication& publication);

}  // namespace octet
