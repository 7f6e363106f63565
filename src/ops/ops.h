#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "ops/quantized.h"
#include "tensor/matrix.h"
#include "tensor/tensor.h"

namespace octet {

// The contract of every op, forward and backward. Each kind of device implements all of them (src/backend/); the CPU
// is the reference, in fp32, bf16 and bit-exact emulated FP8. Memory, queues, graphs and profiles are the device's
// (ops/device.h).
//
// Letters: N tokens of a micro-batch (rows * length), C model width, H query heads, K key/value heads, D head
// width, F feed-forward width, V vocabulary, P positions.
//
// Rules for all ops:
// - Tensors are views of the device's memory, row-major and contiguous; the rows of a Matrix may lie further apart.
//   "real" means fp32 or bf16; all real arguments of one call have the same dtype unless a comment says otherwise.
//   Arithmetic is in fp32 and each result is rounded once, to nearest even, when it is stored.
// - Outputs do not overlap inputs unless "in place" is said.
// - "+=" means the op adds to what the output holds.
// - Ops are queued in order; results may be read on the host after synchronize(). No op allocates or waits for the
//   device. Ops throw Error for shapes and dtypes they were not made for.
// - The same inputs give the same bits, whatever the number of threads (on CUDA: with `deterministic`).

enum class NormKind : uint8_t { LayerNorm, RmsNorm };
enum class Activation : uint8_t { Gelu, SwiGlu };
enum class PenaltyKind : uint8_t { None, ZLoss, Entropy, LogitL2 };

struct AttentionShape {
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  float scale = 0.0f;  // of the scores, usually 1 / sqrt(head_dim)
  int64_t window = 0;  // a query sees itself and the window - 1 tokens before it; 0: all before it
  int64_t qkv_width() const { return (heads + 2 * kv_heads) * head_dim; }
  int64_t out_width() const { return heads * head_dim; }
  // The first key that the query at `position` of its document sees.
  int64_t first_key(int64_t position) const {
    return window > 0 && position >= window ? position - window + 1 : 0;
  }
  // A document of `length` tokens has length * span / 2 scores. Without a window, span is the length.
  double span(int64_t length) const {
    const auto l = static_cast<double>(length), w = static_cast<double>(window);
    return window > 0 && window < length ? 2 * w - w * w / l : l;
  }
};

// The documents of a micro-batch: document i is tokens [starts[i], starts[i + 1]). Documents may be empty, and none
// is longer than max_length. Callers may round both numbers up, so that few different ones occur and work can be
// recorded. If count * max_length is the number of tokens, every document has that length.
struct Documents {
  Tensor starts;  // (capacity) int32, of which count + 1 are meaningful
  int64_t count = 0;
  int64_t max_length = 0;
};

// Keys and values of sequences that are continued token by token, one pair per layer.
struct KvCache {
  Tensor keys, values;  // (sequences, positions, K * D) real
};

// Which of a Linear's three products a gemm is. Only profiles look at it.
enum class GemmPart : uint8_t { Forward, Dgrad, Wgrad };

// C = op(A) op(B)^T-style products are written out as plain (m, k) x (k, n) with transposition flags.
struct GemmOptions {
  bool transpose_a = false;  // A is stored (k, m)
  bool transpose_b = false;  // B is stored (n, k)
  bool accumulate = false;   // C += ...
  float alpha = 1;           // multiplies the product, not the bias or what C held
  Tensor bias;               // optional (n) of C's dtype or of the operands' dtype, added to every row
  GemmPart part = GemmPart::Forward;
  bool fast_accumulation = false;  // gemm_fp8 with one scale per tensor, on the GPU; see Fp8FastAccum
};

struct LossOptions {
  int64_t vocab = 0;  // columns from here on are padding: no probability, no gradient
  // (1) fp32, multiplies the gradients: 1 / (targets of the whole step). It is on the device because it changes every
  // step, but a recording of the op does not. Only needed for a gradient.
  Tensor gradient_scale;
  // Optional, (n) fp32: multiplies the gradient of a row's cross-entropy, not that of its penalty. It may be negative.
  Tensor row_factors;
  PenaltyKind penalty = PenaltyKind::None;
  float penalty_weight = 0;
};

struct AdamWOptions {
  float learning_rate = 0, beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-8f;
  int64_t step = 1;   // 1-based, for the bias correction and stochastic rounding
  uint64_t seed = 0;  // of stochastic rounding
};

// One parameter as the optimizer sees it. A bf16 weight may have a remainder, see tensor/split_fp32.h. With one of 16
// bits the two are the exact fp32 weight. With one of 4 bits, or without, the new weight is rounded stochastically to
// the bits that there are. ops/stochastic.h has that and the form of 8-bit moments.
struct AdamWParameter {
  Tensor weight;              // real
  Tensor remainder;           // of a bf16 weight: u16, or u8 (rows, ceil(cols / 2)), or absent
  Tensor gradient;            // fp32 | bf16
  Tensor m, v;                // fp32 | bf16, or m is e4m3 and v u8: codes of square roots
  Tensor m_scales, v_scales;  // with these: (rows, ceil(cols / 128)) fp32
  float weight_decay = 0;
  float learning_rate_scale = 1;  // multiplies the learning rate for this parameter
  // Stochastic rounding takes its noise from this stream, by the row in the whole parameter. `first_row` is the first row
  // on this rank; it is even, because rows share words of noise in pairs.
  uint64_t stream = 0;
  int64_t first_row = 0;
  Quantized* fp8 = nullptr;  // rewritten from the new weight, as the (rows, cols) of its matrix view
};

// State of the delayed recipe for all its tensors.
struct DelayedScaling {
  Tensor slots;    // u8 (count * sizeof(ScaleSlot))
  Tensor history;  // (count, length) fp32, newest first
  Tensor formats;  // u8 (count, 2): DType of the rowwise and colwise copies
  int64_t count = 0;
  int margin = 0;
  bool most_recent = false;  // otherwise the maximum of the history
  bool due = true;           // otherwise only collects amax
  Tensor norm;  // optional, (2) fp32 of grad_norm: where norm[0] is not finite, what was collected is dropped
                // and scales and histories stay as they are
};

// The sizes that determine the extra memory of a run's ops, for the plan.
struct WorkspaceNeeds {
  struct Gemm {
    int64_t m, n, k;
  };
  std::span<const Gemm> gemms;
  DType dtype = DType::F32;
  int64_t tokens = 0;
  int64_t width = 0;  // the widest row of any elementwise or norm op
  AttentionShape attention;
  int64_t max_length = 0;
  int64_t parameters = 0;  // number of parameter tensors
  bool fp8 = true;         // some of the products may run as gemm_fp8
  bool narrow = false;     // narrow products occur
  bool decode = false;     // attention runs as attention_decode, over caches of max_length positions
};

class Device;

// All ops on one queue of a device, run in the order of the calls. Device::ops() uses the default queue. A second
// queue has its own ops and its own workspace.
class Ops {
 public:
  virtual ~Ops() = default;
  virtual Device& device() = 0;

