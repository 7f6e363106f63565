#include "backend/cpu/host_profiler.h"

#include <algorithm>
#include <string_view>

namespace octet::cpu {

void HostProfiler::start() {
  done_.clear();
  phases_.clear();
  thread_ = std::this_thread::get_id();
  start_ = Clock::now();
  active_ = true;
  if (phase_ != Phase::Outside) phases_.push_back({phase_, 0});
}

void HostProfiler::begin_phase(Phase phase) {
  if (phase == phase_) return;
  phase_ = phase;
  if (active()) phases_.push_back({phase, now_us()});
}

std::vector<OpTime> HostProfiler::finish() {
  if (!active_) return {};
  active_ = false;
  const double end = now_us();
  finished_.clear();
  for (size_t i = 0; i < phases_.size(); ++i) {
    if (phases_[i].phase == Phase::Outside) continue;
    const double until = i + 1 < phases_.size() ? phases_[i + 1].us : end;
    finished_.push_back({.queue = kDefaultQueue,
                         .kind = "phase",
                         .op = name_of(phases_[i].phase),
                         .start_us = phases_[i].us,
                         .us = until - phases_[i].us});
  }
  // Ops do not overlap here: what lies between two of them is idle time.
  std::vector<OpPiece> pieces;
  double idle_from = 0;
  for (const Span& span : done_) {
    finished_.push_back({.queue = span.queue,
                         .kind = kind_text(span.label.kind, span.phase),
                         .op = op_text(span.label, span.phase),
                         .start_us = span.start_us,
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
