#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "report/run_folder.h"

namespace octet {

// Reads a run again and again while it is written, here or on another machine that shares the folder. Only reads, and
// only what is new: a file that was replaced or has become shorter, as after a resume, is read from its beginning.
class RunFollower {
 public:
  // `path` is the folder of a run, which may have no metrics yet, or a metrics file. ConfigError if it is neither.
  explicit RunFollower(const std::string& path);

  // Looks at the files. Whether anything has changed.
  bool refresh();

  // Without the statistics and samples of any but the last record that has them: a long run has many.
  const RunFolder& run() const { return run_; }
  int64_t unreadable_lines() const { return unreadable_; }
  std::optional<double> changed_at() const { return changed_at_; }  // metrics file, seconds since 1970

  int64_t planned_steps() const { return planned_steps_; }  // of plan.json; 0: it does not say

  // Whether a process on this machine holds the run. Unknown: the run belongs to another machine, or its process is
  // alive and no lock of it is seen (the number may belong to another process by now).
  enum class Holder { Unknown, Nobody, Process };
  Holder holder() const { return holder_; }
  const std::string& host() const { return host_; }  // that the run was started on; empty: not known

 private:
  bool read_new_lines();
  void add_line(std::string_view line, int64_t number);
  void look_at_settings();
  void look_at_lock();

  std::string metrics_path_;
  RunFolder run_;
  int64_t lines_ = 0, unreadable_ = 0;
  uint64_t inode_ = 0;
  int64_t offset_ = 0;      // up to the last whole line
  std::string last_bytes_;  // before it: another file of the same size would have others
  std::optional<double> changed_at_;
  Holder holder_ = Holder::Unknown;
  std::string host_;
  int64_t settings_changed_ = -1, plan_changed_ = -1;
  int64_t planned_steps_ = 0;
  size_t last_fp8_ = 0, last_samples_ = 0;  // the records that have them
};

// Whether a process on this machine holds a lock on the file. Only looks. `process`: who should hold it; 0: not known.
bool is_locked_here(const struct stat& file, int64_t process = 0);

// Folders of runs inside `path`, by name. Those that have started but have no step yet are among them.
std::vector<std::string> run_folders_in(const std::string& path);
// Whether the folder is that of a run, with or without a step.
bool looks_like_run(const std::string& path);

}  // namespace octet
