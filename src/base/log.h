#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

#include "octet/log.h"

namespace octet {

// Everything that is said goes through here; the progress bar sets a sink, so that a message does not land inside the
// moving line. Tests set one to check messages.
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
