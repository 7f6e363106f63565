#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "report/step_record.h"
#include "support/captured_log.h"

namespace octet {

// A folder that is gone when the test ends.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "octet_report_XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

using test::CapturedLog;

inline std::string contents_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

inline void write_contents(const std::filesystem::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

inline StepRecord example_record() {
  StepRecord record;
  record.step = 250;
  record.max_steps = 1000;
  record.epoch = 0.25;
  record.loss = 3.456789;
  record.lr = 6e-4;
  record.grad_norm = 0.8234;
  record.step_ms = 156.78;
  record.tokens_per_second = 3345.67;
  record.tokens = 131072;
  record.precision = "FP8";
  return record;
}

}  // namespace octet
