#include "base/trace.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace octet {
namespace {

// Small numbers for threads, in the order in which they are met.
uint64_t this_thread() {
  static std::atomic<uint64_t> count = 0;
  thread_local const uint64_t number = ++count;
  return number;
}

std::mutex active_mutex;
std::shared_ptr<Trace> active;  // guarded by it
std::atomic<void (*)(const char*)> push_range = nullptr;
std::atomic<void (*)()> pop_range = nullptr;

}  // namespace

std::atomic<bool> TraceSpan::is_heard = false;

Trace::Trace(std::string process, int number) : number_(number), processors_{std::move(process)} {}

size_t Trace::track_of(size_t processor, std::string_view name, uint64_t thread) {
  for (size_t i = 0; i < tracks_.size(); ++i) {
    const Track& track = tracks_[i];
    if (track.processor == processor && track.name == name && track.thread == thread) return i;
  }
  tracks_.push_back({processor, std::string(name), thread});
  return tracks_.size() - 1;
}

size_t Trace::begin(std::string_view track, std::string_view name) {
  const uint64_t thread = this_thread();
  const std::lock_guard lock(mutex_);
  spans_.push_back({track_of(0, track, thread), std::string(name), std::string(track), now_us(), -1, {}});
  return spans_.size() - 1;
}

void Trace::end(size_t span) {
  const std::lock_guard lock(mutex_);
  require(span < spans_.size(), "[trace] span {} of {} ends", span, spans_.size());
  spans_[span].us = now_us() - spans_[span].start_us;
}

void Trace::add(std::string_view processor, std::string_view track, std::string_view name,
                std::string_view category, Clock::time_point start, double microseconds,
                std::vector<TraceDetail> details) {
  const std::lock_guard lock(mutex_);
  auto found = std::find(processors_.begin() + 1, processors_.end(), processor);
  if (found == processors_.end()) found = processors_.insert(processors_.end(), std::string(processor));
  const auto index = static_cast<size_t>(found - processors_.begin());
  const double start_us = std::chrono::duration<double, std::micro>(start - start_).count();
  spans_.push_back({track_of(index, track, 0), std::string(name), std::string(category), start_us,
                    std::max(microseconds, 0.0), std::move(details)});
}

size_t Trace::spans() const {
  const std::lock_guard lock(mutex_);
  return spans_.size();
}

// The trace event format: complete events ("X") in microseconds, and metadata ("M") that names processes and threads. A
// processor is a process there, and a track is a thread.
std::string Trace::json() const {
  using Json = nlohmann::ordered_json;
  const std::lock_guard lock(mutex_);
  const double now = now_us();
  constexpr int kMostProcessors = 16;  // of a process of octet, so that the numbers of ranks do not collide
  const auto pid = [&](size_t processor) {
    return number_ * kMostProcessors + static_cast<int>(processor) + 1;
  };
  Json events = Json::array();
  const auto name = [&](const char* what, int process, size_t thread, const char* field, const Json& value) {
    events.push_back(
        {{"ph", "M"}, {"name", what}, {"pid", process}, {"tid", thread}, {"args", {{field, value}}}});
  };
  for (size_t i = 0; i < processors_.size(); ++i) {
    name("process_name", pid(i), 0, "name", processors_[i]);
    name("process_sort_index", pid(i), 0, "sort_index", pid(i));
  }
  for (size_t i = 0; i < tracks_.size(); ++i) {
    const Track& track = tracks_[i];
    size_t alike = 0, number = 0;  // threads that do the same are numbered
    for (size_t j = 0; j < tracks_.size(); ++j) {
      if (tracks_[j].name != track.name || tracks_[j].processor != track.processor) continue;
      ++alike;
      number += j <= i;
    }
    name("thread_name", pid(track.processor), i + 1, "name",
         alike > 1 ? fmt::format("{} {}", track.name, number) : track.name);
    name("thread_sort_index", pid(track.processor), i + 1, "sort_index", i + 1);
  }
  for (const Span& span : spans_) {
    Json event = {{"ph", "X"},
                  {"name", span.name},
                  {"cat", span.category},
                  {"ts", span.start_us},
                  {"dur", span.us < 0 ? std::max(0.0, now - span.start_us) : span.us},
                  {"pid", pid(tracks_[span.track].processor)},
                  {"tid", span.track + 1}};
    for (const TraceDetail& detail : span.details) event["args"][detail.name] = detail.value;
    events.push_back(std::move(event));
  }
  const Json file = {{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}};
  return file.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

void set_active_trace(std::shared_ptr<Trace> trace) {
  const std::lock_guard lock(active_mutex);
  active = std::move(trace);
  TraceSpan::is_heard = active != nullptr || push_range.load() != nullptr;
}

std::shared_ptr<Trace> active_trace() {
  const std::lock_guard lock(active_mutex);
  return active;
}

void set_trace_ranges(const TraceRanges& ranges) {
  const std::lock_guard lock(active_mutex);
  pop_range = ranges.pop;
  push_range = ranges.push;
  TraceSpan::is_heard = active != nullptr || ranges.push != nullptr;
}

void TraceSpan::begin(const char* track, const char* name) {
  begun_ = true;
  if (const auto push = push_range.load()) {
    push(name);
    pushed_ = true;
  }
  trace_ = active_trace();
  if (trace_) span_ = trace_->begin(track, name);
}

void TraceSpan::end() {
  if (trace_) trace_->end(span_);
  if (pushed_) pop_range.load()();
}

}  // namespace octet
