#include "train/run_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <limits>
#include <system_error>

#include "base/clock.h"
#include "base/host_memory.h"
#include "base/log.h"
#include "checkpoint/model_folder.h"
#include "checkpoint/resume_path.h"
#include "checkpoint/run_history.h"
#include "io/temporary_file.h"
#include "report/text.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kProbeName = ".octet-can-write-";  // and random digits

// Whether a copy of so many bytes fits, with some room for the rest of the program.
bool has_host_memory_for(int64_t bytes) {
  return bytes < available_host_memory() / 10 * 9;
}

fs::path nearest_existing(const std::string& folder) {
  std::error_code error;
  fs::path there = fs::absolute(folder).lexically_normal();
  while (!fs::exists(there, error) && there.has_relative_path()) there = there.parent_path();
  return there;
}

// A temporary file of Env::replace_file(), or of check_writable(). Other files that look like this are not octet's.
bool is_leftover(std::string_view name) {
  constexpr std::string_view kReplaced[] = {"config.yaml",     "plan.json",         "metrics.jsonl",
                                            "last_checkpoint", "resumed_from.json", "crashes",
                                            "wandb.json"};
  const std::string_view before_tmp = name.substr(0, name.rfind(".tmp-"));
  return std::ranges::any_of(kReplaced,
                             [&](std::string_view original) { return is_temporary_of(original, name); }) ||
         (name.starts_with("events.out.tfevents.") && is_temporary_of(before_tmp, name)) ||
         (name.starts_with(kProbeName) && are_digits(name.substr(kProbeName.size())));
}

