#include "backend/cuda/profiler.h"

#include <map>
#include <tuple>

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define OCTET_NVTX 1
#endif

namespace octet {
namespace {

void push_range([[maybe_unused]] const char* name) {
#ifdef OCTET_NVTX
  nvtxRangePushA(name);
#endif
}
void pop_range() {
#ifdef OCTET_NVTX
  nvtxRangePop();
#endif
}

const char* name_of(Phase phase) {
  constexpr const char* kNames[] = {"outside", "forward", "head", "backward", "optimizer"};
  return kNames[static_cast<size_t>(phase)];
}

std::string name_of(OpKind kind, Phase phase) {
  constexpr const char* kNames[] = {
      "idle",
      "GEMM forward",
      "GEMM dgrad",
      "GEMM wgrad",
      "adapters",
      "attention forward",
      "attention backward",
      "norm",
      "activation",
      "quantize",
      "rope",
      "embedding",
      "head and loss",
      "norm of gradients",
      "optimizer",
      "copies",
      "other",
  };
  static_assert(std::size(kNames) == static_cast<size_t>(OpKind::Other) + 1);
  if (phase == Phase::Head && kind != OpKind::Idle) return kNames[static_cast<size_t>(OpKind::Loss)];
  return kNames[static_cast<size_t>(kind)];
}

std::string name_of(const OpLabel& label, Phase phase) {
  std::string name = label.op;
  if (label.m > 0) name += fmt::format(" {} x {} x {}", label.m, label.n, label.k);
  return phase == Phase::Head ? fmt::format("head {}", name) : name;
}

}  // namespace

Profiler::~Profiler() {
  begin_phase(Phase::Outside);
}

void Profiler::begin_phase(Phase phase) {
  if (phase == phase_) return;
  if (phase_ == Phase::Outside) push_range("step");
  if (phase_ != Phase::Outside) pop_range();
  if (phase != Phase::Outside) push_range(name_of(phase));
  if (phase == Phase::Outside) pop_range();  // the step
  phase_ = phase;
}

void Profiler::start() {
  cuda_check(cudaStreamSynchronize(stream_), "profile");
  constexpr size_t kEvents = 4096;  // created in advance, so that creating them does not delay the queue
  while (events_.size() < kEvents) events_.emplace_back();
  segments_.clear();
  open_.clear();
  active_ = true;
  mark({}, true);
}

// What follows in the stream belongs to `label`.
void Profiler::mark(const OpLabel& label, bool first) {
  if (segments_.size() >= events_.size()) events_.emplace_back();
  cuda_check(cudaEventRecord(events_[segments_.size()].get(), stream_), "profile");
  segments_.push_back({label, phase_, first});
}

void Profiler::begin(const OpLabel& label) {
  open_.push_back(label);
  mark(label, true);
}

void Profiler::end() {
  open_.pop_back();
  mark(open_.empty() ? OpLabel{} : open_.back(), false);
}

std::vector<OpTime> Profiler::finish() {
  if (!active_) return {};
  mark({}, false);  // an end for the last segment
  active_ = false;
  cuda_check(cudaStreamSynchronize(stream_), "profile");
  std::map<std::tuple<OpKind, std::string, std::string>, OpTime> times;
  for (size_t i = 0; i + 1 < segments_.size(); ++i) {
    const Segment& segment = segments_[i];
    float ms = 0;
    cuda_check(cudaEventElapsedTime(&ms, events_[i].get(), events_[i + 1].get()), "profile");
    const std::string kind = name_of(segment.label.kind, segment.phase);
    const std::string op = name_of(segment.label, segment.phase);
    const OpKind order = segment.phase == Phase::Head && segment.label.kind != OpKind::Idle
                             ? OpKind::Loss
                             : segment.label.kind;
    OpTime& time = times[{order, kind, op}];
    time.kind = kind;
    time.op = op;
    time.ms += static_cast<double>(ms);
    if (!segment.first) continue;
    ++time.calls;
    time.bytes += segment.label.bytes;
    time.flops += segment.label.flops;
  }
  std::vector<OpTime> result;
  for (auto& [key, time] : times) result.push_back(std::move(time));
  return result;
}

}  // namespace octet
