#pragma once

#include <string_view>
#include <utility>

#include "base/log.h"

namespace octet {

// Drops all messages while it lives.
class LogSilencer {
 public:
  LogSilencer() : previous_(set_log_sink([](LogLevel, std::string_view) {})) {}
  ~LogSilencer() { set_log_sink(std::move(previous_)); }
  LogSilencer(const LogSilencer&) = delete;
  LogSilencer& operator=(const LogSilencer&) = delete;

 private:
  LogSink previous_;
};

}  // namespace octet
