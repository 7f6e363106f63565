#pragma once

#include <string>
#include <vector>

#include "base/log.h"

namespace octet::test {

// Keeps what is logged while it lives.
class CapturedLog {
 public:
  CapturedLog() {
    previous_ = set_log_sink([this](LogLevel, std::string_view message) { messages.emplace_back(message); });
  }
  ~CapturedLog() { set_log_sink(previous_); }
  CapturedLog(const CapturedLog&) = delete;
  CapturedLog& operator=(const CapturedLog&) = delete;

  std::vector<std::string> messages;

 private:
  LogSink previous_;
};

}  // namespace octet::test
