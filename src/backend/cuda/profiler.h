#pragma once

#include <atomic>
#include <deque>
#include <thread>
#include <vector>

#include "backend/cuda/cuda_check.h"
#include "backend/op_profile.h"

namespace octet {

// Measures the device time of ops. An event is put into the stream whenever the op being queued changes. The time
// between two events belongs to the op queued between them. An op inside another is counted separately. Costs nothing
// when switched off. Also makes the ranges that Nsight shows: the phases always, single ops during a profile.
class Profiler {
 public:
  explicit Profiler(cudaStream_t stream) : stream_(stream) {}
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  // For the thread that started the profile: another one, such as that of a save, may copy at the same time.
  bool active() const {
    return active_.load(std::memory_order_acquire) &&
           std::this_thread::get_id() == thread_.load(std::memory_order_relaxed);
  }
  // Both wait for the stream.
  void start();
  std::vector<OpTime> finish();
  // The ops of the last profile, with `queue` as their queue. Times count from the start of `origin`'s last profile, which
  // was started after this one.
  std::vector<OpSpan> spans(const std::string& queue, const Profiler& origin) const;

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
  // Between two events, by their numbers.
  struct Span {
    OpLabel label;
    Phase phase;
    size_t begin, end;
    bool is_phase = false;
  };

  void mark(const OpLabel& label, bool first);
  void end_phase_span();

  cudaStream_t stream_;
  std::atomic<bool> active_ = false;
  std::atomic<std::thread::id> thread_;
  Phase phase_ = Phase::Outside;
  std::vector<size_t> open_;       // ops being queued, as places in spans_; the innermost last
  std::vector<Segment> segments_;  // segment i lies between events i and i + 1
  std::vector<Span> spans_;
  std::deque<CudaEvent> events_;
  std::vector<double> times_us_;  // of the events of the last profile, from its first one on
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

// Whether a program such as Nsight looks at the ranges of this process.
bool has_nvtx_listener();
// Ranges of the calling thread that Nsight shows.
void push_nvtx_range(const char* name);
void pop_nvtx_range();

}  // namespace octet
