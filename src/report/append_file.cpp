#include "report/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "io/temporary_file.h"

namespace octet {
namespace {

std::string reason(int error) {
  return std::generic_category().message(error);
}

}  // namespace

AppendFile::AppendFile(std::filesystem::path path, std::string what)
    : path_(std::move(path)), what_(std::move(what)) {
  fd_ = open(path_.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (fd_ < 0) fail("[{}] {}: cannot be opened for writing: {}", what_, path_.string(), reason(errno));
}

AppendFile::~AppendFile() {
  if (!waiting_.empty() && !write_waiting()) {
    log_line(LogLevel::Error, fmt::format("[{}] {}: the last {} records could not be written", what_,
                                          path_.string(), waiting_.size()));
  }
  close(fd_);
}

bool AppendFile::append(std::string_view record) {
  waiting_.emplace_back(record);
  waiting_bytes_ += record.size();
  return write_waiting();
}

bool AppendFile::write_waiting() {
  while (!waiting_.empty()) {
    if (const int error = write_whole(waiting_.front()); error != 0) {
      if (!failing_) {
        log_line(
            LogLevel::Error,
            fmt::format("[{}] {}: cannot be written: {}; the run continues, and its records wait in memory",
                        what_, path_.string(), reason(error)));
      }
      failing_ = true;
      late_ = std::ssize(waiting_);
      for (; waiting_bytes_ > kMostWaiting; ++lost_, --late_) {
        waiting_bytes_ -= waiting_.front().size();
        waiting_.pop_front();
      }
      return false;
    }
    waiting_bytes_ -= waiting_.front().size();
    waiting_.pop_front();
    if (late_ > 0) --late_, ++written_late_;
  }
  if (failing_) {
    log_warning("[{}] {}: writing works again; {} earlier records were written late, {} are missing", what_,
                path_.string(), written_late_, lost_);
  }
  failing_ = false;
  late_ = written_late_ = lost_ = 0;
  return true;
}

int AppendFile::write_whole(std::string_view record) {
  const off_t start = lseek(fd_, 0, SEEK_END);
  std::string_view rest = record;
  while (!rest.empty()) {
    const ssize_t written = write(fd_, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      const int error = written < 0 ? errno : EIO;
      // Remove an incomplete record: the next one would be read as its continuation.
      if (rest.size() < record.size() && start >= 0 && ftruncate(fd_, start) != 0) {
        log_warning("[{}] {}: an incomplete record could not be removed: {}", what_, path_.string(),
                    reason(errno));
      }
      return error;
    }
    rest.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

bool AppendFile::is_gone() const {
  struct stat open_file {
  }, named{};
  if (fstat(fd_, &open_file) != 0) return true;  // another machine has removed it from a shared disk
  if (stat(path_.c_str(), &named) != 0) return errno == ENOENT || errno == ENOTDIR;
  return open_file.st_dev != named.st_dev || open_file.st_ino != named.st_ino;
}

void AppendFile::write_anew() {
  Env& env = posix_env();
  std::string temporary;
  int file = -1;
  try {
    WritableFile copy = create_temporary(env, path_.string());
    temporary = copy.path();
    std::string block(size_t{1} << 20, '\0');
    off_t done = 0;
    while (const ssize_t got = pread(fd_, block.data(), block.size(), done)) {
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw IoError("read", path_.string(), errno);
      copy.append(std::string_view(block.data(), static_cast<size_t>(got)));
      done += got;
    }
    copy.close();
    file = open(temporary.c_str(), O_RDWR | O_APPEND | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0) throw IoError("open", temporary, errno);
    env.rename(temporary, path_.string());
  } catch (const IoError& error) {
    if (file >= 0) close(file);
    if (!temporary.empty()) unlink(temporary.c_str());
    log_warning("[{}] {}: cannot be written anew: {}", what_, path_.string(), error.what());
    return;
  }
  close(std::exchange(fd_, file));
}

void AppendFile::mend_last_line(bool (*is_whole)(std::string_view line)) {
  const off_t size = lseek(fd_, 0, SEEK_END);
  if (size <= 0) return;
  std::string tail;  // grows towards the front until it holds the end of the line before
  constexpr off_t kBlock = 1 << 16;
  off_t start = size;
  size_t newline = std::string::npos;
  while (start > 0 && newline == std::string::npos) {
    const off_t count = start < kBlock ? start : kBlock;
    std::string block(static_cast<size_t>(count), '\0');
    for (off_t done = 0; done < count;) {
      const ssize_t got =
          pread(fd_, block.data() + done, static_cast<size_t>(count - done), start - count + done);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) {
        fail("[{}] {}: cannot be read: {}", what_, path_.string(), reason(got < 0 ? errno : EIO));
      }
      done += got;
    }
    start -= count;
    tail.insert(0, block);
    newline = tail.rfind('\n');
  }
  const size_t line_start = newline == std::string::npos ? 0 : newline + 1;
  const std::string_view line = std::string_view(tail).substr(line_start);
  if (line.empty()) return;
  if (is_whole(line)) {
    append("\n");
    return;
  }
  log_warning(
      "[{}] {}: the last line is incomplete ({} bytes), as after a kill or a full disk; it is removed", what_,
      path_.string(), line.size());
  if (ftruncate(fd_, start + static_cast<off_t>(line_start)) != 0) {
    fail("[{}] {}: the incomplete last line cannot be removed: {}", what_, path_.string(), reason(errno));
  }
}

}  // namespace octet