  // u8, at least Device::workspace_bytes, alive as long as ops are called.
  virtual void set_workspace(Tensor) = 0;

  // ---- initial values ----
  // Element i of x (real) = deviation * Philox(seed, stream).normal(first + i), the same bits on every device. In
  // bf16 with a remainder, as in AdamWParameter, the two hold the value: exactly with u16, rounded to nearest with u8,
  // for which x has rows and columns. Without a remainder, x is that value rounded to nearest.
  virtual void fill_normal(Tensor x, Tensor remainder, float deviation, uint64_t seed, uint64_t stream,
                           int64_t first = 0) = 0;

  // ---- products ----
  // c (m, n) [+]= a (m, k) b (k, n) [+ bias]. a and b have one real dtype; c is that dtype or fp32.
  virtual void gemm(Matrix c, Matrix a, Matrix b, const GemmOptions&) = 0;
  // c (m, n) [+]= a (m, k) b (n, k)^T [+ bias]: the same product of FP8 matrices, accumulated in fp32. Both
  // transposition flags are ignored. e5m2 x e5m2 is refused.
  virtual void gemm_fp8(Matrix c, const QuantizedMatrix& a, const QuantizedMatrix& b, const GemmOptions&) = 0;

  // Narrow products of FP8 codes, for adapters. x (N, D) is FP8 with one scale per tensor and may be some columns of a
  // matrix; R is small. The codes are multiplied as real numbers (bf16 holds them exactly), products are summed in fp32
  // and multiplied by alpha and the scale of x, then rounded once.
  // u (N, R) real = alpha * x w, with w (D, R) of u's dtype, or (R, D) with transpose_w.
  virtual void narrow_product(Matrix u, const QuantizedMatrix& x, Matrix w, bool transpose_w,
                              float alpha) = 0;
  // g (D, R) fp32, or (R, D) with transpose_g, [+]= alpha * x^T u, with u (N, R) real.
  virtual void narrow_product_over_rows(Matrix g, const QuantizedMatrix& x, Matrix u, bool transpose_g,
                                        float alpha, bool accumulate) = 0;
  // to (cols, rows) = from (rows, cols) transposed: codes, and the scales of Granularity::Block128. Other scales per
  // block are refused. With Granularity::Tensor the codes may be of any dtype of one byte, such as E8M0 scales.
  virtual void transpose_fp8(const QuantizedMatrix& to, const QuantizedMatrix& from) = 0;

