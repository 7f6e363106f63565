#include "backend/cuda/attention.h"

#include <algorithm>
#include <cstdlib>

#include "backend/cuda/attention_flash.cuh"
#include "base/log.h"

namespace octet {
namespace {

class FlashAttention final : public AttentionEngine {
 public:
  explicit FlashAttention(CudaOps& ops) : ops_(ops) {}

  std::string refuses(const AttentionCase& attention) override {
    if (attention.shape.head_dim <= kPlainDepth) return "";
    return fmt::format("heads of width {} are wider than {}", attention.shape.head_dim, kPlainDepth);
  }
  void forward(const AttentionCase& attention, const AttentionForward& call) override {
    if (has_tensor_core_kernel(attention, {call.out, call.qkv})) {
      flash_forward(ops_, attention, call);
    } else {
      plain_forward(ops_, attention, call);
    }
  }
  void backward(const AttentionCase& attention, const AttentionBackward& call) override {
    if (has_tensor_core_kernel(attention, {call.dqkv, call.dout, call.qkv, call.out})) {
      flash_backward(ops_, attention, call);
    } else {
      plain_backward(ops_, attention, call);
    }
  }

 private:
  static bool has_tensor_core_kernel(const AttentionCase& attention,
                                     std::initializer_list<const void*> pointers) {
    for (const void* pointer : pointers) {
      if (reinterpret_cast<uintptr_t>(pointer) % 16 != 0) return false;
    }
    return attention.dtype == DType::BF16 && attention.shape.head_dim % 8 == 0 &&
           attention.shape.head_dim <= 128;
  }

