#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/cuda/cuda_ops.h"

namespace octet {

// Memory that cuDNN gets when the workspace of the ops is too small, or when it must be clean. All plans share it.
//
// Before 9.18 cuDNN does not initialise all of the workspace that backward of packed documents reads, such as the
// rows after the last token, and a NaN there spreads. So content left by another plan, or by a step with non-finite
// numbers, must be cleared before such a plan runs. Clearing takes about a hundredth of a layer's time. It is done
// only when the content may have changed: by the first backward after a forward, by the first backward of another
// plan, and by the first backward of a recording, because it is unknown what ran before a replay. So a recording
// contains its own clear.
//
// Recordings refer to the memory by address, so old memory is kept when more is needed. The memory plan does not
// include it.
class CudnnMemory {
 public:
  explicit CudnnMemory(CudaOps& ops) : ops_(ops) {}

  // Reserves at least `bytes`, or `capacity` if that is more and fits, so that later plans need nothing more. Throws
  // Error if even `bytes` do not fit. Does nothing if there is enough.
  void reserve(int64_t bytes, int64_t capacity);
  // For one run of `plan`, with any content. Must be reserved before.
  std::byte* take(const void* plan, int64_t bytes);
  // The same, with only finite numbers in it.
  std::byte* take_clean(const void* plan, int64_t bytes);
  // A forward is queued: the content that backward finds may come from another step.
  void begin_forward();

 private:
  CudaOps& ops_;
  std::vector<DeviceMemory> memory_;  // the last is in use
  int64_t bytes_ = 0;
  const void* user_ = nullptr;  // the plan that ran last
  uint64_t recording_ = 0;      // in which it ran; 0: none
  bool stale_ = true;           // a forward was queued since
};

}  // namespace octet
