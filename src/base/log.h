#pragma once

#include <fmt/format.h>

#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace octet {

enum class LogLevel { Info, Warning, Error };

// Messages go to stderr, one line each ("warning: ..."), unless a sink replaces it. The progress bar sets a sink, so
// that a message does not land inside the moving line. Tests set one to check messages.
using LogSink = std::function<void(LogLevel, std::string_view)>;
LogSink set_log_sink(LogSink sink);  // returns the previous one; nullptr restores stderr
void log_line(LogLevel level, std::string_view message);

template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::Info, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::Warning, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace octet
