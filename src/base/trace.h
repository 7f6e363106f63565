#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"

namespace octet {

// A numeric detail of a span: {"bytes", 1e6}.
struct TraceDetail {
  std::string name;
  double value = 0;
};

// Spans of time on named tracks, written as a file for Perfetto or chrome://tracing. Safe to use from several threads.
class Trace {
 public:
  // `process` names the spans of the host in the file; `number` tells the processes of a run apart.
  explicit Trace(std::string process, int number = 0);

  // A span of the calling thread, from now on; gives a handle for end(). The spans of a thread must nest.
  size_t begin(std::string_view track, std::string_view name);
  void end(size_t span);

  // A span with known times on the track `track` of another processor: `processor` is its name for people. The spans of
  // such a track must nest, too.
  void add(std::string_view processor, std::string_view track, std::string_view name,
           std::string_view category, Clock::time_point start, double microseconds,
           std::vector<TraceDetail> details = {});

  // The file. A span that has not ended is shown as ending now.
  std::string json() const;
  size_t spans() const;

 private:
  struct Span {
    size_t track;
    std::string name, category;
    double start_us, us;  // `us` is negative until the end is known
    std::vector<TraceDetail> details;
  };
  struct Track {
    size_t processor;
    std::string name;
    uint64_t thread;  // 0: not of a thread
  };

  double now_us() const { return 1e6 * seconds_since(start_); }
  size_t track_of(size_t processor, std::string_view name, uint64_t thread);

  const Clock::time_point start_ = Clock::now();
  const int number_;
  mutable std::mutex mutex_;             // guards what follows
  std::vector<std::string> processors_;  // the first is the host
  std::vector<Track> tracks_;
  std::vector<Span> spans_;
};

// The trace that TraceSpan writes to, one per process. Null: none.
void set_active_trace(std::shared_ptr<Trace> trace);
std::shared_ptr<Trace> active_trace();

// Called at the begin and end of the same spans, if set, so that an external profiler can show them. They must be callable
// from any thread.
struct TraceRanges {
  void (*push)(const char* name) = nullptr;
  void (*pop)() = nullptr;
};
void set_trace_ranges(const TraceRanges& ranges);

// Names what the calling thread does in this scope. Costs one relaxed load of an atomic if nobody listens.
class TraceSpan {
 public:
  TraceSpan(const char* track, const char* name) {
    if (is_heard.load(std::memory_order_relaxed)) begin(track, name);
  }
  ~TraceSpan() {
    if (begun_) end();
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  friend void set_active_trace(std::shared_ptr<Trace> trace);
  friend void set_trace_ranges(const TraceRanges& ranges);
  void begin(const char* track, const char* name);
  void end();

  static std::atomic<bool> is_heard;
  bool begun_ = false, pushed_ = false;
  std::shared_ptr<Trace> trace_;
  size_t span_ = 0;
};

}  // namespace octet
