#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "backend/cuda/attention.h"
#include "backend/cuda/cuda_check.h"
#include "backend/cuda/cuda_queue.h"
#include "backend/cuda/gemm_plan.h"
#include "backend/cuda_workspace.h"
#include "ops/ops.h"

namespace octet {

// Memory for the duration of one op, cut from the workspace. The ops of a queue run one after another, so the next op
// may use the same memory again.
class Scratch {
 public:
  Scratch(std::byte* data, int64_t bytes, const char* op) : data_(data), left_(bytes), op_(op) {}

  // 256-byte aligned; throws when the workspace is too small.
  template <class T>
  T* take(int64_t count) {
    const int64_t bytes = round_up(count * static_cast<int64_t>(sizeof(T)), 256);
    require(bytes <= left_, "[cuda] {}: needs {} more bytes of workspace, {} are left (see workspace_bytes)",
            op_, bytes, left_);
    auto* result = reinterpret_cast<T*>(data_);
    data_ += bytes;
    left_ -= bytes;
    return result;
  }
  int64_t left() const { return left_; }

 private:
  std::byte* data_;
  int64_t left_;
  const char* op_;
};

class CudaDevice;

// Every op of ops/ops.h, on one queue; each is defined in the .cu file named after it.
class CudaOps final : public Ops {
 public:
  CudaOps(CudaDevice& device, CudaQueue& queue);
  ~CudaOps() override;

  Device& device() override;
  void set_workspace(Tensor workspace) override;

#include "ops/op_overrides.h"

  // See Device::gemm_fp8_kind.
  std::string gemm_fp8_kind(int64_t m, int64_t n, int64_t k, Granularity a, Granularity b, DType format_a,
                            DType format_b, DType out);

  // ---- for the ops ----
  Profiler& profiler() { return profiler_; }
  cudaStream_t stream() const { return stream_; }
  const CudaOptions& options() const;
  const std::string& gpu_name() const;
  int sm_count() const { return sm_count_; }
  Scratch scratch(const char* op);

 private:
  static constexpr int64_t kGemmWorkspace = kCudaGemmWorkspace;
  static constexpr int64_t kEmulationScratch = kCudaEmulationScratch;

  GemmKey fp8_key(const Matrix& c, const QuantizedMatrix& a, const QuantizedMatrix& b,
                  const GemmOptions& options);
  bool runs_native(const GemmKey& key, Granularity a, Granularity b);
  void gemm_fp8_native(const GemmKey& key, Matrix c, const QuantizedMatrix& a, const QuantizedMatrix& b,
                       const GemmOptions& options);
  void gemm_fp8_emulated(Matrix c, const QuantizedMatrix& a, const QuantizedMatrix& b,
                         const GemmOptions& options);
  void run_gemm(GemmKey key, const GemmCall& call, Tensor bias);
  // Finishes an operand after a kernel has written its part (see plan_operand): casts, statistics.
  template <class Plan>
  void finish_operand(const Operand& operand, const Plan& plan) {
    if (plan.cast_after) cast_copies(operand);
    if (plan.blocks_after) quantize_blocks(operand);
    if (operand.fp8 && operand.fp8->stats()) record_stats(operand);
  }
  void cast_copies(const Operand& operand);  // with the slot's scale
  // Row128, Block128, Row32. The sums over rows are added to column_sum, if present.
  void quantize_blocks(const Operand& operand, Tensor column_sum = {});
  void record_stats(const Operand& operand);
  void make_workspace(int64_t bytes);

  CudaDevice& device_;
  cudaStream_t stream_;
  Profiler& profiler_;  // the queue's
  int sm_count_;
  std::unique_ptr<GemmPlanner> planner_;
  std::unique_ptr<Attention> attention_;  // made by the first attention op
  DeviceMemory own_workspace_;            // until set_workspace gives another
  std::byte* workspace_ = nullptr;
  int64_t workspace_bytes_ = 0;
};

}  // namespace octet
