#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "backend/cuda/cuda_check.h"
#include "backend/cuda/nccl_library.h"
#include "dist/ranks.h"

namespace octet {

// Tells Progress when the collectives of one communicator have finished on the GPU, and when NCCL has noticed that they
// never will.
//
// A thread asks for an event per collective. The alternative, a host function in the stream, stops the stream until
// the host has run it: tens of microseconds between every collective and the work that waits for it. And a communicator
// whose peer has died would never reach it, so that NCCL's own verdict needs the thread anyway.
class NcclWatch {
 public:
  NcclWatch(const Nccl& api, NcclHandle handle, int device, Progress& progress, int lane);
  ~NcclWatch();
  NcclWatch(const NcclWatch&) = delete;
  NcclWatch& operator=(const NcclWatch&) = delete;

  // A collective was queued on the stream.
  void add(cudaStream_t stream, std::string_view what);
  // NCCL's message about a collective that failed after it was queued; empty if none has.
  std::string failure();
  void stop();  // no calls of NCCL or CUDA from here on

 private:
  struct Pending {
    std::unique_ptr<CudaEvent> event;
    std::string what;
  };

  void run();
  bool first_has_finished();
  void look_for_failure();

  const Nccl& api_;
  NcclHandle handle_;
  int device_;
  Progress& progress_;
  int lane_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Pending> pending_;
  std::vector<std::unique_ptr<CudaEvent>> spare_;
  std::string failure_;
  bool stopping_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace octet
