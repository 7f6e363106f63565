#pragma once

#include <cstddef>

#include "backend/cuda/cuda_check.h"

namespace octet {

// Large copies between the device and pageable host memory. CUDA's own copy runs through one thread, which also takes
// every page fault of fresh memory; here pieces go through two pinned buffers, and all cores move them on.
class StagedCopy {
 public:
  static constexpr size_t kLarge = size_t{4} << 20;  // below, CUDA's own copy is as good

  // Both return when the bytes are where they belong. What was queued on `stream` before comes first.
  void to_host(void* to, const void* from, size_t bytes, cudaStream_t stream);
  void to_device(void* to, const void* from, size_t bytes, cudaStream_t stream);

 private:
  struct Stage {
    PinnedMemory memory;
    CudaEvent done;  // of the last copy that used it
  };
  void prepare();

  Stage stages_[2];
};

}  // namespace octet
