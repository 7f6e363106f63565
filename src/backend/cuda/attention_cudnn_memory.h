#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/cuda/cuda_ops.h"

namespace octet {

// Memory that cuDNN gets when the workspace of the ops is too small, or when it must be clean. All plans share it.
//
// Before 9.18 cuDNN does not initialise all of the workspace that backward of packed documents reads, such as the rows
// behind the last token, and a NaN there spreads. The content that another plan left, or a step whose numbers were not
// finite, must therefore go before such a plan runs. Clearing takes about a hundredth of the time of a layer, so it is
// done when the content may have changed: by the first backward after a forward, by one of another plan, and by the first
// of a recording, because nobody knows what will have run before a replay. A recording then has its own clear in it.
//
// Recordings refer to the memory by address, so it is kept when more is needed. The memory plan does not know of it.
class CudnnMemory {
 public:
  explicit CudnnMemory(CudaOps& ops) : ops_(ops) {}

  // At least `bytes`, or `capacity` where that is more and fits: later plans then need nothing more. Throws Error where
  // even `bytes` do not fit. Does nothing when there is enough.
  void reserve(int64_t bytes, int64_t capacity);
  // For one run of `plan`, with any content. Reserved before.
  std::byte* take(const void* plan, int64_t bytes);
  // The same with no number in it that is not finite.
  std::byte* take_clean(const void* plan, int64_t bytes);
  // A forward is queued: what backward finds may stem from another step.
  void begin_forward();

 private:
  CudaOps& ops_;
  std::vector<DeviceMemory> memory_;  // the last is in use
  int64_t bytes_ = 0;
  const void* user_ = nullptr;  // the plan that ran last
  uint64_t recording_ = 0;      // in which it ran; 0: outside of any
  bool stale_ = true;           // a forward was queued since
};

}  // namespace octet
