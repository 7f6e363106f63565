#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/log.h"
#include "io/checkpoint_store.h"
#include "support/fault_env.h"
#include "temp_dir.h"

namespace octet {

inline bool operator==(const Checkpoint& a, const Checkpoint& b) {
  return a.path == b.path && a.step == b.step;
}

// What is logged while it lives.
class LogCapture {
 public:
  LogCapture() {
    previous_ = set_log_sink([this](LogLevel, std::string_view line) { lines.emplace_back(line); });
  }
  ~LogCapture() { set_log_sink(previous_); }
  std::string text() const {
    std::string all;
    for (const auto& line : lines) all += line + "\n";
    return all;
  }
  std::vector<std::string> lines;

 private:
  LogSink previous_;
};

inline std::string model_bytes(int64_t step) {
  std::string bytes;
  for (int i = 0; i < 300; ++i) bytes += static_cast<char>(step * 31 + i);
  return bytes;
}

inline void save_step(CheckpointStore& store, int64_t step, bool best = false) {
  store.save(
      step,
      [&](CheckpointWriter& writer) {
        writer.file("model.safetensors", [&](Sink& sink) {
          const std::string bytes = model_bytes(step);
          sink.append(std::string_view(bytes).substr(0, 100));
          sink.append(std::string_view(bytes).substr(100));
        });
        writer.file("state.bin", [](Sink& sink) { sink.append("state"); });
      },
      {"fp8", 0.1 + static_cast<double>(step)}, best);
}

inline void expect_content(const Checkpoint& checkpoint, int64_t step) {
  EXPECT_EQ(checkpoint.step, step);
  EXPECT_EQ(read_file(checkpoint.file_path("model.safetensors")), model_bytes(step));
  EXPECT_EQ(read_file(checkpoint.file_path("state.bin")), "state");
}

}  // namespace octet
