#pragma once

#include <cstddef>
#include <span>

#include "backend/cuda/cuda_check.h"
#include "ops/device.h"

namespace octet {

// The inputs of micro-batches, sent ahead: while the device still works on one, the next travels on a stream of its own
// into a buffer of its own, and the host waits for neither. Only the short copy from there to where the inputs belong is
// queued behind the work before it.
class InputFeed {
 public:
  // Takes memory for micro-batches of so many bytes, so that no send() does.
  void reserve(size_t bytes);
  // What is queued on `stream` afterwards sees the inputs. The sources may be changed when this returns.
  void send(std::span<const InputCopy> inputs, cudaStream_t stream);

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
  Slot slots_[2];
  size_t next_ = 0;
};

}  // namespace octet
