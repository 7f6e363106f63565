#include "base/log.h"

#include <cstdio>
#include <mutex>

#include "base/print_stderr.h"

namespace octet {
namespace {

std::mutex log_mutex;
LogSink log_sink;

void write_to_stderr(LogLevel level, std::string_view message) {
  const char* prefix = level == LogLevel::Warning ? "warning: " : level == LogLevel::Error ? "error: " : "";
  print_stderr("{}{}\n", prefix, message);
}

}  // namespace

LogSink set_log_sink(LogSink sink) {
  std::lock_guard lock(log_mutex);
  return std::exchange(log_sink, std::move(sink));
}

void log_line(LogLevel level, std::string_view message) {
  std::lock_guard lock(log_mutex);
  if (log_sink) {
    log_sink(level, message);
  } else {
    write_to_stderr(level, message);
  }
}

}  // namespace octet
