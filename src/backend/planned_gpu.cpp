#include <algorithm>

#include "backend/cuda_workspace.h"
#include "base/error.h"
#include "ops/device.h"

namespace octet {
namespace {

// Answers planning questions. Anything that needs the GPU itself is an error.
class PlannedGpu final : public Device {
 public:
  PlannedGpu(std::string description, int64_t memory, int multiprocessors, Fp8Kernels fp8)
      : description_(std::move(description)), memory_(memory), multiprocessors_(multiprocessors), fp8_(fp8) {}

  std::string name() const override { return "cuda"; }
  std::string description() const override { return description_; }
  Capabilities capabilities() const override {
    Capabilities result = cuda_capabilities();
    result.computes = false;
    return result;
  }

  int64_t memory_bytes() const override { return std::max<int64_t>(memory_ - kCudaMemoryReserve, 0); }
  int64_t workspace_bytes(const WorkspaceNeeds& needs) const override {
    return cuda_workspace_bytes(needs, multiprocessors_);
  }
  // The sizes are those that the CUDA backend asks for (CudaOps::runs_native).
  std::string gemm_fp8_kind(int64_t m, int64_t n, int64_t k, Granularity a, Granularity b, DType, DType,
                            DType) override {
    const bool in_blocks = a != Granularity::Tensor || b != Granularity::Tensor;
    if (k % 16 != 0 || n % 16 != 0 || (in_blocks && m % 8 != 0)) return "emulated";
    const auto is_native = [&](Granularity scales) {
      if (scales == Granularity::Row32) return false;  // no GPU has its kernels yet
      return scales == Granularity::Tensor ? fp8_ != Fp8Kernels::None : fp8_ == Fp8Kernels::TensorAndBlock;
    };
    return is_native(a) && is_native(b) ? "native" : "emulated";
  }

  Queue& queue() override { refuse(); }
  std::unique_ptr<Queue> make_queue(const std::string&) override { refuse(); }
  std::unique_ptr<Event> make_event() override { refuse(); }
  void record(Event&, Queue&) override { refuse(); }
  void wait(Queue&, Event&) override { refuse(); }
  void synchronize(Event&) override { refuse(); }
  void synchronize() override {}
  Ops& ops() override { refuse(); }
  std::unique_ptr<Ops> make_ops(Queue&) override { refuse(); }
  std::shared_ptr<void> allocate(int64_t, Place) override { refuse(); }
  void copy(Queue&, Tensor, Tensor) override { refuse(); }
  void zero(Queue&, Tensor) override { refuse(); }
  void copy_to_device(Tensor, const void*) override { refuse(); }
  void copy_to_host(void*, Tensor) override { refuse(); }

 private:
  [[noreturn]] void refuse() const {
    fail("[device] {} is not in this machine: octet can plan a run for it, but cannot run on it",
         description_);
  }

  std::string description_;
  int64_t memory_;
  int multiprocessors_;
  Fp8Kernels fp8_;
};

}  // namespace

std::unique_ptr<Device> make_planned_gpu(std::string description, int64_t memory, int multiprocessors,
                                         Fp8Kernels fp8) {
  return std::make_unique<PlannedGpu>(std::move(description), memory, multiprocessors, fp8);
}

}  // namespace octet
