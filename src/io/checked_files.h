#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/env.h"

namespace octet {

// Size and time tell whether a file has changed. Programs that copy files may keep both, so the number of the file in its
// file system counts, too: a copy is a new file.
struct FileStamp {
  int64_t size = 0;
  int64_t modified_ns = 0;
  int64_t inode = 0;
  int64_t taken_ns = 0;  // when the stamp was taken
  bool operator==(const FileStamp& other) const {
    return size == other.size && modified_ns == other.modified_ns && inode == other.inode;
  }
};
FileStamp file_stamp(const std::string& path);  // IoError if there is no such file

// Remembers which large files of a folder were read and checked, so that the next start need not read them again.
// docs/formats.md describes the file (checked.json). A damaged one is ignored with a line in the log. A failure to read
// or write it is never an error: the files are then checked once more.
class CheckedFiles {
 public:
  enum class Place {
    Folder,  // next to the files; in the cache if that folder cannot be written
    Cache,   // in octet's cache: the folder belongs to others
  };
  CheckedFiles(Env& env, const std::string& folder, Place place);
  ~CheckedFiles() { release(); }
  CheckedFiles(const CheckedFiles&) = delete;
  CheckedFiles& operator=(const CheckedFiles&) = delete;

  // The result of a file's check (see remember), if the file has not changed since.
  std::optional<uint64_t> find(const std::string& name, const FileStamp& stamp) const;

  // Call before checking files. Only one process at a time checks: the others wait, and find() then knows what the first
  // one has checked. Lasts until save().
  void begin_checks();
  // `stamp` is from before the check. `found` is any number that the caller wants to have back.
  void remember(const std::string& name, const FileStamp& stamp, uint64_t found);
  void forget(const std::string& name);  // it is damaged
  void save();

 private:
  struct Entry {
    FileStamp stamp;
    uint64_t found = 0;
  };
  using Entries = std::map<std::string, Entry>;

  struct Memory {
    std::string path;
    Entries entries = {};
    bool has_changed = false;
    std::string complaint = {};  // that was said
  };

  void release();
  void read();
  Entries read(Memory& memory) const;
  bool is_in_folder(const std::string& path) const;
  std::string text(const Entries& known) const;

  Env& env_;
  std::string folder_;            // absolute
  std::vector<Memory> memories_;  // all are read; the first that can be written gets the news
  Entries news_;
  std::optional<FileLock> lock_;
  std::string lock_path_;
  bool said_that_nothing_is_kept_ = false;
};

// The checks of one start: a memory per folder, so that a complaint about it comes once, and how much was read.
class FileChecks {
 public:
  explicit FileChecks(Env& env, bool verify = false) : env_(env), verify_(verify) {}

  bool verify() const { return verify_; }  // check files again, although they were checked before
  CheckedFiles& memory(const std::string& folder, CheckedFiles::Place place);

  struct Amount {
    int64_t files = 0, bytes = 0;
    double seconds = 0;
  };
  void add(const Amount& amount);
  const Amount& amount() const { return amount_; }

 private:
  Env& env_;
  const bool verify_;
  std::map<std::pair<std::string, CheckedFiles::Place>, CheckedFiles> memories_;
  Amount amount_;
};

// Whether a file of this name in a folder belongs to CheckedFiles.
bool is_checked_files_name(std::string_view name);

}  // namespace octet
