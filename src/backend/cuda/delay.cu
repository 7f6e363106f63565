#include "backend/cuda/cuda_device.h"

namespace octet {
namespace {

__device__ uint64_t now_ns() {
  uint64_t time;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
  return time;
}

__global__ void start_clock_kernel(uint64_t* clock) {
  *clock = now_ns();
}

// Sleeps rather than spins, so that it takes nothing from the other warps of its multiprocessor.
__global__ void wait_for_clock_kernel(const uint64_t* clock, uint64_t nanoseconds) {
  const uint64_t end = *clock + nanoseconds;
  while (now_ns() < end) __nanosleep(200);
}

}  // namespace

void CudaDevice::delay(Queue& queue, double microseconds) {
  constexpr const char* op = "delay";
  auto& cuda_queue = static_cast<CudaQueue&>(queue);
  uint64_t* clock = cuda_queue.clock();
  if (microseconds <= 0) {
    start_clock_kernel<<<1, 1, 0, cuda_queue.stream()>>>(clock);
  } else {
    wait_for_clock_kernel<<<1, 1, 0, cuda_queue.stream()>>>(clock,
                                                            static_cast<uint64_t>(microseconds * 1000));
  }
  check_launch(op);
}

}  // namespace octet
