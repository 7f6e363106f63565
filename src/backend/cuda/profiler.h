#pragma once

#include <deque>
#include <vector>

#include "backend/cuda/cuda_check.h"
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
  Copy,
  Other,
};

struct OpLabel {
  OpKind kind = OpKind::Idle;
  const char* op = "";
  double bytes = 0, flops = 0;
  int64_t m = 0, n = 0, k = 0;  // of a product
};

// Measures the device time of ops. An event is put into the stream whenever the op being queued changes. The time
// between two events belongs to the op queued between them. An op inside another is counted separately. Costs nothing
// when switched off. Also makes the ranges that Nsight shows.
class Profiler {
 public:
  explicit Profiler(cudaStream_t stream) : stream_(stream) {}
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  bool active() const { return active_; }
  void start();
  std::vector<OpTime> finish();  // waits

  void begin(const OpLabel& label);
  void end();
  void begin_phase(Phase phase);
  Phase phase() const { return phase_; }

 private:
  struct Segment {
    OpLabel label;
    Phase phase;
    bool first;  // of its op: counts as a call
  };

  void mark(const OpLabel& label, bool first);

  cudaStream_t stream_;
  bool active_ = false;
  Phase phase_ = Phase::Outside;
  std::vector<OpLabel> open_;      // ops being queued, the innermost last
  std::vector<Segment> segments_;  // segment i lies between events i and i + 1
  std::deque<CudaEvent> events_;
};

// The length of an op, for the profiler.
class OpScope {
 public:
  OpScope(Profiler& profiler, const OpLabel& label) : profiler_(profiler.active() ? &profiler : nullptr) {
    if (profiler_) profiler_->begin(label);
  }
  OpScope(Profiler& profiler, OpKind kind, const char* op, double bytes = 0)
      : OpScope(profiler, OpLabel{.kind = kind, .op = op, .bytes = bytes}) {}
  ~OpScope() {
    if (!profiler_) return;
    try {
      profiler_->end();
    } catch (...) {  // the op's own error is being thrown, or finish() reports this one again
    }
  }
  OpScope(const OpScope&) = delete;
  OpScope& operator=(const OpScope&) = delete;

 private:
  Profiler* profiler_;
};

// Bytes of the tensors that are present, and of what an op writes of an operand.
inline double bytes_of(const Tensor& tensor) {
  return tensor ? static_cast<double>(tensor.bytes()) : 0.0;
}
inline double bytes_of(const Operand& operand) {
  if (!operand.fp8) return bytes_of(operand.dense);
  const Quantized& fp8 = *operand.fp8;
  const bool dense = operand.keep_dense || fp8.stats || !fp8.rule.delayed;
  return (dense ? bytes_of(operand.dense) : 0.0) + bytes_of(fp8.rowwise.codes) + bytes_of(fp8.colwise.codes);
}
template <class First, class... Rest>
requires(sizeof...(Rest) > 0) double bytes_of(const First& first, const Rest&... rest) {
  return bytes_of(first) + bytes_of(rest...);
}

}  // namespace octet