  // dense (rows, cols) real = the values of x, which has one scale per tensor; rounded once.
  virtual void dequantize(Tensor dense, const QuantizedMatrix& x) = 0;
  // Quantises operand.dense (real) into the copies of operand.fp8, which must be given, and adds column sums if
  // asked. amax and stats of the slot are updated; the slot's scale too, unless the rule is delayed.
  // A share of a matrix (rows [a, b) of dense, codes and scales) gives the bits that these rows have in the whole, if a
  // is a multiple of 128 for Block128 and of 32 for Row32, or if the rule is delayed. Without rows, amax_last is 0.
  virtual void quantize(const Operand&) = 0;
  // Rolls every slot's amax into its history and updates the scales; an amax of 0, Inf or NaN is skipped.
  virtual void update_delayed_scales(const DelayedScaling&) = 0;

  // ---- embedding ----
  // x[n] = wte[tokens[n]] + wpe[positions[n]]; wpe may be absent. x (N, C), wte (V, C), wpe (P, C).
  virtual void embedding_forward(Tensor x, Tensor tokens, Tensor positions, Tensor wte, Tensor wpe) = 0;
  // dwte (V, C), dwpe (P, C) fp32 | bf16: += by row. Deterministic: rows are summed in the order of n.
  virtual void embedding_backward(Tensor dwte, Tensor dwpe, Tensor dx, Tensor tokens, Tensor positions) = 0;

  // ---- rows ----
  // to[i] = from[rows[i]], or zeros where rows[i] is -1. to (n, C), from (N, C), one dtype of 2 or 4 bytes; rows (n)
  // int32.
  virtual void gather_rows(Tensor to, Tensor from, Tensor rows) = 0;
  // to[rows[i]] = from[i] where rows[i] is not -1; all other rows of `to` become zero. No row occurs twice.
  virtual void scatter_rows(Tensor to, Tensor from, Tensor rows) = 0;
  // to[i] += factors[i] * from[rows[i]] where rows[i] is not -1. to (n, C) and from (N, C) real, factors (n) fp32.
  virtual void add_scaled_rows(Tensor to, Tensor from, Tensor rows, Tensor factors) = 0;
  // to[rows[i]] += factors[i] * from[i] where rows[i] is not -1. to (N, C) fp32 | bf16, from (n, C) real. Rows that go
  // to one place are summed in fp32 in the order of i, and added once.
  virtual void add_to_rows(Tensor to, Tensor from, Tensor rows, Tensor factors) = 0;
  // to[i] += column[i] * (factor * row). to (N, C) fp32 | bf16; column (N) fp32, absent: ones; row (C) fp32.
  virtual void add_outer(Tensor to, Tensor column, Tensor row, float factor) = 0;
  // to[i] += factor * row where targets[i] is not -1. to (N, C) fp32 | bf16, row (C) fp32, targets (N) int32. bf16 is
  // rounded up or down by noise, which depends on the place alone (ops/stochastic.h). The nearest value would often be the
  // old one. Then a sum over rows would lose what was added to each of them.
  virtual void shift_rows(Tensor to, Tensor row, Tensor targets, float factor) = 0;

  // ---- dropout ----
  // y [+]= x / (1 - probability) where an element is kept, else 0. Element i is kept if
  // Philox(seed, stream).uniform(i) >= probability. seed (2) int32: low and high word, on the device because it changes
  // every micro-step but a recording of the op does not. y may be x (in place) without accumulate.
  virtual void dropout(Tensor y, Tensor x, float probability, Tensor seed, uint64_t stream,
                       bool accumulate) = 0;

