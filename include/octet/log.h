#pragma once

#include <functional>
#include <string_view>

namespace octet {

enum class LogLevel { Info, Warning, Error };

// Messages go to stderr, one line each ("warning: ..."), unless a sink replaces it.
using LogSink = std::function<void(LogLevel, std::string_view)>;
LogSink set_log_sink(LogSink sink);  // returns the previous one; nullptr restores stderr

}  // namespace octet
