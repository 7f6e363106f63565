#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "ops/device.h"

namespace octet {

enum class OpKind : uint8_t {
  Idle,
  GemmForward,
  GemmDgrad,
  GemmWgrad,
  Adapters,
  AttentionForward,
  AttentionBackward,
  Norm,
  Activation,
  Quantize,
  Rope,
  Embedding,
  Loss,
  GradNorm,
  Optimizer,
  Communication,
  Copy,
  Other,
};

struct OpLabel {
  OpKind kind = OpKind::Idle;
  const char* op = "";
  double bytes = 0, flops = 0;
  int64_t m = 0, n = 0, k = 0;  // of a product
};

OpLabel gemm_label(const char* op, GemmPart part, int64_t m, int64_t n, int64_t k);

const char* name_of(Phase phase);
// The names that profiles show. Everything in the phase of the head counts as head and loss.
OpKind shown_kind(OpKind kind, Phase phase);
std::string kind_text(OpKind kind, Phase phase);
std::string op_text(const OpLabel& label, Phase phase);

// As OpSpan::start_us counts.
inline double clock_us(Clock::time_point time) {
  return std::chrono::duration<double, std::micro>(time.time_since_epoch()).count();
}

// A piece of the time of a queue. Pieces follow each other; an op that has others inside has several.
struct OpPiece {
  OpLabel label;
  Phase phase = Phase::Outside;
  bool first = false;  // of its op: counts as a call
  double ms = 0;
};
// The sums by op, those of a kind together.
std::vector<OpTime> sums_by_op(const std::vector<OpPiece>& pieces);

// Bytes of the tensors that are present, and of what an op writes of an operand.
inline double bytes_of(const Tensor& tensor) {
  return tensor ? static_cast<double>(tensor.bytes()) : 0.0;
}
inline double bytes_of(const Operand& operand) {
  if (!operand.fp8) return bytes_of(operand.dense);
  const Quantized& fp8 = *operand.fp8;
  const bool dense = operand.keep_dense || fp8.stats() || !fp8.keeps_scale();
  return (dense ? bytes_of(operand.dense) : 0.0) + bytes_of(fp8.rowwise.codes) + bytes_of(fp8.colwise.codes);
}
template <class First, class... Rest>
requires(sizeof...(Rest) > 0) double bytes_of(const First& first, const Rest&... rest) {
  return bytes_of(first) + bytes_of(rest...);
}

}  // namespace octet