  // ---- residual add + norm ----
  // residual = x + delta (delta absent: residual is x itself and is not written), rounded; then
  // LayerNorm: y = (residual - mean) * inv * gain + bias;  RmsNorm: y = residual * inv * gain (no mean, no bias)
  // with inv = rsqrt(variance or mean square + epsilon). x, delta, residual, y: (N, C); mean, inv: (N) fp32, kept
  // for backward (mean absent for RmsNorm). residual may be x (in place).
  virtual void norm_forward(NormKind, const Operand& y, Tensor residual, Tensor mean, Tensor inv, Tensor x,
                            Tensor delta, Tensor gain, Tensor bias, float epsilon) = 0;
  // dresidual.dense (N, C) += d norm / d residual * dy, in place. It is then the gradient of both x and delta, so it
  // is the operand of the Linear that produced delta. dgain, dbias (C) fp32 | bf16: +=, absent for frozen ones.
  // residual as in forward.
  virtual void norm_backward(NormKind, const Operand& dresidual, Tensor dgain, Tensor dbias, Tensor dy,
                             Tensor residual, Tensor mean, Tensor inv, Tensor gain) = 0;

  // ---- attention ----
  // Rotates the query and key heads of qkv (N, (H + 2K) * D: queries, keys, values) in place: pairs (i, i + D/2)
  // by the angle of the token's position. table (P, D) fp32: cos in columns [0, D/2), sin in [D/2, D).
  virtual void rope_forward(Tensor qkv, Tensor positions, Tensor table, const AttentionShape&) = 0;
  // The inverse rotation of the gradient dqkv.dense, in place.
  virtual void rope_backward(const Operand& dqkv, Tensor positions, Tensor table, const AttentionShape&) = 0;
  // RMSNorm of every query and key head of qkv, in place: y = x * inv * gain with inv = rsqrt(mean square of the head
  // + epsilon) and gain_q or gain_k (D). Values are unchanged. raw (N, (H + K) * D) of qkv's dtype: the query and key
  // heads before the norm; inv (N, H + K) fp32. Both are kept for backward, and absent if there is no backward.
  virtual void qk_norm_forward(Tensor qkv, Tensor raw, Tensor inv, Tensor gain_q, Tensor gain_k,
                               float epsilon, const AttentionShape&) = 0;
  // dqkv.dense (N, (H + 2K) * D), in place: the gradient of what forward wrote becomes that of what it read. dgain_q,
  // dgain_k (D) fp32 | bf16: +=, in fixed order; absent for frozen gains.
  virtual void qk_norm_backward(const Operand& dqkv, Tensor dgain_q, Tensor dgain_k, Tensor raw, Tensor inv,
                                Tensor gain_q, Tensor gain_k, const AttentionShape&) = 0;
  // out (N, H * D) = softmax(scale * q k^T, causal inside each document and inside the window) v; query head h reads
  // key/value head h / (H / K). lse (H, N) fp32: log of the softmax denominators, kept for backward; a device may use
  // another order.
  virtual void attention_forward(const Operand& out, Tensor lse, Tensor qkv, const Documents&,
                                 const AttentionShape&) = 0;
  // dqkv (N, (H + 2K) * D) from dout (N, H * D).
  virtual void attention_backward(Tensor dqkv, Tensor dout, Tensor qkv, Tensor out, Tensor lse,
                                  const Documents&, const AttentionShape&) = 0;
  // Attention of tokens that continue cached sequences. Token n stands at positions[n] of sequence sequences[n]; -1
  // is filler, whose output is zero. The keys and values of all N tokens are first written to the cache at their
  // places, then every query reads the positions of its window up to its own. qkv (N, (H + 2K) * D) after the rotation;
  // out (N, H * D); sequences, positions (N) int32, no place twice; `longest` is at least the largest position + 1.
  virtual void attention_decode(Tensor out, const KvCache&, Tensor qkv, Tensor sequences, Tensor positions,
                                int64_t longest, const AttentionShape&) = 0;

  // ---- activation ----
  // Gelu (tanh form): h = gelu(x), x (N, F). SwiGlu: h = silu(x[:, :F]) * x[:, F:], x (N, 2F). h (N, F).
  virtual void activation_forward(Activation, const Operand& h, Tensor x) = 0;
  // dx of x's shape from dh (N, F).
  virtual void activation_backward(Activation, const Operand& dx, Tensor dh, Tensor x) = 0;

