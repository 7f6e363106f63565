#include "io/temporary_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>

#include <cerrno>
#include <cstdint>

namespace octet {
namespace {

constexpr std::string_view kTemporaryMark = ".tmp-";

WritableFile create_new(Env& env, const std::string& path) {
  int fd = 0;
  do {
    fd = env.sys_open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  } while (fd == -EINTR);
  if (fd < 0) throw IoError("create", path, -fd);
  return WritableFile(FileHandle(env, fd, path));
}

}  // namespace

WritableFile create_temporary(Env& env, const std::string& path) {
  return create_new(env, temporary_name(path));
}

WritableFile create_anew(Env& env, const std::string& path) {
  if (env.exists(path)) env.remove_file(path);
  return create_new(env, path);
}

std::string temporary_name(const std::string& path) {
  return fmt::format("{}{}{}", path, kTemporaryMark, random_digits());
}

bool is_temporary_of(std::string_view original, std::string_view name) {
  if (!name.starts_with(original)) return false;
  name.remove_prefix(original.size());
  return name.starts_with(kTemporaryMark) && are_digits(name.substr(kTemporaryMark.size()));
}

std::string random_digits() {
  uint64_t number = 0;
  require(::getrandom(&number, sizeof number, 0) == sizeof number,
          "[random] the system has no random numbers");
  return fmt::format("{:016x}", number);
}

bool are_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789abcdef") == text.npos;
}

}  // namespace octet
