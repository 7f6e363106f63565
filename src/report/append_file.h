#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <string>
#include <string_view>

namespace octet {

// A log that grows by whole records, each in one write. If only a part of a record could be written, it is removed again.
// Records that cannot be written, because the disk is full, wait in memory: the next append() tries them again, and the end
// of the object once more. A failure is reported once until writing works again. It never stops the run.
class AppendFile {
 public:
  // Opens for appending, creating the file (not its folder). `what` names it in messages. Error on failure.
  AppendFile(std::filesystem::path path, std::string what);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  bool append(std::string_view record);  // whether it and all before it are in the file

  // For text files of lines: completes or cuts off, with a warning, a last line without a newline. `is_whole`
  // says whether the bytes of that line are a whole record that only lacks its newline.
  void mend_last_line(bool (*is_whole)(std::string_view line));

  // Whether the path no longer leads to the file, because somebody has removed, renamed or replaced it.
  bool is_gone() const;
  // Then puts a copy of the file under its path, in place of what is there. Its folder must be there. If the file cannot
  // be read, or the copy not be written, that is a warning, and nothing is changed.
  void write_anew();

  const std::filesystem::path& path() const { return path_; }

 private:
  static constexpr size_t kMostWaiting = size_t{64} << 20;  // bytes; beyond them the oldest records are lost

  bool write_waiting();
  int write_whole(std::string_view record);  // 0, or the error after which nothing of it is in the file

  std::filesystem::path path_;
  std::string what_;
  int fd_ = -1;
  std::deque<std::string> waiting_;  // records that are not in the file yet
  size_t waiting_bytes_ = 0;
  bool failing_ = false;
  // Since writing began to fail: records that wait since then, that were written after waiting, and that no longer wait.
  int64_t late_ = 0, written_late_ = 0, lost_ = 0;
};

}  // namespace octet
