#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace octet {

// A log that grows by whole records. If only a part of a record could be written, it is removed again. A failure is
// reported once until writing works again. It never stops the run: losing a log line is no reason to lose a run.
class AppendFile {
 public:
  // Opens for appending, creating the file (not its folder). `what` names it in messages. Error on failure.
  AppendFile(std::filesystem::path path, std::string what);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  bool append(std::string_view record);  // whether all of it is in the file

  // For text files of lines: completes or cuts off, with a warning, a last line without a newline. `is_whole`
  // says whether the bytes of that line are a whole record that only lacks its newline.
  void mend_last_line(bool (*is_whole)(std::string_view line));

  const std::filesystem::path& path() const { return path_; }

 private:
  void report_failure(int error);

  std::filesystem::path path_;
  std::string what_;
  int fd_ = -1;
  int64_t lost_ = 0;  // records since the last one that was written
};

}  // namespace octet
