#include "train/step_trace.h"

#include <fmt/format.h>

#include "base/log.h"
#include "io/env.h"

namespace octet {

std::optional<StepRange> steps_to_trace(const std::string& profile_steps, int64_t steps_done) {
  const std::optional<StepRange> steps = parse_step_range(profile_steps);
  if (!steps || steps->last > steps_done) return steps;
  log_warning("profile_steps is {}, but the run continues after step {}: no trace is written", profile_steps,
              steps_done);
  return std::nullopt;
}

StepTrace::StepTrace(std::optional<StepRange> steps, Device& device, int rank, std::string path)
    : steps_(steps), device_(device), rank_(rank), path_(std::move(path)) {}

StepTrace::~StepTrace() {
  if (trace_) set_active_trace(nullptr);
}

void StepTrace::begin_step(int64_t step) {
  if (!steps_ || !steps_->contains(step)) return;
  if (!trace_) {
    trace_ = std::make_shared<Trace>(fmt::format("octet, rank {}", rank_), rank_);
    device_.start_profile();
    set_active_trace(trace_);
  }
  step_span_ = trace_->begin("training", fmt::format("step {}", step));
}

void StepTrace::end_step(int64_t step) {
  if (!trace_) return;
  trace_->end(step_span_);
  if (step == steps_->last) write();
}

void StepTrace::finish() {
  if (trace_) write();
}

void StepTrace::write() {
  set_active_trace(nullptr);
  device_.finish_profile();
  const std::string processor = fmt::format("{}, rank {}", device_.description(), rank_);
  for (const OpSpan& op : device_.profile_spans()) {
    std::vector<TraceDetail> details;
    if (op.bytes > 0) details.push_back({"bytes", op.bytes});
    if (op.flops > 0) details.push_back({"flops", op.flops});
    const Clock::time_point start(
        std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double, std::micro>(op.start_us)));
    trace_->add(processor, op.kind == "phase" ? "phases" : op.queue, op.op, op.kind, start, op.us,
                std::move(details));
  }
  try {
    posix_env().replace_file(path_, trace_->json());
    log_info("trace of {} spans: {}", trace_->spans(), path_);
  } catch (const IoError& error) {  // a run is worth more than its trace
    log_warning("[{}] the trace could not be written: {}", path_, error.what());
  }
  trace_.reset();
}

}  // namespace octet
