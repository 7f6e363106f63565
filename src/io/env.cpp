#include "io/env.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <system_error>
#include <thread>
#include <utility>

#include "base/checked.h"
#include "io/mapping_faults.h"
#include "io/temporary_file.h"

namespace octet {
namespace {

// Linux moves at most 2^31 - 4096 bytes per call.
constexpr size_t kMaxPiece = size_t{1} << 30;

template <class Result>
Result with_errno(Result result) {
  return result < 0 ? static_cast<Result>(-errno) : result;
}

// Repeats a system call that a signal interrupted.
template <class Call>
auto retry(Call&& call) {
  while (true) {
    const auto result = call();
    if (result != -EINTR) return result;
  }
}

void check(std::string_view operation, const std::string& path, ssize_t result) {
  if (result < 0) throw IoError(operation, path, static_cast<int>(-result));
}

// Reads until `into` is full or the file ends. `piece` is one call: (bytes done, target, size) -> result.
template <class Piece>
size_t read_fully(const std::string& path, std::span<std::byte> into, Piece&& piece) {
  size_t done = 0;
  while (done < into.size()) {
    const size_t size = std::min(into.size() - done, kMaxPiece);
    const ssize_t got = retry([&] { return piece(done, into.data() + done, size); });
    check("read", path, got);
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  return done;
}

size_t size_of_regular(const FileHandle& file) {
  struct stat info = {};
  check("stat", file.path(), with_errno(::fstat(file.fd(), &info)));
  require(S_ISREG(info.st_mode), "[{}] is not a regular file", file.path());
  return narrow<size_t>(info.st_size);
}

}  // namespace

IoError::IoError(std::string_view operation, const std::string& path, int code)
    : Error(fmt::format("[{}] {} failed: {}", path, operation, std::generic_category().message(code))),
      code_(code) {}

FileHandle::FileHandle(FileHandle&& other) noexcept
    : env_(other.env_), fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}

FileHandle& FileHandle::operator=(FileHandle&& other) noexcept {
  if (this != &other) {
    close_quietly();
    env_ = other.env_;
    fd_ = std::exchange(other.fd_, -1);
    path_ = std::move(other.path_);
  }
  return *this;
}

void FileHandle::close() {
  if (fd_ < 0) return;
  // Linux frees the descriptor even when close reports a failure, so it is never closed twice.
  const int result = env_->sys_close(std::exchange(fd_, -1));
  if (result != -EINTR) check("close", path_, result);
}

void FileHandle::close_quietly() noexcept {
  if (fd_ < 0) return;
  try {
    env_->sys_close(std::exchange(fd_, -1));
  } catch (...) {
    // A simulated kill: the simulated process no longer exists.
  }
}

void WritableFile::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const size_t size = std::min(bytes.size(), kMaxPiece);
    const ssize_t written = retry([&] { return file_.env().sys_write(file_.fd(), bytes.data(), size); });
    check("write", path(), written);
    if (written == 0) throw IoError("write", path(), EIO);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void WritableFile::sync() {
  // Only an interrupted call is repeated. After EIO the kernel may have dropped the dirty pages, and a second fsync
  // would report success for lost data.
  check("fsync", path(), retry([&] { return file_.env().sys_fsync(file_.fd()); }));
}

size_t ReadableFile::read(std::span<std::byte> into) {
  return read_fully(path(), into, [&](size_t, std::byte* target, size_t size) {
    return file_.env().sys_read(file_.fd(), target, size);
  });
}

size_t ReadableFile::read_at(int64_t offset, std::span<std::byte> into) {
  return read_fully(path(), into, [&](size_t done, std::byte* target, size_t size) {
    return file_.env().sys_pread(file_.fd(), target, size, offset + static_cast<off_t>(done));
  });
}

int64_t ReadableFile::size() const {
  struct stat info = {};
  check("stat", path(), with_errno(::fstat(file_.fd(), &info)));
  return info.st_size;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!data_) return;
  forget_mapping(data_);
  ::munmap(data_, size_);
}