// ConfigError unless files can be made in `folder`, or in the nearest parent that exists. `key` is named with it.
void check_writable(const char* key, const std::string& folder) {
  const fs::path there = nearest_existing(folder);
  std::error_code error;
  if (!fs::is_directory(there, error))
    fail_config("{} is {}, which cannot be written: {} is not a folder", key, folder, there.string());
  // Only a file tells: permissions say nothing about read-only file systems, quotas and the user root.
  // A file without a name cannot be left behind by a kill. Not every file system has them.
  int file = ::open(there.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
  if (file >= 0) {
    ::close(file);
    return;
  }
  const std::string probe = (there / fmt::format("{}{}", kProbeName, random_digits())).string();
  file = ::open(probe.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
  if (file < 0) {
    fail_config("{} is {}, which cannot be written: {}: {}", key, folder, there.string(),
                std::generic_category().message(errno));
  }
  ::close(file);
  ::unlink(probe.c_str());
}

// Nothing: there is no such file.
std::optional<FileIdentity> identity_of(const std::string& path) {
  struct stat file {};
  if (::stat(path.c_str(), &file) != 0) return std::nullopt;
  return FileIdentity{file.st_dev, file.st_ino};
}

// A file without a record is left of a start that failed.
bool holds_run(Env& env, const std::string& folder) {
  const std::string metrics = join_path(folder, "metrics.jsonl");
  return (env.exists(metrics) && env.file_size(metrics) > 0) || last_checkpoint_of(env, folder).has_value();
}

// Of the checkpoint that is marked as the best.
std::optional<double> best_loss_in(const CheckpointStore& store) {
  std::optional<double> best;
  for (const CheckpointListing& listing : store.list()) {
    const double loss = listing.checkpoint.summary.loss;
    if (listing.is_best && listing.is_whole() && std::isfinite(loss)) best = loss;
  }
  return best;
}

// Remembers what a folder holds, and removes what is new in it.
class NewFiles {
 public:
  // A folder that is `new_already` has been made by this process.
  NewFiles(Env& env, std::string folder, bool new_already) : env_(env), folder_(std::move(folder)) {
    was_there_ = !new_already && env_.is_directory(folder_);
    if (was_there_) before_ = env_.list(folder_);
  }
  // `is_owner`: this process holds the lock of the folder, so nobody else writes there.
  void remove(bool is_owner) const {
    try {
      if (!env_.is_directory(folder_)) return;
      for (const std::string& name : env_.list(folder_)) {
        if (is_owner && !std::ranges::binary_search(before_, name))
          env_.remove_tree(join_path(folder_, name));
      }
      if (!was_there_ && env_.list(folder_).empty()) env_.remove_directory(folder_);
    } catch (const Error& error) {
      log_warning("{}: it is left over from this start", error.what());
    }
  }

 private:
  Env& env_;
  std::string folder_;
  bool was_there_ = false;
  std::vector<std::string> before_;
};

}  // namespace

// Whether the run continues in its own folder: the checkpoint is one of its own, or it has none yet.
bool RunFiles::goes_on_here() const {
  if (spec_.resume.empty()) return false;
  if (!checkpoint_ || spec_.resume == "latest") return true;
  if (spec_.folders.run_name.empty()) return false;
  const std::string own = spec_.run_folder();
  const auto relative = fs::weakly_canonical(checkpoint_->path).lexically_relative(fs::weakly_canonical(own));
  if (!relative.empty() && *relative.begin() != "..") return true;
  const std::string run = run_of_checkpoint(env_, checkpoint_->path);
  return !run.empty() && is_same_folder(run, own);
}

// Names the run, and makes its folder: `base`, or with a number if that is there.
void RunFiles::take_free_name(const std::string& base) {
  spec_.folders.run_name = base;
  env_.make_directories(spec_.folders.output_dir);
  for (int i = 2;; ++i) {
    try {
      env_.make_directory(spec_.run_folder());
      return;
    } catch (const IoError& error) {
      if (error.code() != EEXIST) throw;
      spec_.folders.run_name = fmt::format("{}-{}", base, i);
    }
  }
}

void RunFiles::refuse_if_taken() const {
  if (goes_on_here()) return;
  const bool has_name = !spec_.folders.run_name.empty();
  if (has_name && holds_run(env_, spec_.run_folder())) {
    fail_config(
        "{} already holds a run; continue it with --resume latest, choose another run_name or remove the "
        "folder",
        spec_.run_folder());
  }
  if (!spec_.saves || (!has_name && spec_.folders.checkpoint_dir.empty())) return;
  if (const std::string checkpoints = spec_.checkpoint_folder();
      holds_checkpoints(env_, checkpoints)) {
    fail_config("checkpoint_dir {} already holds checkpoints of another run; choose another folder",
                checkpoints);
  }
}

void RunFiles::check() const {
  refuse_if_taken();
  if (!spec_.folders.run_name.empty() && !spec_.folders.checkpoint_dir.empty() &&
      is_same_folder(spec_.folders.checkpoint_dir, spec_.run_folder())) {
    fail_config(
        "checkpoint_dir is {}, the folder of the run itself; choose another folder, or leave it out: checkpoints are then "
        "in {}",
        spec_.folders.checkpoint_dir, (fs::path(spec_.run_folder()) / kCheckpointFolders[spec_.fp8]).string());
  }
  if (spec_.folders.run_name.empty()) {
    check_writable("output_dir", spec_.folders.output_dir);
  } else {
    check_writable("output_dir/run_name", spec_.run_folder());
  }
  if (spec_.saves && !spec_.folders.checkpoint_dir.empty()) check_writable("checkpoint_dir", spec_.folders.checkpoint_dir);
}

void RunFiles::clean_leftovers() const {
  try {
    const std::string folder = spec_.run_folder();
    for (const std::string& name : env_.list(folder)) {
      if (!is_leftover(name)) continue;
      log_warning("[{}] is left over from an interrupted process and is removed", join_path(folder, name));
      env_.remove_file(join_path(folder, name));
    }
    // Another folder for checkpoints may be shared with others; begin() cleans it when this run saves there.
    if (!spec_.folders.checkpoint_dir.empty() || !spec_.saves) return;
    // A run that changed its precision has two folders.
    for (const bool fp8 : {false, true}) {
      CheckpointStore(env_, spec_.folders.checkpoints(fp8)).clean_leftovers();
    }
  } catch (const Error& error) {
    log_warning("{}: leftovers of an interrupted process stay", error.what());
  }
}

void RunFiles::check_space(int64_t bytes, int64_t kept) const {
  if (!spec_.saves) return;
  const std::string folder = spec_.checkpoint_folder();
  std::error_code error;
  const fs::space_info space = fs::space(nearest_existing(folder), error);
  if (error) return;
  const auto free = static_cast<double>(space.available), one = static_cast<double>(bytes);
  const char* key = spec_.folders.checkpoint_dir.empty() ? "output_dir" : "checkpoint_dir";
  if (free < one) {
    fail_config(
        "a checkpoint takes {}, but only {} are free where {} is ({}); free some space, choose another folder, or set "
        "save_strategy to no",
        human_bytes(one), human_bytes(free), key, folder);
  }
  // A run that continues has some of them already, and replaces them.
  double there = 0;
  for (const CheckpointListing& listing : CheckpointStore(env_, folder).list()) {
    if (listing.is_whole()) there += static_cast<double>(listing.checkpoint.total_bytes());
  }
  if (free + there < one * static_cast<double>(kept)) {
    // While one is written, save_total_limit others stay.
    const auto limit = static_cast<int64_t>((free + there) / one) - 1;
    log_warning(
        "up to {} checkpoints of {} will be there at once, but only {} are free where {} is ({}); {}free {} or choose "
        "another folder",
        kept, human_bytes(one), human_bytes(free), key, folder,
        limit >= 2 ? fmt::format("set save_total_limit to {}, ", limit) : "",
        human_bytes(one * static_cast<double>(kept) - free - there));
  }
}

void RunFiles::open(const About& about) {
  const bool was_named = !spec_.folders.run_name.empty();
  // Two runs that start in the same second must not get the same name.
  if (!was_named) {
    take_free_name(fmt::format("{}-{}-{}", time_name(), about.model, spec_.precision));
  }
  folder_ = spec_.run_folder();
  const NewFiles own(env_, folder_, !was_named), of_checkpoints(env_, spec_.folders.checkpoint_dir, false);
  const bool is_new = !goes_on_here();
  try {
    open_under_lock(about);
  } catch (const std::exception&) {
    if (!is_new) throw;
    saver_.reset();
    tensorboard_.reset();
    metrics_.reset();
    if (!spec_.folders.checkpoint_dir.empty()) of_checkpoints.remove(checkpoint_lock_.has_value());
    own.remove(lock_.has_value());
    throw;
  }
}

void RunFiles::open_under_lock(const About& about) {
  refuse_if_taken();
  env_.make_directories(folder_);
  if (!lock_) lock_.emplace(env_, folder_);
  lock_file_ = identity_of(join_path(folder_, "run.lock"));
  if (spec_.saves && !spec_.folders.checkpoint_dir.empty()) checkpoint_lock_.emplace(env_, spec_.folders.checkpoint_dir);
  refuse_if_taken();  // again, now under the lock
  plan_json_ = about.plan_json;
  if (checkpoint_ && !goes_on_here()) {
    const std::string parent = run_of_checkpoint(env_, checkpoint_->path);
    if (!parent.empty()) parent_ = {.folder = parent, .step = about.steps_done};
  }
  write_settings();
  open_reports(about.steps_done);
  if (spec_.saves) open_saver(about);
  if (spec_.wandb.is_wanted) start_wandb();  // last: it cannot be taken back
}

void RunFiles::write_settings() const {
  env_.replace_file(join_path(folder_, "config.yaml"), settings().yaml);
  env_.replace_file(join_path(folder_, "plan.json"), plan_json_);
  if (parent_) env_.replace_file(join_path(folder_, kRunParent), run_parent_json(folder_, *parent_));
}

bool RunFiles::restore_if_gone() {
  if (!metrics_ || displaced_) return false;
  std::vector<std::string> gone;
  const bool unlocked = identity_of(join_path(folder_, "run.lock")) != lock_file_;
  if (unlocked) gone.emplace_back("run.lock");
  if (metrics_->is_gone()) gone.emplace_back("metrics.jsonl");
  if (tensorboard_ && tensorboard_->is_gone()) gone.push_back(tensorboard_->path().filename().string());
  if (gone.empty()) return false;
  const std::string what =
      fmt::format("[{}] {} was removed, renamed or replaced while the run was writing there", folder_,
                  fmt::join(gone, ", "));
  try {
    env_.make_directories(folder_);
    if (unlocked) lock_again();
    if (displaced_) return true;
    log_warning("{}; it is written anew", what);
    write_settings();
    if (metrics_->is_gone()) metrics_->write_anew();
    if (tensorboard_ && tensorboard_->is_gone()) tensorboard_->write_anew();
  } catch (const IoError& error) {
    log_warning("{}: {}", what, error.what());
  }
  return unlocked;
}

void RunFiles::lock_again() {
  lock_.reset();
  try {
    lock_.emplace(env_, folder_);
    lock_file_ = identity_of(join_path(folder_, "run.lock"));
  } catch (const IoError&) {
    throw;
  } catch (const Error& error) {
    leave_folder(error.what());
  }
}

// The files of the other run are left alone. Records still go to the old files, wherever those are.
void RunFiles::leave_folder(const char* why) {
  displaced_ = true;
  if (!saver_) {
    log_line(LogLevel::Error, fmt::format("{}; this run, which began there before, ends", why));
    return;
  }
  saver_->wait();  // it notes its checkpoints in folder_
  const std::string before = spec_.folders.run_name;
  take_free_name(before);
  folder_ = spec_.run_folder();
  log_line(LogLevel::Error,
           fmt::format("{}; this run, which began there before, saves its state as the run {} and ends", why,
                       spec_.folders.run_name));
  lock_.emplace(env_, folder_);
  write_settings();
}

void RunFiles::save_as(const std::string& run_name) {
  if (run_name != spec_.folders.run_name) displaced_ = true;
  spec_.folders.run_name = run_name;
  folder_ = spec_.run_folder();
  if (!saver_) return;
  const std::string directory = spec_.checkpoint_folder();
  saver_->save_into(directory, best_loss_in(CheckpointStore(env_, directory)));
}

void RunFiles::join(const About& about, const std::string& run_name) {
  spec_.folders.run_name = run_name;
  folder_ = spec_.run_folder();
  if (!env_.exists(join_path(folder_, "config.yaml"))) {
    fail_config(
        "this rank does not see {}, which the first rank has made: output_dir must be the same folder on all nodes",
        folder_);
  }
  if (spec_.saves) open_saver(about);
}

// A run that was ended before its first save begins again. What it has measured is kept under another name.
void RunFiles::keep_aside(const std::string& metrics) const {
  if (!env_.exists(metrics) || env_.file_size(metrics) == 0) return;
  std::string kept;
  for (int i = 1; kept.empty() || env_.exists(kept); ++i)
    kept = join_path(folder_, fmt::format("metrics.{}.jsonl", i));
  env_.rename(metrics, kept);
  log_info("resume: the run had not saved a checkpoint; the records of its earlier steps are in {}", kept);
}

// A continued run repeats the steps after its checkpoint. Their old records are removed from metrics.jsonl and
// TensorBoard.
void RunFiles::open_reports(int64_t steps_done) {
  const fs::path metrics = fs::path(folder_) / "metrics.jsonl";
  earlier_ = earlier_totals(metrics, steps_done);
  if (steps_done == 0) keep_aside(metrics);
  keep_metrics_until(metrics, steps_done, [this](const std::string& path, std::string_view text) {
    env_.replace_file(path, text);
  });
  metrics_ = std::make_unique<MetricsWriter>(metrics);
  if (!spec_.tensorboard) return;
  tensorboard_ = std::make_unique<TensorBoardWriter>(
      folder_, goes_on_here() ? std::optional<int64_t>(steps_done + 1) : std::nullopt);
  tensorboard_->hparams(settings().hparams);
}

void RunFiles::start_wandb() {
  const WandbMode mode = choose_wandb_mode(spec_.wandb.mode);
  if (!mode.note.empty()) log_info("W&B: {}", mode.note);
  if (mode.mode == "disabled") return;
  wandb_ = WandbFollower::start({.folder = fs::absolute(folder_).lexically_normal().string(),
                                 .mode = mode.mode,
                                 .run_name = spec_.folders.run_name,
                                 .project = spec_.wandb.project,
                                 .entity = spec_.wandb.entity,
                                 .wandb_run_name = spec_.wandb.run_name,
                                 .config = settings().hparams});
}

void RunFiles::end_reports(int exit_code) {
  if (!wandb_) return;
  wandb_->end(exit_code, WandbFollower::patience(exit_code != 0));
  wandb_.reset();
}

void RunFiles::open_saver(const About& about) {
  const std::string directory = spec_.checkpoint_folder();
  CheckpointStore store(env_, directory);
  SaveOptions options{
      .total_limit = spec_.save_total_limit,
      .in_background = spec_.save_async,
      .best = best_loss_in(store),
      .texts =
          about.tokenizer.empty() ? std::vector<NamedText>() : read_tokenizer_texts(env_, about.tokenizer),
      .on_published = [this](const std::string& path) { note_last_checkpoint(env_, folder_, path); },
      .ranks = about.ranks};
  options.texts.insert(options.texts.end(), about.texts.begin(), about.texts.end());
  // A kill between the two pointers leaves the older one.
  if (checkpoint_ && parent_path(checkpoint_->path) == directory &&
      checkpoint_->summary.loss < options.best.value_or(std::numeric_limits<double>::infinity())) {
    if (metrics_) store.mark_best(checkpoint_->step);  // the first rank
    options.best = checkpoint_->summary.loss;
  }
  if (about.on_device && !has_host_memory_for(about.state_bytes)) {
    options.in_place = true;
    log_warning(
        "a copy of the state needs {}, more than the free host memory; checkpoints are written from the "
        "device, and training waits for each one",
        human_bytes(static_cast<double>(about.state_bytes)));
  }
  saver_ = std::make_unique<CheckpointSaver>(env_, directory, options);
}

}  // namespace octet
