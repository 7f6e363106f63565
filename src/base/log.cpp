#include "base/log.h"

#include <cstdio>
#include <mutex>

#include "base/safe_text.h"

namespace octet {
namespace {

std::mutex log_mutex;
LogSink log_sink;

void write_to_stderr(LogLevel level, std::string_view message) {
  const char* prefix = level == LogLevel::Warning ? "warning: " : level == LogLevel::Error ? "error: " : "";
  const std::string line = fmt::format("{}{}\n", prefix, message);
  std::fwrite(line.data(), 1, line.size(), stderr);  // what cannot be written is lost, and nothing else
}

}  // namespace

LogSink set_log_sink(LogSink sink) {
  std::lock_guard lock(log_mutex);
  return std::exchange(log_sink, std::move(sink));
}

void log_line(LogLevel level, std::string_view message) {
  const std::string safe = terminal_safe(message);
  std::lock_guard lock(log_mutex);
  if (log_sink) {
    log_sink(level, safe);
  } else {
    write_to_stderr(level, safe);
  }
}

}  // namespace octet
