#pragma once

#include <cstdint>

namespace octet::device {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// 16 bytes to shared memory, asynchronously; zeros when not `valid`.
__device__ __forceinline__ void copy_async16(void* to, const void* from, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(to)), "l"(from),
               "r"(bytes)
               : "memory");
}
// 4, 8 or 16 bytes. The L2 cache fetches the 256 bytes around them, which neighbours will ask for.
template <int bytes>
__device__ __forceinline__ void copy_async(void* to, const void* from) {
  if constexpr (bytes == 16) {  // bypasses the L1 cache
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;\n" ::"r"(shared_address(to)), "l"(from)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global.L2::256B [%0], [%1], %2;\n" ::"r"(shared_address(to)), "l"(from),
                 "n"(bytes)
                 : "memory");
  }
}
__device__ __forceinline__ void copy_async_commit() {
  asm volatile("cp.async.commit_group;\n" ::: "memory");
}
template <int pending>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(pending) : "memory");
}
// Waits for all copies of this thread, committed or not.
__device__ __forceinline__ void copy_async_wait_all() {
  asm volatile("cp.async.wait_all;\n" ::: "memory");
}

}  // namespace octet::device
