#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace octet {

class Env;

// A failed system call. The message reads "[path] write failed: No space left on device".
class IoError : public Error {
 public:
  IoError(std::string_view operation, const std::string& path, int code);
  int code() const { return code_; }  // errno

 private:
  int code_;
};

// A sink for bytes, one piece after another.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void append(std::span<const std::byte> bytes) = 0;
  void append(std::string_view text) { append(std::as_bytes(std::span(text.data(), text.size()))); }
};

// An open descriptor of an Env; closed at the end of its life.
class FileHandle {
 public:
  FileHandle() = default;
  FileHandle(Env& env, int fd, std::string path) : env_(&env), fd_(fd), path_(std::move(path)) {}
  FileHandle(FileHandle&& other) noexcept;
  FileHandle& operator=(FileHandle&& other) noexcept;
  ~FileHandle() { close_quietly(); }

  bool is_open() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  const std::string& path() const { return path_; }
  Env& env() const { return *env_; }
  void close();  // reports delayed errors of the file system

 private:
  void close_quietly() noexcept;

  Env* env_ = nullptr;
  int fd_ = -1;
  std::string path_;
};

// Unbuffered. A file that is dropped without close() may be incomplete; without sync() it may be lost to a
// power failure, as may its name until the directory is synced.
class WritableFile : public Sink {
 public:
  explicit WritableFile(FileHandle file) : file_(std::move(file)) {}
  using Sink::append;
  void append(std::span<const std::byte> bytes) override;  // all of them, or IoError
  void sync();
  void close() { file_.close(); }
  const std::string& path() const { return file_.path(); }

 private:
  FileHandle file_;
};

class ReadableFile {
 public:
  explicit ReadableFile(FileHandle file) : file_(std::move(file)) {}
  size_t read(std::span<std::byte> into);  // the next bytes; fewer only at the end of the file
  size_t read_at(int64_t offset, std::span<std::byte> into);  // likewise, without moving the position
  int64_t size() const;
  const std::string& path() const { return file_.path(); }

 private:
  FileHandle file_;
};

// A file's bytes, mapped read-only. If the file becomes shorter meanwhile, the next access ends the program with a
// message that names it (io/mapping_faults.h): map only files that are replaced whole.
class MappedFile {
 public:
  MappedFile() = default;
  MappedFile(void* data, size_t size) : data_(data), size_(size) {}
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();
  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_}; }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

// Held for the lifetime of the object; the system releases it when the process ends, however it ends.
class FileLock {
 public:
  explicit FileLock(FileHandle file) : file_(std::move(file)) {}

 private:
  FileHandle file_;
};

// All durable file I/O goes through an Env. The functions here repeat interrupted calls, finish short writes and
// throw IoError. They use the system calls below, one virtual function each. FaultEnv replaces those, so a fault
// occurs exactly where a real one would.
class Env {
 public:
  virtual ~Env() = default;

  WritableFile create(const std::string& path);       // empties a file that exists
  WritableFile open_append(const std::string& path);  // creates a file that does not
  ReadableFile open_read(const std::string& path);    // regular files only: no FIFO, no device
  MappedFile map(const std::string& path);            // likewise
  std::string read_text(const std::string& path, int64_t limit = int64_t{64} << 20);
  void write_synced(const std::string& path, std::string_view text);  // a whole file, synced; not its name
  // The same, atomically: a reader, a crash or a power failure finds the old file or the new one.
  void replace_file(const std::string& path, std::string_view text);
  void sync_directory(const std::string& path);
  void rename(const std::string& from, const std::string& to);
  void remove_file(const std::string& path);
  void remove_directory(const std::string& path);               // must be empty
  void remove_tree(const std::string& path);                    // does not follow links
  void make_directory(const std::string& path);                 // already exists: IoError with EEXIST
  void make_directories(const std::string& path);               // existing ones are fine, new ones are synced
  std::vector<std::string> list(const std::string& directory);  // names, sorted, without . and ..
  int64_t file_size(const std::string& path);
  bool exists(const std::string& path);
  bool is_directory(const std::string& path);
  // An exclusive flock on the file, created if needed; IoError with EWOULDBLOCK when somebody else holds it.
  FileLock lock(const std::string& path, std::string_view contents);

  // The system calls. They return the call's result, or -errno. They never throw, except for FaultEnv's simulated
  // kill.
  virtual int sys_open(const std::string& path, int flags, mode_t mode);
  virtual ssize_t sys_write(int fd, const void* data, size_t size);
  virtual ssize_t sys_read(int fd, void* data, size_t size);
  virtual ssize_t sys_pread(int fd, void* data, size_t size, off_t offset);
  virtual int sys_fsync(int fd);
  virtual int sys_close(int fd);
  virtual int sys_flock(int fd, int operation);
  virtual int sys_ftruncate(int fd, off_t size);
  virtual int sys_rename(const std::string& from, const std::string& to);
  virtual int sys_unlink(const std::string& path);
  virtual int sys_rmdir(const std::string& path);
  virtual int sys_mkdir(const std::string& path, mode_t mode);

 private:
  FileHandle open_handle(const char* operation, const std::string& path, int flags);
};

Env& posix_env();

// Like Env::lock, but waits for the holder. on_wait is called once if there is a holder; `stop` (may be null) is
// called several times per second. Returns nothing if `stop` returned true.
std::optional<FileLock> wait_for_lock(Env& env, const std::string& path, std::string_view contents,
                                      const std::function<void()>& on_wait,
                                      const std::function<bool()>& stop = {});

// `directory/name`.
std::string join_path(std::string_view directory, std::string_view name);
std::string parent_path(const std::string& path);

}  // namespace octet
