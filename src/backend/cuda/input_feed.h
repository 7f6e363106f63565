#pragma once

#include <cstddef>
#include <span>

#include "backend/cuda/cuda_check.h"
#include "backend/cuda/profiler.h"
#include "ops/device.h"

namespace octet {

// Sends the inputs of micro-batches ahead. While the device still works on one micro-batch, the next is copied on a
// separate stream into a separate buffer, and the host waits for neither. Only the short copy from that buffer to the
// final place is queued after the earlier work.
class InputFeed {
 public:
  // Allocates memory for micro-batches of this size, so that send() does not.
  void reserve(size_t bytes);
  // Work queued on `stream` afterwards sees the inputs. The sources may be changed when this returns.
  void send(std::span<const InputCopy> inputs, cudaStream_t stream);

  Profiler& profiler() { return profiler_; }

 private:
  struct Slot {
    PinnedMemory host;
    DeviceMemory device;
    size_t bytes = 0;
    CudaEvent arrived;  // on the device: the host's buffer is free
    CudaEvent taken;    // from there: the device's buffer is free
  };
  static void grow(Slot& slot, size_t bytes);

  CudaStream stream_;
  Profiler profiler_{stream_.get()};
  Slot slots_[2];
  size_t next_ = 0;
};

}  // namespace octet
