#include "backend/cuda/profiler.h"

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define OCTET_NVTX 1
#endif

namespace octet {

bool has_nvtx_listener() {
#ifdef OCTET_NVTX
  // Without a tool, NVTX's functions do nothing, and this one gives no domain.
  const nvtxDomainHandle_t domain = nvtxDomainCreateA("octet");
  if (!domain) return false;
  nvtxDomainDestroy(domain);
  return true;
#else
  return false;
#endif
}

void push_nvtx_range([[maybe_unused]] const char* name) {
#ifdef OCTET_NVTX
  nvtxRangePushA(name);
#endif
}
void pop_nvtx_range() {
#ifdef OCTET_NVTX
  nvtxRangePop();
#endif
}

Profiler::~Profiler() {
  active_ = false;
  begin_phase(Phase::Outside);
}

void Profiler::begin_phase(Phase phase) {
  if (phase == phase_) return;
  if (phase_ == Phase::Outside) push_nvtx_range("step");
  if (phase_ != Phase::Outside) pop_nvtx_range();
  if (phase != Phase::Outside) push_nvtx_range(name_of(phase));
  if (phase == Phase::Outside) pop_nvtx_range();  // the step
  phase_ = phase;
  if (!active()) return;
  mark({}, false);
  end_phase_span();
  if (phase != Phase::Outside)
    spans_.push_back(
        {.label = {}, .phase = phase, .begin = segments_.size() - 1, .end = 0, .is_phase = true});
}

// The phase that was going on ends at the last event.
void Profiler::end_phase_span() {
  for (auto span = spans_.rbegin(); span != spans_.rend(); ++span) {
    if (!span->is_phase) continue;
    if (span->end == 0) span->end = segments_.size() - 1;
    return;
  }
}

void Profiler::start() {
  cuda_check(cudaStreamSynchronize(stream_), "profile");
  constexpr size_t kEvents = 4096;  // created in advance, so that creating them does not delay the queue
  while (events_.size() < kEvents) events_.emplace_back();
  segments_.clear();
  spans_.clear();
  open_.clear();
  thread_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  active_.store(true, std::memory_order_release);
  mark({}, true);
}

// Work that follows in the stream belongs to `label`.
void Profiler::mark(const OpLabel& label, bool first) {
  if (segments_.size() >= events_.size()) events_.emplace_back();
  cuda_check(cudaEventRecord(events_[segments_.size()].get(), stream_), "profile");
  segments_.push_back({label, phase_, first});
}

void Profiler::begin(const OpLabel& label) {
  push_nvtx_range(label.op);
  mark(label, true);
  open_.push_back(spans_.size());
  spans_.push_back({.label = label, .phase = phase_, .begin = segments_.size() - 1, .end = 0});
}

void Profiler::end() {
  pop_nvtx_range();
  const size_t ended = open_.back();
  open_.pop_back();
  mark(open_.empty() ? OpLabel{} : spans_[open_.back()].label, false);
  spans_[ended].end = segments_.size() - 1;
}

std::vector<OpTime> Profiler::finish() {
  if (!active()) return {};
  mark({}, false);  // an end for the last segment
  active_ = false;
  end_phase_span();
  cuda_check(cudaStreamSynchronize(stream_), "profile");
  times_us_.assign(1, 0);
  std::vector<OpPiece> pieces;
  for (size_t i = 0; i + 1 < segments_.size(); ++i) {
    float ms = 0;  // piece by piece: a float cannot hold the microseconds of a long profile
    cuda_check(cudaEventElapsedTime(&ms, events_[i].get(), events_[i + 1].get()), "profile");
    pieces.push_back({segments_[i].label, segments_[i].phase, segments_[i].first, static_cast<double>(ms)});
    times_us_.push_back(times_us_.back() + 1e3 * static_cast<double>(ms));
  }
  return sums_by_op(pieces);
}

std::vector<OpSpan> Profiler::spans(const std::string& queue, const Profiler& origin) const {
  if (times_us_.empty() || origin.times_us_.empty()) return {};
  float earlier_ms = 0;
  if (this != &origin)
    cuda_check(cudaEventElapsedTime(&earlier_ms, events_[0].get(), origin.events_[0].get()), "profile");
  std::vector<OpSpan> result;
  for (const Span& span : spans_) {
    if (span.end < span.begin) continue;  // its op has failed
    result.push_back({.queue = queue,
                      .kind = span.is_phase ? "phase" : kind_text(span.label.kind, span.phase),
                      .op = span.is_phase ? name_of(span.phase) : op_text(span.label, span.phase),
                      .start_us = times_us_[span.begin] - 1e3 * static_cast<double>(earlier_ms),
                      .us = times_us_[span.end] - times_us_[span.begin],
                      .bytes = span.label.bytes,
                      .flops = span.label.flops});
  }
  return result;
}

}  // namespace octet
