#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "dist/communicator.h"
#include "dist/host_channel.h"

namespace octet {

// The place of a process among all processes of a run. Ranks of a node are consecutive, and all nodes have equally many.
struct RankPlace {
  int rank = 0, ranks = 1;
  int local_rank = 0, local_ranks = 1;  // on this node
  int node() const { return rank / local_ranks; }
  int nodes() const { return ranks / local_ranks; }
  bool is_first() const { return rank == 0; }  // writes the console, the metrics and the run's files
  bool operator==(const RankPlace&) const = default;
};

// The activity of this rank, for messages about ranks that hang or died. Thread-safe; made to be called often.
class Progress {
 public:
  virtual ~Progress() = default;
  virtual void begin_step(int64_t step) { static_cast<void>(step); }
  // A phase that may take long without any collective, such as "preparing data" or "saving"; empty: none.
  virtual void begin_phase(std::string_view phase) { static_cast<void>(phase); }
  // A collective was queued, and later has finished. `lane` counts communicators, in the order they were made.
  virtual void queued(int lane, std::string_view what) {
    static_cast<void>(lane);
    static_cast<void>(what);
  }
  virtual void finished(int lane) { static_cast<void>(lane); }
  // The engine has noticed that a queued collective will never finish: `reason` names it. Comes from a thread of the
  // engine, while the rank may be waiting for the collective. The communicator's next call throws the same.
  virtual void failed(int lane, std::string_view reason) {
    static_cast<void>(lane);
    static_cast<void>(reason);
  }
};

// All ranks of a run, seen from one of them. Made once per process (or, in tests, per thread).
class Ranks {
 public:
  virtual ~Ranks() = default;
  virtual const RankPlace& place() const = 0;
  virtual HostChannel& host() = 0;
  virtual Progress& progress() = 0;
  virtual std::string description() const = 0;  // "8 ranks on 2 nodes, NCCL 2.28.3, started by torchrun"

  // A new group of the ranks `members`, in that order, for work on `device`. All ranks of the run call it in the same
  // order; those that are no members get null. `name` must differ from call to call: "gather", "reduce 0".
  virtual std::unique_ptr<Communicator> make_communicator(Device& device, const std::string& name,
                                                          std::span<const int> members) = 0;

  // The exit code of all ranks if one of them fails from now on: kExitRequeue once there is a checkpoint.
  virtual void set_failure_code(int code) { static_cast<void>(code); }
  // A file descriptor that the user reads, if the standard error of this rank goes elsewhere; -1: none.
  virtual void set_console(int file) { static_cast<void>(file); }
  // This rank has failed. Tells the others, which end with the same text; does not return if there are others.
  virtual void report_failure(const std::string& reason) { static_cast<void>(reason); }
};

// One process that is alone: every collective is a copy or does nothing.
std::unique_ptr<Ranks> make_single_rank();

}  // namespace octet
