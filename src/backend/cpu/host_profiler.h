#pragma once

#include <atomic>
#include <thread>
#include <vector>

#include "backend/op_profile.h"
#include "base/clock.h"

namespace octet::cpu {

// Times the ops of the CPU device, which are done when their call returns. Looks at the thread that started the profile
// alone: another one, such as that of a save, may copy at the same time.
class HostProfiler {
 public:
  bool active() const {
    return active_.load(std::memory_order_acquire) &&
           std::this_thread::get_id() == thread_.load(std::memory_order_relaxed);
  }
  void start();
  std::vector<OpTime> finish();  // of the queue `kDefaultQueue`
  const std::vector<OpSpan>& spans() const { return finished_; }
  void begin_phase(Phase phase);

  static constexpr const char* kDefaultQueue = "compute";

 private:
  friend class HostScope;
  struct Span {
    const char* queue;
    OpLabel label;
    Phase phase;
    double start_us, us;
  };
  struct PhaseStart {
    Phase phase;
    double us;
  };
  double now_us() const { return 1e6 * seconds_since(start_); }

  // Read by every thread that runs an op. What follows them belongs to the thread that profiles.
  std::atomic<bool> active_ = false;
  std::atomic<std::thread::id> thread_;
  Clock::time_point start_;
  Phase phase_ = Phase::Outside;
  bool has_scope_ = false;
  std::vector<Span> done_;
  std::vector<PhaseStart> phases_;
  std::vector<OpSpan> finished_;
};

// The length of an op, with those that it calls. A name of a queue must live as long as the profile.
class HostScope {
 public:
  HostScope(HostProfiler& profiler, const char* queue, const OpLabel& label)
      : profiler_(profiler.active() && !profiler.has_scope_ ? &profiler : nullptr) {
    if (!profiler_) return;
    profiler.has_scope_ = true;
    span_ = {queue, label, profiler.phase_, profiler.now_us(), 0};
  }
  ~HostScope() {
    if (!profiler_) return;
    profiler_->has_scope_ = false;
    span_.us = profiler_->now_us() - span_.start_us;
    profiler_->done_.push_back(span_);
  }
  HostScope(const HostScope&) = delete;
  HostScope& operator=(const HostScope&) = delete;

 private:
  HostProfiler* profiler_;
  HostProfiler::Span span_;
};

}  // namespace octet::cpu