FileHandle Env::open_handle(const char* operation, const std::string& path, int flags) {
  const int fd = retry([&] { return sys_open(path, flags | O_CLOEXEC, 0666); });
  check(operation, path, fd);
  return FileHandle(*this, fd, path);
}

WritableFile Env::create(const std::string& path) {
  return WritableFile(open_handle("create", path, O_WRONLY | O_CREAT | O_TRUNC));
}

WritableFile Env::open_append(const std::string& path) {
  return WritableFile(open_handle("open", path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW));
}

ReadableFile Env::open_read(const std::string& path) {
  // O_NONBLOCK: do not wait for a FIFO here; it is refused, as is a device, which may have no end.
  FileHandle file = open_handle("open", path, O_RDONLY | O_NONBLOCK);
  size_of_regular(file);
  return ReadableFile(std::move(file));
}

MappedFile Env::map(const std::string& path) {
  const FileHandle file = open_handle("open", path, O_RDONLY | O_NONBLOCK);
  const size_t size = size_of_regular(file);
  if (size == 0) return {};
  void* const data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.fd(), 0);
  if (data == MAP_FAILED) throw IoError("mmap", path, errno);
  name_mapping(data, size, path);
  return MappedFile(data, size);
}

std::string Env::read_text(const std::string& path, int64_t limit) {
  ReadableFile file = open_read(path);
  const int64_t size = file.size();
  require(size <= limit, "[{}] has {} bytes, at most {} expected", path, size, limit);
  std::string text(static_cast<size_t>(size), '\0');
  text.resize(file.read(std::as_writable_bytes(std::span(text))));
  return text;
}

void Env::write_synced(const std::string& path, std::string_view text) {
  WritableFile file = create(path);
  file.append(text);
  file.sync();
  file.close();
}

void Env::replace_file(const std::string& path, std::string_view text) {
  WritableFile file = create_temporary(*this, path);
  try {
    file.append(text);
    file.sync();
    file.close();
    rename(file.path(), path);
  } catch (const IoError&) {
    sys_unlink(file.path());
    throw;
  }
  sync_directory(parent_path(path));
}

void Env::sync_directory(const std::string& path) {
  FileHandle directory = open_handle("open", path, O_RDONLY | O_DIRECTORY);
  const int result = retry([&] { return sys_fsync(directory.fd()); });
  // Some network file systems cannot sync a directory and say so; their renames are durable without it.
  if (result != -EINVAL) check("fsync", path, result);
  directory.close();
}

void Env::rename(const std::string& from, const std::string& to) {
  check(fmt::format("rename to {}", to), from, retry([&] { return sys_rename(from, to); }));
}

void Env::remove_file(const std::string& path) {
  check("remove", path, retry([&] { return sys_unlink(path); }));
}

void Env::remove_directory(const std::string& path) {
  check("remove", path, retry([&] { return sys_rmdir(path); }));
}

void Env::remove_tree(const std::string& path) {
  struct stat info = {};
  check("stat", path, with_errno(::lstat(path.c_str(), &info)));
  if (!S_ISDIR(info.st_mode)) return remove_file(path);
  for (const std::string& name : list(path)) remove_tree(join_path(path, name));
  remove_directory(path);
}

void Env::make_directory(const std::string& path) {
  check("mkdir", path, retry([&] { return sys_mkdir(path, 0777); }));
}

void Env::make_directories(const std::string& path) {
  if (path.empty() || is_directory(path)) return;
  const std::string parent = parent_path(path);
  make_directories(parent);
  const int result = retry([&] { return sys_mkdir(path, 0777); });
  if (result == -EEXIST && is_directory(path)) return;  // another process was faster
  // "File exists" would not say what is wrong with it.
  check("mkdir", path, result == -EEXIST ? -ENOTDIR : result);
  sync_directory(parent);
}

