#pragma once

#include <cstddef>

#include "backend/cuda/cuda_check.h"

namespace octet {

// Large copies between the device and pageable host memory. CUDA's own copy uses one thread, which also handles every
// page fault of fresh memory. Here pieces go through two pinned buffers, and all cores copy them.
class StagedCopy {
 public:
  static constexpr size_t kLarge = size_t{4} << 20;  // below this, CUDA's own copy is as fast

  // Both return when the copy is complete. Work queued on `stream` before runs first.
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
