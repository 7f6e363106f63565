#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "dist/launch_environment.h"
#include "dist/ranks.h"

namespace octet {

struct ProcessRanksOptions {
  // All ranks must have the same of these.
  std::string config;   // the configuration, one setting per line, at most 32 KiB
  std::string version;  // of the program
  // No two ranks of a host may have the same. Empty: no GPU, not checked.
  std::string gpu;   // UUID
  std::string host;  // empty: the name of this machine

  std::chrono::milliseconds rendezvous{300'000};  // for all ranks to come
  std::chrono::milliseconds handshake{10'000};    // for a client of rank 0 to say who it is
  std::chrono::milliseconds heartbeat{500};
  std::chrono::milliseconds silence{30'000};  // a rank without heartbeats for so long has stopped
  std::chrono::milliseconds stall{
      100'000};  // no collective finished for so long, though one is queued: a hang
  std::chrono::milliseconds finish{300'000};  // for the other ranks to end after this one
};

// Meets the other processes of the run. From then on a thread of this process watches them. If one of them dies, stops
// or hangs, every process prints which one and why, and ends with the code of Ranks::set_failure_code. The result is
// destroyed when the work is done; that waits for the other ranks. RankError if they do not come or do not fit
// together.
std::unique_ptr<Ranks> make_process_ranks(const LaunchEnvironment& launch,
                                          const ProcessRanksOptions& options);

}  // namespace octet
