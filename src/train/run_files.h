#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "checkpoint/checkpoint_saver.h"
#include "plan/run_spec.h"
#include "report/metrics.h"
#include "report/run_parent.h"
#include "report/tensorboard.h"
#include "report/wandb_follower.h"

namespace octet {

// Which file a path leads to.
struct FileIdentity {
  uint64_t device = 0, inode = 0;
  bool operator==(const FileIdentity&) const = default;
};

// What a run writes: its folder with lock, config.yaml, metrics, TensorBoard files and checkpoints. Nothing is there
// before open().
class RunFiles {
 public:
  // `lock` is held already where the run's folder was there before. `checkpoint` is what
  // the run continues from, and outlives this.
  RunFiles(Env& env, FilesSpec spec, std::optional<RunLock> lock, const std::optional<Checkpoint>& checkpoint)
      : env_(env), spec_(std::move(spec)), checkpoint_(checkpoint), lock_(std::move(lock)) {}

  // ConfigError where a folder cannot be written, or holds another run or its checkpoints: two runs would be mixed, and
  // old checkpoints pruned. Leaves nothing behind: it creates a file to see whether it can, and removes it.
  void check() const;
  // Removes what killed processes have left of this run, under its lock. A failure is a warning.
  void clean_leftovers() const;
  // ConfigError if the file system of the checkpoints has no room for one of `bytes`; a warning if it has none for the
  // `kept` that the run keeps.
  void check_space(int64_t bytes, int64_t kept) const;

  struct About {
    std::string model;
    std::string plan_json = {};  // the text of plan.json
    int64_t steps_done = 0;
    int64_t state_bytes = 0;            // of a checkpoint's tensors
    bool on_device = false;             // they are not in host memory
    std::string tokenizer;              // whose files go into every checkpoint; as for make_tokenizer
    std::vector<NamedText> texts = {};  // other files that go into every checkpoint
    std::optional<RankSaving> ranks = std::nullopt;  // of a run whose ranks save together
  };
  // A run without a name gets one. Checks again what check() does, under the lock. If it fails, it removes what it has
  // made, so that the same command can be given again.
  void open(const About& about);
  // The same for a rank that is not the first: the files are the first rank's, and only checkpoints are written here.
  // ConfigError if this rank cannot see them.
  void join(const About& about, const std::string& run_name);

  const std::string& run_name() const { return spec_.folders.run_name; }  // "" until a run without one is open
  StoredSettings settings() const { return spec_.settings(run_name()); }  // what config.yaml holds
  const std::string& folder() const { return folder_; }
  // Of the records that were there before open(); empty for other ranks than the first.
  const EarlierTotals& earlier() const { return earlier_; }
  MetricsWriter* metrics() { return metrics_.get(); }              // null: another rank writes them
  TensorBoardWriter* tensorboard() { return tensorboard_.get(); }  // null: not wanted
  CheckpointSaver* saver() { return saver_.get(); }                // likewise
  // To be called before a save. If somebody has removed, renamed or replaced the folder or its files meanwhile, they are
  // written anew, with a warning. True if the folder was gone, and its checkpoints with it: then save_as() must follow.
  //
  // If another process has taken the folder, the run gets another name and a new folder, for its checkpoints alone:
  // is_displaced(), and it must end.
  bool restore_if_gone();
  // On every rank, with the name that the run has on the first one: checkpoints go to the folder of that name.
  void save_as(const std::string& run_name);
  bool is_displaced() const { return displaced_; }
  // The run has ended with this exit code: lets W&B have the rest.
  void end_reports(int exit_code);

 private:
  bool goes_on_here() const;
  void take_free_name(const std::string& base);
  void refuse_if_taken() const;
  void open_under_lock(const About& about);
  void write_settings() const;
  void lock_again();
  void leave_folder(const char* why);
  void keep_aside(const std::string& metrics) const;
  void open_reports(int64_t steps_done);
  void start_wandb();
  void open_saver(const About& about);

  Env& env_;
  FilesSpec spec_;
  const std::optional<Checkpoint>& checkpoint_;
  std::string folder_;
  std::string plan_json_;
  std::optional<RunParent> parent_;  // of a run that begins with a checkpoint of another one
  std::optional<FileIdentity> lock_file_;
  bool displaced_ = false;
  EarlierTotals earlier_;
  // Released last: the saver may still be writing when an exception ends the run.
  std::optional<RunLock> lock_, checkpoint_lock_;
  std::unique_ptr<MetricsWriter> metrics_;
  std::unique_ptr<TensorBoardWriter> tensorboard_;
  std::unique_ptr<WandbFollower> wandb_;
  std::unique_ptr<CheckpointSaver> saver_;
};

}  // namespace octet
