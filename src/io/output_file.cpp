#include "io/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "io/env.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

std::string reason() {
  return std::generic_category().message(errno);
}

// Where a chain of links ends, whether or not a file is there.
std::string end_of_links(const std::string& path) {
  constexpr int kMostLinks = 40;  // as many as Linux follows
  fs::path place = path;
  std::error_code error;
  for (int i = 0; i < kMostLinks && fs::is_symlink(place, error); ++i) {
    const fs::path target = fs::read_symlink(place, error);
    if (error) break;
    place = target.is_absolute() ? target : place.parent_path() / target;
  }
  return place.string();
}

// The output of this process, where the path means that: it must not be replaced under its own feet.
int own_output(const struct stat& file) {
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat own {};
    if (::fstat(fd, &own) == 0 && own.st_dev == file.st_dev && own.st_ino == file.st_ino) return fd;
  }
  return -1;
}

void write_all(int fd, const std::string& path, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(fd, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("[{}] cannot be written: {}", path, reason());
    text.remove_prefix(static_cast<size_t>(count));
  }
}

}  // namespace

void check_output_file(std::string_view flag, const std::string& path) {
  if (path.empty()) return;
  struct stat file {};
  const bool exists = ::stat(path.c_str(), &file) == 0;
  errno = 0;
  bool is_writable = false;
  if (exists && !S_ISREG(file.st_mode)) {
    if (S_ISDIR(file.st_mode)) errno = EISDIR;
    is_writable = !S_ISDIR(file.st_mode) && ::access(path.c_str(), W_OK) == 0;
  } else {
    const int fd = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    is_writable = fd >= 0;
    if (is_writable) ::close(fd);
  }
  if (!is_writable) fail_config("{}: {} cannot be written: {}", flag, path, reason());
  std::error_code ignored;
  if (!exists) fs::remove(end_of_links(path), ignored);
}

void write_output_file(const std::string& path, std::string_view text) {
  struct stat file {};
  if (::stat(path.c_str(), &file) != 0 || S_ISDIR(file.st_mode)) {
    posix_env().replace_file(end_of_links(path), text);
  } else if (const int own = own_output(file); own >= 0) {
    std::fflush(nullptr);
    write_all(own, path, text);
  } else if (S_ISREG(file.st_mode)) {
    posix_env().replace_file(end_of_links(path), text);
  } else {
    const FileHandle handle(posix_env(), ::open(path.c_str(), O_WRONLY | O_CLOEXEC), path);
    if (!handle.is_open()) fail("[{}] cannot be opened: {}", path, reason());
    write_all(handle.fd(), path, text);
  }
}

}  // namespace octet