  CudaOps& ops_;
};

AttentionCase check(const char* op, const Tensor& qkv, const Tensor& lse, const Documents& documents,
                    const AttentionShape& shape) {
  require(shape.kv_heads > 0 && shape.heads > 0 && shape.heads % shape.kv_heads == 0 && shape.head_dim > 0,
          "[cuda] {}: {} query heads do not share {} key heads of width {}", op, shape.heads, shape.kv_heads,
          shape.head_dim);
  require(qkv.dtype == DType::F32 || qkv.dtype == DType::BF16, "[cuda] {}: qkv is {}, expected fp32 or bf16",
          op, name_of(qkv.dtype));
  require(qkv.cols() == shape.qkv_width(), "[cuda] {}: qkv is {}, expected {} columns", op,
          qkv.shape.to_string(), shape.qkv_width());
  require(lse.dtype == DType::F32 && lse.numel() == shape.heads * qkv.rows(),
          "[cuda] {}: lse is {} {}, expected fp32 ({}, {})", op, name_of(lse.dtype), lse.shape.to_string(),
          shape.heads, qkv.rows());
  require(documents.starts.dtype == DType::I32 && documents.count >= 0 &&
              documents.starts.numel() > documents.count,
          "[cuda] {}: {} documents with {} starts of {}, expected one more int32 start than documents", op,
          documents.count, documents.starts.numel(), name_of(documents.starts.dtype));
  require(qkv.rows() <= INT32_MAX && documents.max_length <= qkv.rows(),
          "[cuda] {}: a longest document of {} in {} tokens", op, documents.max_length, qkv.rows());
  AttentionCase attention{.dtype = qkv.dtype, .tokens = qkv.rows(), .shape = shape, .documents = documents};
  // A window that hides nothing counts as no window, so that one plan serves both.
  if (shape.window >= documents.max_length) attention.shape.window = 0;
  return attention;
}

void check_like(const char* op, const char* what, const Tensor& tensor, DType dtype, int64_t rows,
                int64_t cols) {
  require(tensor.dtype == dtype && tensor.numel() == rows * cols,
          "[cuda] {}: {} is {} {}, expected {} ({}, {})", op, what, name_of(tensor.dtype),
          tensor.shape.to_string(), name_of(dtype), rows, cols);
}

// Two products forward and five backward, half of every product masked (as if all documents had the longest length).
OpLabel attention_label(OpKind kind, const char* op, const AttentionCase& attention) {
  const auto product = static_cast<double>(attention.tokens * attention.shape.out_width()) *
                       attention.shape.span(attention.documents.max_length);
  return {.kind = kind, .op = op, .flops = (kind == OpKind::AttentionForward ? 2 : 5) * product};
}

}  // namespace

std::unique_ptr<AttentionEngine> make_flash_attention(CudaOps& ops) {
  return std::make_unique<FlashAttention>(ops);
}

Attention::Attention(CudaOps& ops) {
  const char* variable = std::getenv("OCTET_ATTENTION");
  const std::string wanted = variable ? variable : "";
  require(wanted.empty() || wanted == "cudnn" || wanted == "flash",
          "[cuda] OCTET_ATTENTION is \"{}\", expected cudnn or flash", wanted);
  flash_ = make_flash_attention(ops);
  if (wanted == "flash") return;
  cudnn_ = make_cudnn_attention(ops, no_cudnn_);
  only_cudnn_ = wanted == "cudnn";
}

AttentionEngine& Attention::engine_for(const AttentionCase& attention) {
  std::string reason = no_cudnn_;
  if (cudnn_) {
    reason = cudnn_->refuses(attention);
    if (reason.empty()) return *cudnn_;
  }
  require(!only_cudnn_, "[cuda] attention: OCTET_ATTENTION asks for cuDNN, but {}", reason);
  if (!reason.empty()) tell(reason);
  reason = flash_->refuses(attention);
  require(reason.empty(), "[cuda] attention: {}", reason);
  return *flash_;
}

// Once per kind of reason: reasons that differ only in numbers count as one.
void Attention::tell(const std::string& reason) {
  std::string kind = reason;
  std::erase_if(kind, [](char c) { return c >= '0' && c <= '9'; });
  if (told_.insert(kind).second)
    log_warning("[cuda] attention: using octet's own kernels instead of cuDNN: {}", reason);
}

void CudaOps::attention_forward(const Operand& out, Tensor lse, Tensor qkv, const Documents& documents,
                                const AttentionShape& shape) {
  constexpr const char* op = "attention_forward";
  const AttentionCase attention = check(op, qkv, lse, documents, shape);
  check_like(op, "out", out.dense, qkv.dtype, attention.tokens, shape.out_width());
  if (attention.tokens == 0) return;
  if (!attention_) attention_ = std::make_unique<Attention>(*this);
  const OpScope scope(profiler_, attention_label(OpKind::AttentionForward, op, attention));
  attention_->engine_for(attention).forward(attention,
                                            {out.dense.data, static_cast<float*>(lse.data), qkv.data});
  if (out.fp8) {
    quantize(out);
  } else if (out.column_sum) {
    add_column_sum(out.column_sum, out.dense, {}, 1.0f);
  }
}

void CudaOps::attention_backward(Tensor dqkv, Tensor dout, Tensor qkv, Tensor out, Tensor lse,
                                 const Documents& documents, const AttentionShape& shape) {
  constexpr const char* op = "attention_backward";
  const AttentionCase attention = check(op, qkv, lse, documents, shape);
  check_like(op, "dqkv", dqkv, qkv.dtype, attention.tokens, shape.qkv_width());
  check_like(op, "dout", dout, qkv.dtype, attention.tokens, shape.out_width());
  check_like(op, "out", out, qkv.dtype, attention.tokens, shape.out_width());
  if (attention.tokens == 0) return;
  if (!attention_) attention_ = std::make_unique<Attention>(*this);
  const OpScope scope(profiler_, attention_label(OpKind::AttentionBackward, op, attention));
  attention_->engine_for(attention).backward(
      attention, {dqkv.data, dout.data, qkv.data, out.data, static_cast<const float*>(lse.data)});
}

}  // namespace octet