std::vector<std::string> Env::list(const std::string& directory) {
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(::opendir(directory.c_str()), ::closedir);
  if (!stream) throw IoError("list", directory, errno);
  std::vector<std::string> names;
  while (true) {
    errno = 0;
    const dirent* const entry = ::readdir(stream.get());
    if (!entry) {
      if (errno) throw IoError("list", directory, errno);
      break;
    }
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

int64_t Env::file_size(const std::string& path) {
  struct stat info = {};
  check("stat", path, with_errno(::stat(path.c_str(), &info)));
  return info.st_size;
}

bool Env::exists(const std::string& path) {
  struct stat info = {};
  const int result = with_errno(::lstat(path.c_str(), &info));
  if (result != -ENOENT && result != -ENOTDIR) check("stat", path, result);
  return result == 0;
}

bool Env::is_directory(const std::string& path) {
  struct stat info = {};
  const int result = with_errno(::stat(path.c_str(), &info));
  if (result != -ENOENT && result != -ENOTDIR) check("stat", path, result);
  return result == 0 && S_ISDIR(info.st_mode);
}

FileLock Env::lock(const std::string& path, std::string_view contents) {
  FileHandle file = open_handle("open", path, O_RDWR | O_CREAT | O_NOFOLLOW);
  check("lock", path, retry([&] { return sys_flock(file.fd(), LOCK_EX | LOCK_NB); }));
  check("truncate", path, retry([&] { return sys_ftruncate(file.fd(), 0); }));
  while (!contents.empty()) {
    const ssize_t written = retry([&] { return sys_write(file.fd(), contents.data(), contents.size()); });
    check("write", path, written);
    contents.remove_prefix(static_cast<size_t>(written));
  }
  return FileLock(std::move(file));
}

std::optional<FileLock> wait_for_lock(Env& env, const std::string& path, std::string_view contents,
                                      const std::function<void()>& on_wait,
                                      const std::function<bool()>& stop) {
  for (bool said = false;; said = true) {
    try {
      return env.lock(path, contents);
    } catch (const IoError& error) {
      if (error.code() != EWOULDBLOCK) throw;
    }
    if (!said && on_wait) on_wait();
    if (stop && stop()) return std::nullopt;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

int Env::sys_open(const std::string& path, int flags, mode_t mode) {
  return with_errno(::open(path.c_str(), flags, mode));
}
ssize_t Env::sys_write(int fd, const void* data, size_t size) {
  return with_errno(::write(fd, data, size));
}
ssize_t Env::sys_read(int fd, void* data, size_t size) {
  return with_errno(::read(fd, data, size));
}
ssize_t Env::sys_pread(int fd, void* data, size_t size, off_t offset) {
  return with_errno(::pread(fd, data, size, offset));
}
int Env::sys_fsync(int fd) {
  return with_errno(::fsync(fd));
}
int Env::sys_close(int fd) {
  return with_errno(::close(fd));
}
int Env::sys_flock(int fd, int operation) {
  return with_errno(::flock(fd, operation));
}
int Env::sys_ftruncate(int fd, off_t size) {
  return with_errno(::ftruncate(fd, size));
}
int Env::sys_rename(const std::string& from, const std::string& to) {
  return with_errno(::rename(from.c_str(), to.c_str()));
}
int Env::sys_unlink(const std::string& path) {
  return with_errno(::unlink(path.c_str()));
}
int Env::sys_rmdir(const std::string& path) {
  return with_errno(::rmdir(path.c_str()));
}
int Env::sys_mkdir(const std::string& path, mode_t mode) {
  return with_errno(::mkdir(path.c_str(), mode));
}

Env& posix_env() {
  static Env env;
  return env;
}

std::string join_path(std::string_view directory, std::string_view name) {
  if (directory.empty()) return std::string(name);
  return fmt::format("{}{}{}", directory, directory.ends_with('/') ? "" : "/", name);
}

std::string parent_path(const std::string& path) {
  const size_t last = path.find_last_not_of('/');
  if (last == path.npos) return path.empty() ? "." : "/";
  const size_t slash = path.find_last_of('/', last);
  if (slash == path.npos) return ".";
  const size_t end = path.find_last_not_of('/', slash);
  return end == path.npos ? "/" : path.substr(0, end + 1);
}

}  // namespace octet