  // ---- loss ----
  // Cross-entropy of logits (n, V') against targets (n) int32 (-1: no loss), V' >= vocab. loss (n) fp32 gets the
  // cross-entropy per row (0 if ignored), penalty (n) fp32 the weighted penalty per row:
  //   ZLoss: w * lse^2;  Entropy: -w * entropy(p) (a penalty on confidence);  LogitL2: w * mean over V of logit^2.
  // correct (n) int32, optional: 1 where the largest logit (lowest index on a tie) is the target.
  // A row without a target has no penalty and no gradient either.
  // gradient.dense (n, V') = gradient_scale * d(row_factor * loss + penalty) / d logits; it may be the logits themselves
  // (in place). Without row_factors they are 1.
  // Without it no gradient is computed.
  // gradient.column_sum, optional, gets sums over rows as with every Operand.
  // correction (n) fp32, optional, for FP8 copies with delayed scaling: what has to be added to the gradient of the
  // target's logit so that the row has the same sum in FP8 as before rounding (0 without a target).
  virtual void cross_entropy(const Operand& gradient, Tensor correction, Tensor loss, Tensor penalty,
                             Tensor correct, Tensor logits, Tensor targets, const LossOptions&) = 0;

  // ---- sums and optimizer ----
  // column_sum (cols) fp32 | bf16 += factor * (sum over rows of x[i], or of factors[i] * x[i]), computed in fp32. x real,
  // factors (rows) fp32. Without factors it is the gradient of a bias.
  virtual void add_column_sum(Tensor column_sum, Tensor x, Tensor factors, float factor) = 0;
  // total (1) fp32 = sum of x, in fixed order.
  virtual void sum(Tensor total, Tensor x) = 0;
  // result (2) fp32 = { global 2-norm of all gradients, clip factor }: factor = min(1, max_norm / norm), or 1 when
  // max_norm is 0.
  // guard (n) fp32, optional: the norm is NaN where one of its values is not finite.
  virtual void grad_norm(Tensor result, std::span<const Tensor> gradients, float max_norm, Tensor guard) = 0;
  // AdamW with decoupled decay on every parameter; gradients are multiplied by clip[1]. Every operation is rounded
  // separately (nothing is contracted), so that the results have the same bits on every device. If the norm clip[0]
  // is not finite, weights and moments stay unchanged. FP8 copies are rewritten even then, because their scales may
  // have changed.
  virtual void adamw(std::span<const AdamWParameter>, Tensor clip, const AdamWOptions&) = 0;

  // ---- several ranks ----
  // sum (k) fp32 [+]= parts[0] + parts[1] + ..., added in this order in fp32. parts (n, k) real: one part per rank.
  virtual void sum_parts(Tensor sum, Tensor parts, bool accumulate) = 0;
  // to = from, rounded once. Both real, with equally many elements.
  virtual void convert(Tensor to, Tensor from) = 0;
  // The result of grad_norm from the norms of parts: records (n, k) fp32, whose column 0 has the norm of each part. The
  // squares are added in double, in order. With one part the norm is that part's, bit for bit.
  virtual void combine_norms(Tensor result, Tensor records, float max_norm) = 0;
  // scale (1) fp32 = 1 / (sum of counts), or 0 if that is 0. counts (n) int32, none negative.
  virtual void reciprocal_of_sum(Tensor scale, Tensor counts) = 0;
  // Makes the slots of all ranks equal. slots u8 (count * sizeof(ScaleSlot)); gathered u8 (n, count * sizeof(ScaleSlot))
  // has the slots of every rank. amax and amax_last become the largest (NaN counts as larger than Inf). The scales
  // become those of the rank with the smallest rowwise scale, of the ranks whose amax_last is positive and finite; the
  // first such rank where several have it. Without such a rank they stay.
  virtual void merge_slots(Tensor slots, Tensor gathered) = 0;
  // hash u8 (8), a little-endian number, += sum over i of mix(word i of x + mix(seed + i)), modulo 2^64. Words are 8
  // bytes, little-endian, and the last one is filled up with zeros. mix is base/hash.h's mix_bits. The hash lies at a
  // multiple of 8 bytes, x anywhere.
  virtual void add_hash(Tensor hash, Tensor x, uint64_t seed) = 0;

  // ---- choosing tokens ----
  // ids (n) int32: a token for each row of logits (n, V') fp32, of which the first `vocab` columns count, V' >= vocab.
  // choices u8 (n * sizeof(TokenChoice)), at a multiple of 8 bytes, is on the device because it changes every token, but
  // a recording of the op does not. With a temperature, top_k is applied first, then top_p to the probabilities of the
  // tokens left, and a token is drawn by going through the ids in order. ops/sampling.h defines the weights of tokens, so
  // that every device chooses the same. Rows without a choice get kNanLogits or kNoLogits.
  virtual void choose_tokens(Tensor ids, Tensor logits, int64_t vocab, Tensor choices) = 0;
};

}  // namespace octet
