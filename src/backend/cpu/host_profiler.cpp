#include "backend/cpu/host_profiler.h"

#include <algorithm>
#include <string_view>

namespace octet::cpu {

void HostProfiler::start() {
  done_.clear();
  phases_.clear();
  start_ = Clock::now();
  thread_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  active_.store(true, std::memory_order_release);
  if (phase_ != Phase::Outside) phases_.push_back({phase_, 0});
}

void HostProfiler::begin_phase(Phase phase) {
  if (phase == phase_) return;
  phase_ = phase;
  if (active()) phases_.push_back({phase, now_us()});
}

std::vector<OpTime> HostProfiler::finish() {
  if (!active_.load(std::memory_order_acquire)) return {};
  active_.store(false, std::memory_order_release);
  const double end = now_us(), zero_us = clock_us(start_);
  finished_.clear();
  for (size_t i = 0; i < phases_.size(); ++i) {
    if (phases_[i].phase == Phase::Outside) continue;
    const double until = i + 1 < phases_.size() ? phases_[i + 1].us : end;
    finished_.push_back({.queue = kDefaultQueue,
                         .kind = "phase",
                         .op = name_of(phases_[i].phase),
                         .start_us = zero_us + phases_[i].us,
                         .us = until - phases_[i].us});
  }
  // Ops do not overlap here: what lies between two of them is idle time.
  std::vector<OpPiece> pieces;
  double idle_from = 0;
  for (const Span& span : done_) {
    finished_.push_back({.queue = span.queue,
                         .kind = kind_text(span.label.kind, span.phase),
                         .op = op_text(span.label, span.phase),
                         .start_us = zero_us + span.start_us,
                         .us = span.us,
                         .bytes = span.label.bytes,
                         .flops = span.label.flops});
    if (std::string_view(span.queue) != kDefaultQueue) continue;
    pieces.push_back({{}, Phase::Outside, true, 1e-3 * std::max(0.0, span.start_us - idle_from)});
    pieces.push_back({span.label, span.phase, true, 1e-3 * span.us});
    idle_from = span.start_us + span.us;
  }
  pieces.push_back({{}, Phase::Outside, true, 1e-3 * std::max(0.0, end - idle_from)});
  return sums_by_op(pieces);
}

}  // namespace octet::cpu
