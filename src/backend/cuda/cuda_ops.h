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

// Every op in the order of ops/ops.h, on one queue; each is defined in the .cu file named after it.
class CudaOps final : public Ops {
 public:
  CudaOps(CudaDevice& device, CudaQueue& queue);
  ~CudaOps() override;

  Device& device() override;
  void set_workspace(Tensor workspace) override;

  void fill_normal(Tensor x, Tensor remainder, float deviation, uint64_t seed, uint64_t stream,
                   int64_t first) override;

  void gemm(Matrix c, Matrix a, Matrix b, const GemmOptions& options) override;
  void gemm_fp8(Matrix c, const QuantizedMatrix& a, const QuantizedMatrix& b,
                const GemmOptions& options) override;
  void narrow_product(Matrix u, const QuantizedMatrix& x, Matrix w, bool transpose_w, float alpha) override;
  void narrow_product_over_rows(Matrix g, const QuantizedMatrix& x, Matrix u, bool transpose_g, float alpha,
                                bool accumulate) override;
  void transpose_fp8(const QuantizedMatrix& to, const QuantizedMatrix& from) override;
  void dequantize(Tensor dense, const QuantizedMatrix& x) override;
  void quantize(const Operand& operand) override;
  void update_delayed_scales(const DelayedScaling& state) override;

  void embedding_forward(Tensor x, Tensor tokens, Tensor positions, Tensor wte, Tensor wpe) override;
  void embedding_backward(Tensor dwte, Tensor dwpe, Tensor dx, Tensor tokens, Tensor positions) override;

  void gather_rows(Tensor to, Tensor from, Tensor rows) override;
  void scatter_rows(Tensor to, Tensor from, Tensor rows) override;
  void add_scaled_rows(Tensor to, Tensor from, Tensor rows, Tensor factors) override;
  void add_to_rows(Tensor to, Tensor from, Tensor rows, Tensor factors) override;
  void add_outer(Tensor to, Tensor column, Tensor row, float factor) override;
  void shift_rows(Tensor to, Tensor row, Tensor targets, float factor) override;
  void dropout(Tensor y, Tensor x, float probability, Tensor seed, uint64_t stream, bool accumulate) override;

  void norm_forward(NormKind kind, const Operand& y, Tensor residual, Tensor mean, Tensor inv, Tensor x,
                    Tensor delta, Tensor gain, Tensor bias, float epsilon) override;
  void norm_backward(NormKind kind, const Operand& dresidual, Tensor dgain, Tensor dbias, Tensor dy,
                     Tensor residual, Tensor mean, Tensor inv, Tensor gain) override;

  void rope_forward(Tensor qkv, Tensor positions, Tensor table, const AttentionShape& shape) override;
  void rope_backward(const Operand& dqkv, Tensor positions, Tensor table,
                     const AttentionShape& shape) override;
  void qk_norm_forward(Tensor qkv, Tensor raw, Tensor inv, Tensor gain_q, Tensor gain_k, float epsilon,
                       const AttentionShape& shape) override;
  void qk_norm_backward(const Operand& dqkv, Tensor dgain_q, Tensor dgain_k, Tensor raw, Tensor inv,
                        Tensor gain_q, Tensor gain_k, const AttentionShape& shape) override;
  void attention_forward(const Operand& out, Tensor lse, Tensor qkv, const Documents& documents,
                         const AttentionShape& shape) override;
  void attention_backward(Tensor dqkv, Tensor dout, Tensor qkv, Tensor out, Tensor lse,
                          const Documents& documents, const AttentionShape& shape) override;
  void attention_decode(Tensor out, const KvCache& cache, Tensor qkv, Tensor sequences, Tensor positions,
                        int64_t longest, const AttentionShape& shape) override;

  void activation_forward(Activation kind, const Operand& h, Tensor x) override;
  void activation_backward(Activation kind, const Operand& dx, Tensor dh, Tensor x) override;

  void cross_entropy(const Operand& gradient, Tensor correction, Tensor loss, Tensor penalty, Tensor correct,
                     Tensor logits, Tensor targets, const LossOptions& options) override;

  void add_column_sum(Tensor column_sum, Tensor x, Tensor factors, float factor) override;
  void sum(Tensor total, Tensor x) override;
  void grad_norm(Tensor result, std::span<const Tensor> gradients, float max_norm, Tensor guard) override;
  void adamw(std::span<const AdamWParameter> parameters, Tensor clip, const AdamWOptions& options) override;

  void sum_parts(Tensor sum, Tensor parts, bool accumulate) override;
  void convert(Tensor to, Tensor from) override;
  void combine_norms(Tensor result, Tensor records, float max_norm) override;
  void reciprocal_of_sum(Tensor scale, Tensor counts) override;
  void merge_slots(Tensor slots, Tensor gathered) override;
  void add_hash(Tensor hash, Tensor x, uint64_t seed) override;

  void choose_tokens(Tensor ids, Tensor logits, int64_t vocab, Tensor choices) override;

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
