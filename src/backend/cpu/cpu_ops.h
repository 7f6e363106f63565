#pragma once

#include <span>
#include <string>
#include <utility>

#include "backend/cpu/host_profiler.h"
#include "backend/cpu/parallel.h"
#include "backend/cpu/workspace.h"
#include "ops/ops.h"

namespace octet {

// The reference implementation of every op, in host memory. One file per group of ops, named as for
// CUDA. Results do not depend on the number of threads.
class CpuOps final : public Ops {
 public:
  // `queue` is what profiles show.
  CpuOps(Device& device, cpu::Parallel parallel, cpu::HostProfiler& profiler, std::string queue)
      : device_(device), parallel_(parallel), profiler_(profiler), queue_(std::move(queue)) {}

  Device& device() override { return device_; }
  void set_workspace(Tensor workspace) override { workspace_ = workspace; }
#include "ops/op_overrides.h"

 private:
  // The time of an op, while a profile is active. Every op begins with it.
  cpu::HostScope timed(const OpLabel& label) const { return {profiler_, queue_.c_str(), label}; }
  cpu::Scratch scratch() const { return cpu::Scratch(workspace_); }
  // The fp32 values of a real tensor: the tensor itself, or a converted copy in the workspace.
  const float* as_floats(const Tensor& x, cpu::Scratch& scratch) const;
  struct FloatMatrix {
    const float* data;
    int64_t stride;
  };
  FloatMatrix as_floats(const Matrix& x, cpu::Scratch& scratch) const;
  // Rounds fp32 values into a bf16 tensor.
  void store_floats(const Tensor& x, const float* values) const;
  const float* dequantized(const QuantizedMatrix& x, cpu::Scratch& scratch) const;
  // Called by an op after it has written operand.dense.
  void finish(const Operand& operand);
  void rotate(const Tensor& qkv, const Tensor& positions, const Tensor& table, const AttentionShape& shape,
              float direction);

  // c [+]= alpha * op(a) op(b) [+ bias] of fp32 operands.
  struct Product {
    FloatMatrix a, b;
    int64_t m, n, k;
    bool transpose_a, transpose_b;
    float alpha = 1.0f;
  };
  void multiply(const Matrix& c, const Product& product, const GemmOptions& options, cpu::Scratch& scratch);

  Device& device_;
  cpu::Parallel parallel_;
  cpu::HostProfiler& profiler_;
  const std::string queue_;
  Tensor workspace_;
};

}  // namespace octet
