#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/env.h"

namespace octet {

struct CheckpointFile {
  std::string name;
  int64_t size = 0;
  uint32_t crc32c = 0;
};

// The part of a checkpoint's manifest that listings show.
struct CheckpointSummary {
  std::string precision;                                   // "fp8"
  double loss = std::numeric_limits<double>::quiet_NaN();  // not finite: none
};

// A checkpoint on disk, as its manifest describes it.
struct Checkpoint {
  std::string path;  // of the folder
  int64_t step = 0;
  int64_t sequence =
      0;  // increases with every save; steps may not, when a run resumes from an older checkpoint
  int64_t saved_at = 0;  // seconds since 1970
  CheckpointSummary summary;
  std::vector<CheckpointFile> files;

  int64_t total_bytes() const;
  bool has_file(std::string_view name) const;
  std::string file_path(std::string_view name) const;  // Error when the manifest does not list it
};

struct CheckpointListing {
  Checkpoint checkpoint;  // only path and step are known if the manifest cannot be read
  double age_seconds = 0;
  std::string broken;  // why; empty: whole
  bool is_latest = false, is_best = false;

  bool is_whole() const { return broken.empty(); }
};

// Receives the files of a checkpoint that is being saved.
class CheckpointWriter {
 public:
  // `directory` is the folder under its temporary name.
  CheckpointWriter(Env& env, std::string directory) : env_(env), directory_(std::move(directory)) {}

  // `write` appends the bytes; then the file is synced and closed. Plain names only, each once.
  void file(const std::string& name, const std::function<void(Sink&)>& write);
  // A file that somebody else has written and synced.
  void add(CheckpointFile file);

  const std::vector<CheckpointFile>& files() const { return files_; }
  const std::string& directory() const { return directory_; }

 private:
  void check_name(const std::string& name) const;

  Env& env_;
  std::string directory_;
  std::vector<CheckpointFile> files_;
};

// A checkpoint that is being written and has not got its name yet.
struct CheckpointDraft {
  int64_t step = 0, sequence = 0, saved_at = 0;
  std::string name;  // of its temporary folder
};

// Returns what is wrong with the content of a checkpoint's files; empty: nothing.
using FileCheck = std::function<std::string(const Checkpoint&)>;

// A folder of checkpoints `step_N/`, with `latest` and `best` each pointing at one. However a save or prune ends
// (error, kill, power failure), every checkpoint published before still exists and is whole, and nothing has to be
// cleaned up by hand. docs/formats.md has the layout and the order of the system calls.
//
// Reading never changes the folder and is allowed while a training runs. Only the process that holds the run's
// RunLock may call save() and prune(). Not thread-safe.
class CheckpointStore {
 public:
  CheckpointStore(Env& env, std::string directory) : env_(env), directory_(std::move(directory)) {}

  const std::string& directory() const { return directory_; }

  // Saves `step` and makes it the latest (and the best, if asked). A checkpoint of the same step is replaced, with a
  // warning. Throws what `write` throws, and IoError; earlier checkpoints are then unchanged.
  Checkpoint save(int64_t step, const std::function<void(CheckpointWriter&)>& write,
                  const CheckpointSummary& summary, bool best = false);

  // The same in steps, for files that several processes write: begin() makes the temporary folder; after every file is
  // there and synced, publish() writes the manifest and gives the folder its name. If it cannot, it removes the folder,
  // as abandon() does.
  CheckpointDraft begin(int64_t step);
  Checkpoint publish(const CheckpointDraft& draft, const std::vector<CheckpointFile>& files,
                     const CheckpointSummary& summary, bool best = false);
  void abandon(const CheckpointDraft& draft);  // a failure is a warning
  std::string path_of(const CheckpointDraft& draft) const { return path_of(draft.name); }

  // Removes what interrupted saves and prunes have left in the folder; begin() does it, too. A run that continues does it
  // at its start, because the space may be needed and a finished run saves nothing more.
  void clean_leftovers();

  void mark_best(int64_t step);

  // Removes the oldest until `save_total_limit` whole ones are left; the best and the latest always stay and count. 0
  // keeps all. 1 is refused (ConfigError), because the only copy would be the one being replaced. Broken ones are
  // neither counted nor removed. A checkpoint that cannot be removed gives a warning. Returns the steps removed.
  std::vector<int64_t> prune(int64_t save_total_limit);

  // By step. Whole: the manifest is sound and every file has its size; with `verify` also its checksum.
  std::vector<CheckpointListing> list(bool verify = false) const;

  // The newest whole checkpoint, checksums verified. Warns about every newer one that is skipped. nullopt: there is
  // none at all. Throws Error if there are some but none is whole. `check` verifies the files instead.
  std::optional<Checkpoint> open_latest(const FileCheck& check = {}) const;
  std::optional<Checkpoint> open_best() const;  // nullopt: none was marked. Error: it is not whole

 private:
  std::string path_of(std::string_view name) const { return join_path(directory_, name); }
  std::vector<CheckpointListing> scan(bool verify) const;  // by sequence, newest first
  std::optional<std::string> read_pointer(const char* name, std::string& fault) const;
  void write_pointer(const char* name, const std::string& target);
  void rename_to(const std::string& temporary, const std::string& name);
  void remove_quietly(const std::string& path);  // a failure is a warning

  Env& env_;
  std::string directory_;
};

// An explicit choice: the checkpoint in the folder `path`, whatever its name. Throws Error that says what is wrong.
Checkpoint open_checkpoint(Env& env, const std::string& path, bool verify = true);

// Throws Error unless the checksums of these files of an opened checkpoint are right. Names that it does not have are
// skipped.
void verify_files(Env& env, const Checkpoint& checkpoint, std::span<const std::string_view> names);

// Locks a run folder against a second process. The system releases it when the process ends, however it ends.
class RunLock {
 public:
  RunLock(Env& env, const std::string& run_directory);  // Error, naming the process that holds it

 private:
  std::optional<FileLock> lock_;
};

}  // namespace octet
