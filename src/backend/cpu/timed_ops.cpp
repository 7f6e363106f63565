#include "backend/cpu/timed_ops.h"

namespace octet::cpu {

void TimedOps::fill_normal(Tensor x, Tensor remainder, float deviation, uint64_t seed, uint64_t stream,
                           int64_t first) {
  const HostScope scope(profiler_, queue_.c_str(), OpLabel{.kind = OpKind::Other, .op = "fill_normal"});
  ops_.fill_normal(x, remainder, deviation, seed, stream, first);
}

void TimedOps::gemm(Matrix c, Matrix a, Matrix b, const GemmOptions& options) {
  const HostScope scope(
      profiler_, queue_.c_str(),
      gemm_label("gemm", options.part, c.rows, c.cols, options.transpose_a ? a.rows : a.cols));
  ops_.gemm(c, a, b, options);
}

void TimedOps::gemm_fp8(Matrix c, const QuantizedMatrix& a, const QuantizedMatrix& b,
                        const GemmOptions& options) {
  const HostScope scope(profiler_, queue_.c_str(),
                        gemm_label("gemm_fp8", options.part, c.rows, c.cols, a.codes.cols()));
  ops_.gemm_fp8(c, a, b, options);
}

void TimedOps::narrow_product(Matrix u, const QuantizedMatrix& x, Matrix w, bool transpose_w, float alpha) {
  const HostScope scope(profiler_, queue_.c_str(), OpLabel{.kind = OpKind::Adapters, .op = "narrow_product"});
  ops_.narrow_product(u, x, w, transpose_w, alpha);
}

void TimedOps::narrow_product_over_rows(Matrix g, const QuantizedMatrix& x, Matrix u, bool transpose_g,
                                        float alpha, bool accumulate) {
  const HostScope scope(profiler_, queue_.c_str(),
                        OpLabel{.kind = OpKind::Adapters, .op = "narrow_product_over_rows"});
  ops_.narrow_product_over_rows(g, x, u, transpose_g, alpha, accumulate);
}

void TimedOps::transpose_fp8(const QuantizedMatrix& to, const QuantizedMatrix& from) {
  const HostScope scope(profiler_, queue_.c_str(), OpLabel{.kind = OpKind::Quantize, .op = "transpose_fp8"});
  ops_.transpose_fp8(to, from);
}

void TimedOps::dequantize(Tensor dense, const QuantizedMatrix& x) {
  const HostScope scope(profiler_, queue_.c_str(), OpLabel{.kind = OpKind::Quantize, .op = "dequantize"});
  ops_.dequantize(dense, x);
}

void TimedOps::quantize(const Operand& operand) {
  const HostScope scope(profiler_, queue_.c_str(), OpLabel{.kind = OpKind::Quantize, .op = "quantize"});
  ops_.quantize(operand);
}

void TimedOps::update_delayed_scales(const DelayedScaling& state) {
  const HostScope scope(profiler_, queue_.c_str(),
                        OpLabel{.kind = OpKind::Quantize, .op = "update_delayed_scales"});
  ops_.update_delayed_scales(state);
}

void TimedOps::embedding_forward(Tensor x, Tensor tokens, Tensor positions, Tensor wte, Tensor wpe) {
  const HostScope scope(profiler_, queue_.c_str(),
                        OpLabel{.kind = OpKind::Embedding, .op = "embedding_forward"});
  ops_.embedding_forward(x, tokens, positions, wte, wpe);
}

void TimedOps::embedding_backward(Tensor dwte, Tensor dwpe, Tensor dx, Tensor tokens, Tensor positions) {
  const HostScope scope(profiler_, queue_.c_str(),
                        OpLabel{.kind = OpKind::Embedding, .op = "embedding_backward"});
  ops_.embedding_backward(dwte, dwpe, dx, tokens, positions);
}

void TimedOps::gather_rows(Tensor to, Tensor from, Tensor rows) {
  const HostScope scope(profiler_, queue_.c_str(), OpLabel{.kind = OpKind::Embedding, .op = "gather_rows"});
  ops_.gather_rows(to, from, rows);
}

void TimedOps::scatter_rows(Tensor to, Tensor from, Tensor rows) {
  const HostScope scope(profiler_, queue_.c_str(), OpLabel{.kind = OpKind::Embedding, .op = "scatter_rows"});
  ops_.scatter_rows(to, from, rows);
}

void TimedOps::add_scaled_rows(Tensor to, Tensor from, Tensor rows, Tensor factors) {
  const HostScope scope(profiler_, queue_.c_str(), OpLabel{.kind = OpKind::Loss, .op = "add_scaled_rows"});
  ops_.add_scaled_rows(to, from, rows, factors);
}

void TimedOps::add_to_rows(Tensor to, Tensor from, Tensor rows, Tensor factors) {
  const HostScope scope(profiler_, queue_.c_str(), OpLabel{.kind = OpKind::Loss, .op = "add_to_rows"});
  ops_.add_to_rows(to, from, rows, factors);
}

void TimedOps::add_outer(Tensor to, Tensor column, Tensor row, float factor) {
  const HostScope scope(profiler_, queue_.c_str(), OpLabel{.kind = OpKind::Loss, .op = "add_outer"});
  ops_.add_outer(to, column, row, factor);
}

void TimedOps::shift_rows(Tensor to, Tensor row, Tensor targets, float factor) {
  const HostScope scope(profiler_, queue_.c_str(), OpLabel{.kind = OpKind::Loss, .op = "shift_rows"});
  ops_.shift_rows(to, row, targets, factor);
}

void TimedOps::dropout(Tensor y, Tensor x, float probability, Tensor seed, uint64_t stream, bool accumulate) {
  const HostScope scope(profiler_, queue_.c_str(), OpLabel{.kind = OpKind::Adapters, .op = "dropout"});
  ops_.dropout(y, x, probability, seed, stream, accumulate);
}

void TimedOps::norm_forward(NormKind kind, const Operand& y, Tensor residual, Tensor mean, Tensor inv,
                            Tensor x, Tensor delta, Tensor gain, Tensor bias, float epsilon) {
  const HostScope scope(profiler_, queue_.c_str(), OpLabel{.kind = OpKind::Norm, .op = "norm_forward"});
  ops_.norm_forward(kind, y, residual, mean, inv, x, delta, gain, bias, epsilon);
}

void TimedOps::norm_backward(NormKind kind, const Operand& dresidual, Tensor dgain, Tensor dbias, Tensor dy,
                             Tensor residual, Tensor mean, Tensor inv, Tensor gain) {
  const HostScope scope(profiler_, queue_.c_str(), OpLabel{.kind = OpKind::Norm, .op = "norm_backward"});
  ops_.norm_backward(kind, dresidual, dgain, dbias, dy, residual, mean, inv, gain);
}

void TimedOps::rope_forward(Tensor qkv, Tensor positions, Tensor table, const AttentionShape& shape) {
  const HostScope scope(profiler_, queue_.c_str(), OpLabel{.kind = OpKind::Rope, .op = "rope_forward"});
  ops_.rope_forward(qkv, positions, table, shape);
}

void TimedOps::rope_backward(const Operand& dqkv, Tensor positions, Tensor table,
                             const AttentionShape& shape) {
  const HostScope scope(profiler_, queue_.c_str(), OpLabel{.kind = OpKind::Rope, .op = "rope_backward"});
  ops_.rope_backward(dqkv, positions, table, shape);
}

void TimedOps::qk_norm_forward(Tensor qkv, Tensor raw, Tensor inv, Tensor gain_q, Tensor gain_k,
                               float epsilon, const AttentionShape& shape) {
  const HostScope scope(profiler_, queue_.c_str(), OpLabel{.kind = OpKind::Norm, .op = "qk_norm_forward"});
  ops_.qk_norm_forward(qkv, raw, inv, gain_q, gain_k, epsilon, shape);
}

void TimedOps::qk_norm_backward(const Operand& dqkv, Tensor dgain_q, Tensor dgain_k, Tensor raw, Tensor inv,
                                Tensor gain_q, Tensor gain_k, const AttentionShape& shape) {
  const HostScope scope(profiler_, queue_.c_str(), OpLabel{.kind = OpKind::Norm, .op = "qk_norm_backward"});
  ops_.qk_norm_backward(dqkv, dgain_q, dgain_k, raw, inv, gain_q, gain_k, shape);
}

void TimedOps::attention_forward(const Operand& out, Tensor lse, Tensor qkv, const Documents& documents,
                                 const AttentionShape& shape) {
  const HostScope scope(profiler_, queue_.c_str(),
                        OpLabel{.kind = OpKind::AttentionForward, .op = "attention_forward"});
  ops_.attention_forward(out, lse, qkv, documents, shape);
}

void TimedOps::attention_backward(Tensor dqkv, Tensor dout, Tensor qkv, Tensor out, Tensor lse,
                                  const Documents& documents, const AttentionShape& shape) {
  const HostScope scope(profiler_, queue_.c_str(),
                        OpLabel{.kind = OpKind::AttentionBackward, .op = "attention_backward"});
  ops_.attention_backward(dqkv, dout, qkv, out, lse, documents, shape);
}

void TimedOps::attention_decode(Tensor out, const KvCache& cache, Tensor qkv, Tensor sequences,
                                Tensor positions, int64_t longest, const AttentionShape& shape) {
  const HostScope scope(profiler_, queue_.c_str(),
                        OpLabel{.kind = OpKind::AttentionForward, .op = "attention_decode"});
  ops_.attention_decode(out, cache, qkv, sequences, positions, longest, shape);
}

void TimedOps::activation_forward(Activation activation, const Operand& h, Tensor x) {
  const HostScope scope(profiler_, queue_.c_str(),
                        OpLabel{.kind = OpKind::Activation, .op = "activation_forward"});
  ops_.activation_forward(activation, h, x);
}

void TimedOps::activation_backward(Activation activation, const Operand& dx, Tensor dh, Tensor x) {
  const HostScope scope(profiler_, queue_.c_str(),
                        OpLabel{.kind = OpKind::Activation, .op = "activation_backward"});
  ops_.activation_backward(activation, dx, dh, x);
}

void TimedOps::cross_entropy(const Operand& gradient, Tensor correction, Tensor loss, Tensor penalty,
                             Tensor correct, Tensor logits, Tensor targets, const LossOptions& options) {
  const HostScope scope(profiler_, queue_.c_str(), OpLabel{.kind = OpKind::Loss, .op = "cross_entropy"});
  ops_.cross_entropy(gradient, correction, loss, penalty, correct, logits, targets, options);
}

void TimedOps::add_column_sum(Tensor column_sum, Tensor x, Tensor factors, float factor) {
  const HostScope scope(profiler_, queue_.c_str(), OpLabel{.kind = OpKind::Other, .op = "add_column_sum"});
  ops_.add_column_sum(column_sum, x, factors, factor);
}

void TimedOps::sum(Tensor total, Tensor x) {
  const HostScope scope(profiler_, queue_.c_str(), OpLabel{.kind = OpKind::Other, .op = "sum"});
  ops_.sum(total, x);
}

void TimedOps::grad_norm(Tensor result, std::span<const Tensor> gradients, float max_norm, Tensor guard) {
  const HostScope scope(profiler_, queue_.c_str(), OpLabel{.kind = OpKind::GradNorm, .op = "grad_norm"});
  ops_.grad_norm(result, gradients, max_norm, guard);
}

void TimedOps::adamw(std::span<const AdamWParameter> parameters, Tensor clip, const AdamWOptions& options) {
  const HostScope scope(profiler_, queue_.c_str(), OpLabel{.kind = OpKind::Optimizer, .op = "adamw"});
  ops_.adamw(parameters, clip, options);
}

void TimedOps::sum_parts(Tensor sum, Tensor parts, bool accumulate) {
  const HostScope scope(profiler_, queue_.c_str(), OpLabel{.kind = OpKind::Other, .op = "sum_parts"});
  ops_.sum_parts(sum, parts, accumulate);
}

void TimedOps::convert(Tensor to, Tensor from) {
  const HostScope scope(profiler_, queue_.c_str(), OpLabel{.kind = OpKind::Other, .op = "convert"});
  ops_.convert(to, from);
}

void TimedOps::combine_norms(Tensor result, Tensor records, float max_norm) {
  const HostScope scope(profiler_, queue_.c_str(), OpLabel{.kind = OpKind::GradNorm, .op = "combine_norms"});
  ops_.combine_norms(result, records, max_norm);
}

void TimedOps::reciprocal_of_sum(Tensor scale, Tensor counts) {
  const HostScope scope(profiler_, queue_.c_str(), OpLabel{.kind = OpKind::Other, .op = "reciprocal_of_sum"});
  ops_.reciprocal_of_sum(scale, counts);
}

void TimedOps::merge_slots(Tensor slots, Tensor gathered) {
  const HostScope scope(profiler_, queue_.c_str(), OpLabel{.kind = OpKind::Quantize, .op = "merge_slots"});
  ops_.merge_slots(slots, gathered);
}

void TimedOps::add_hash(Tensor hash, Tensor x, uint64_t seed) {
  const HostScope scope(profiler_, queue_.c_str(), OpLabel{.kind = OpKind::Other, .op = "add_hash"});
  ops_.add_hash(hash, x, seed);
}

void TimedOps::choose_tokens(Tensor ids, Tensor logits, int64_t vocab, Tensor choices) {
  const HostScope scope(profiler_, queue_.c_str(), OpLabel{.kind = OpKind::Other, .op = "choose_tokens"});
  ops_.choose_tokens(ids, logits, vocab, choices);
}

}  // namespace octet::cpu
