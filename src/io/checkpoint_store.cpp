#include "io/checkpoint_store.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <set>
#include <tuple>

#include "base/crc32c.h"
#include "base/log.h"
#include "io/checkpoint_manifest.h"
#include "io/temporary_file.h"

namespace octet {
namespace {

// Names that begin with a dot are in use during a save or prune, and leftovers afterwards.
constexpr std::string_view kTemporary = ".tmp-";      // being written
constexpr std::string_view kReplaced = ".replaced-";  // a step_N whose successor is about to take its name
constexpr std::string_view kTrash = ".trash-";        // being removed

int64_t seconds_now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

std::string step_name(int64_t step) {
  return fmt::format("step_{}", step);
}

std::string working_name(std::string_view prefix, std::string_view name) {
  return fmt::format("{}{}-{}", prefix, name, ::getpid());
}

// The N of "step_N"; nullopt for any other name.
std::optional<int64_t> parse_step(std::string_view name) {
  if (!name.starts_with("step_")) return std::nullopt;
  name.remove_prefix(5);
  if (name.empty() || name.size() > 18 || (name.size() > 1 && name[0] == '0')) return std::nullopt;
  int64_t step = 0;
  for (const char c : name) {
    if (c < '0' || c > '9') return std::nullopt;
    step = step * 10 + (c - '0');
  }
  return step;
}

// ".replaced-step_7-1234" -> "step_7".
std::string inner_name(std::string_view name, std::string_view prefix) {
  name.remove_prefix(prefix.size());
  return std::string(name.substr(0, name.rfind('-')));
}

bool is_leftover(std::string_view name) {
  return name.starts_with(kTemporary) || name.starts_with(kReplaced) || name.starts_with(kTrash);
}

class ChecksumSink : public Sink {
 public:
  explicit ChecksumSink(WritableFile& file) : file_(file) {}
  using Sink::append;
  void append(std::span<const std::byte> bytes) override {
    crc_ = crc32c(bytes.data(), bytes.size(), crc_);
    size_ += static_cast<int64_t>(bytes.size());
    file_.append(bytes);
  }
  int64_t size() const { return size_; }
  uint32_t crc() const { return crc_; }

 private:
  WritableFile& file_;
  int64_t size_ = 0;
  uint32_t crc_ = 0;
};

// Everything about the checkpoint in `path`; `broken` says what is wrong, if anything.
CheckpointListing inspect(Env& env, const std::string& path, bool verify) {
  CheckpointListing listing;
  listing.checkpoint.path = path;
  const std::string manifest = join_path(path, kCheckpointManifestName);
  try {
    if (!env.exists(manifest)) {
      listing.broken = fmt::format("{} is missing", kCheckpointManifestName);
      return listing;
    }
    listing.checkpoint = parse_manifest(env.read_text(manifest), manifest);
    listing.checkpoint.path = path;
    listing.age_seconds =
        static_cast<double>(std::max<int64_t>(0, seconds_now() - listing.checkpoint.saved_at));
    listing.broken = check_files(env, listing.checkpoint, verify);
  } catch (const Error& error) {
    listing.broken = error.what();
  }
  return listing;
}

}  // namespace

int64_t Checkpoint::total_bytes() const {
  int64_t total = 0;
  for (const CheckpointFile& file : files) total += file.size;
  return total;
}

bool Checkpoint::has_file(std::string_view name) const {
  return std::any_of(files.begin(), files.end(),
                     [&](const CheckpointFile& file) { return file.name == name; });
}

std::string Checkpoint::file_path(std::string_view name) const {
  require(has_file(name), "[{}] has no file {}", path, name);
  return join_path(path, name);
}

void CheckpointWriter::check_name(const std::string& name) const {
  require(is_plain_name(name) && name != kCheckpointManifestName,
          "[{}] \"{}\" cannot be the name of a checkpoint's file", directory_, name);
  for (const CheckpointFile& file : files_) {
    require(file.name != name, "[{}] file {} is written twice", directory_, name);
  }
}

void CheckpointWriter::file(const std::string& name, const std::function<void(Sink&)>& write) {
  check_name(name);
  WritableFile file = env_.create(join_path(directory_, name));
  ChecksumSink sink(file);
  write(sink);
  file.sync();
  file.close();
  files_.push_back({name, sink.size(), sink.crc()});
}

void CheckpointWriter::add(CheckpointFile file) {
  check_name(file.name);
  files_.push_back(std::move(file));
}

Checkpoint CheckpointStore::save(int64_t step, const std::function<void(CheckpointWriter&)>& write,
                                 const CheckpointSummary& summary, bool best) {
  const CheckpointDraft draft = begin(step);
  CheckpointWriter writer(env_, path_of(draft));
  try {
    write(writer);
  } catch (const std::exception&) {
    abandon(draft);
    throw;
  }
  return publish(draft, writer.files(), summary, best);
}

CheckpointDraft CheckpointStore::begin(int64_t step) {
  require(step >= 0, "[{}] step {} cannot be saved, expected 0 or more", directory_, step);
  env_.make_directories(directory_);
  clean_leftovers();
  CheckpointDraft draft{
      .step = step, .saved_at = seconds_now(), .name = working_name(kTemporary, step_name(step))};
  for (const CheckpointListing& other : scan(false)) {
    draft.sequence = std::max(draft.sequence, other.checkpoint.sequence + 1);
  }
  try {
    env_.make_directory(path_of(draft));
  } catch (const std::exception&) {
    abandon(draft);
    throw;
  }
  return draft;
}

void CheckpointStore::abandon(const CheckpointDraft& draft) {
  // A full disk needs the space back.
  if (env_.exists(path_of(draft))) remove_quietly(path_of(draft));
}

Checkpoint CheckpointStore::publish(const CheckpointDraft& draft, const std::vector<CheckpointFile>& files,
                                    const CheckpointSummary& summary, bool best) {
  Checkpoint checkpoint{.step = draft.step,
                        .sequence = draft.sequence,
                        .saved_at = draft.saved_at,
                        .summary = summary,
                        .files = files};
  const std::string name = step_name(draft.step), temporary = path_of(draft);
  try {
    env_.write_synced(join_path(temporary, kCheckpointManifestName), manifest_text(checkpoint));
    env_.sync_directory(temporary);
    rename_to(temporary, name);
  } catch (const std::exception&) {
    abandon(draft);
    throw;
  }
  write_pointer("latest", name);
  if (best) write_pointer("best", name);
  const std::string replaced = path_of(working_name(kReplaced, name));
  if (env_.exists(replaced)) remove_quietly(replaced);
  checkpoint.path = path_of(name);
  return checkpoint;
}

// Gives the finished folder `temporary` its name. A folder that already has the name is first moved aside; readers
// still find it there while the name is free.
void CheckpointStore::rename_to(const std::string& temporary, const std::string& name) {
  const std::string final_path = path_of(name), aside = path_of(working_name(kReplaced, name));
  const bool replaces = env_.exists(final_path);
  if (replaces) {
    const CheckpointListing old = inspect(env_, final_path, false);
    log_warning("[{}] already exists ({}) and is replaced", final_path,
                old.is_whole() ? "complete" : old.broken);
    env_.rename(final_path, aside);
  }
  try {
    env_.rename(temporary, final_path);
  } catch (const IoError&) {
    if (replaces) env_.rename(aside, final_path);
    throw;
  }
  env_.sync_directory(directory_);
}

void CheckpointStore::write_pointer(const char* name, const std::string& target) {
  WritableFile file = create_anew(env_, path_of(fmt::format("{}{}-{}", kTemporary, name, random_digits())));
  file.append(fmt::format("{} {:08x}\n", target, crc32c(target)));
  file.sync();
  file.close();
  env_.rename(file.path(), path_of(name));
  env_.sync_directory(directory_);
}

// The folder that `latest` or `best` names. nullopt with an empty `fault`: no such pointer.
std::optional<std::string> CheckpointStore::read_pointer(const char* name, std::string& fault) const {
  fault.clear();
  const std::string path = path_of(name);
  try {
    if (!env_.exists(path)) return std::nullopt;
    const std::string text = env_.read_text(path, 4096);
    const std::string target = text.substr(0, text.find(' '));
    if (parse_step(target) && text == fmt::format("{} {:08x}\n", target, crc32c(target))) return target;
    fault = fmt::format("[{}] does not match its checksum", path);
  } catch (const Error& error) {
    fault = error.what();
  }
  return std::nullopt;
}

void CheckpointStore::mark_best(int64_t step) {
  const CheckpointListing listing = inspect(env_, path_of(step_name(step)), false);
  require(listing.is_whole(), "[{}] cannot be the best: {}", listing.checkpoint.path, listing.broken);
  write_pointer("best", step_name(step));
}

std::vector<int64_t> CheckpointStore::prune(int64_t save_total_limit) {
  if (save_total_limit < 0 || save_total_limit == 1) {
    fail_config("[save_total_limit] is {}, expected 0 (keep all) or at least 2", save_total_limit);
  }
  std::vector<int64_t> removed;
  if (save_total_limit == 0 || !env_.is_directory(directory_)) return removed;

  std::vector<CheckpointListing> whole = scan(false);
  std::erase_if(whole, [](const CheckpointListing& listing) { return !listing.is_whole(); });
  std::set<std::string> kept;
  for (const char* pointer : {"best", "latest"}) {
    std::string fault;
    const auto target = read_pointer(pointer, fault);
    if (!fault.empty()) {
      log_warning("{}: no checkpoint is removed until this is fixed", fault);
      return removed;
    }
    for (const CheckpointListing& listing : whole) {
      if (target && listing.checkpoint.path == path_of(*target)) kept.insert(listing.checkpoint.path);
    }
  }
  for (const CheckpointListing& listing : whole) {  // newest first
    if (std::cmp_greater_equal(kept.size(), save_total_limit)) break;
    kept.insert(listing.checkpoint.path);
  }
  for (auto victim = whole.rbegin(); victim != whole.rend(); ++victim) {
    const Checkpoint& checkpoint = victim->checkpoint;
    if (kept.count(checkpoint.path)) continue;
    // First renamed as a whole, and synced: a half-removed step_N must never be visible.
    const std::string trash = path_of(working_name(kTrash, step_name(checkpoint.step)));
    try {
      env_.rename(checkpoint.path, trash);
      env_.sync_directory(directory_);
      removed.push_back(checkpoint.step);
    } catch (const IoError& error) {
      log_warning("{}: this old checkpoint was not removed", error.what());
      break;
    }
    remove_quietly(trash);
  }
  return removed;
}

void CheckpointStore::clean_leftovers() {
  if (!env_.is_directory(directory_)) return;
  for (const std::string& name : env_.list(directory_)) {
    if (!is_leftover(name)) continue;
    const std::string path = path_of(name);
    if (name.starts_with(kReplaced)) {
      const std::string original = path_of(inner_name(name, kReplaced));
      if (!env_.exists(original)) {
        log_warning("[{}] is restored: a save was interrupted while replacing it", original);
        env_.rename(path, original);
        env_.sync_directory(directory_);
        continue;
      }
    }
    log_warning("[{}] is left over from an interrupted save or prune and is removed", path);
    remove_quietly(path);
  }
}

void CheckpointStore::remove_quietly(const std::string& path) {
  try {
    env_.remove_tree(path);
  } catch (const IoError& error) {
    log_warning("{}: it stays until the next save", error.what());
  }
}

std::vector<CheckpointListing> CheckpointStore::scan(bool verify) const {
  std::vector<CheckpointListing> found;
  if (!env_.is_directory(directory_)) return found;
  std::string fault;
  const auto latest = read_pointer("latest", fault), best = read_pointer("best", fault);
  const std::vector<std::string> names = env_.list(directory_);
  for (const std::string& name : names) {
    // A folder that an interrupted save moved aside counts under its old name while that name is free.
    const std::string stands_for = name.starts_with(kReplaced) ? inner_name(name, kReplaced) : name;
    const auto step = parse_step(stands_for);
    if (!step || (stands_for != name && std::binary_search(names.begin(), names.end(), stands_for))) continue;
    CheckpointListing listing = inspect(env_, path_of(name), verify);
    if (listing.is_whole() && listing.checkpoint.step != *step) {
      listing.broken = fmt::format("its manifest says step {}", listing.checkpoint.step);
    }
    listing.checkpoint.step = *step;
    listing.is_latest = latest == stands_for;
    listing.is_best = best == stands_for;
    found.push_back(std::move(listing));
  }
  std::stable_sort(found.begin(), found.end(), [](const CheckpointListing& a, const CheckpointListing& b) {
    return std::tuple(a.checkpoint.sequence, a.checkpoint.step) >
           std::tuple(b.checkpoint.sequence, b.checkpoint.step);
  });
  return found;
}

std::vector<CheckpointListing> CheckpointStore::list(bool verify) const {
  std::vector<CheckpointListing> found = scan(verify);
  std::stable_sort(found.begin(), found.end(), [](const CheckpointListing& a, const CheckpointListing& b) {
    return a.checkpoint.step < b.checkpoint.step;
  });
  return found;
}

std::optional<Checkpoint> CheckpointStore::open_latest(const FileCheck& check) const {
  const std::vector<CheckpointListing> found = scan(false);
  if (found.empty()) return std::nullopt;
  std::string fault;
  const auto pointed = read_pointer("latest", fault);
  if (!fault.empty()) log_warning("{}: using the newest complete checkpoint", fault);

  // A folder without a readable manifest may have been the newest, so the user is always told.
  const CheckpointListing* chosen = nullptr;
  for (const CheckpointListing& listing : found) {
    if (chosen && !listing.checkpoint.files.empty()) continue;
    std::string broken = listing.broken;
    if (broken.empty() && !chosen)
      broken = check ? check(listing.checkpoint) : check_files(env_, listing.checkpoint, true);
    if (!broken.empty()) {
      log_warning("[{}] is not complete and is skipped: {}", listing.checkpoint.path, broken);
    } else if (!chosen) {
      chosen = &listing;
    }
  }
  require(chosen != nullptr, "[{}] holds {} checkpoints and none is complete", directory_, found.size());
  if (pointed && !env_.exists(path_of(*pointed)) && chosen->checkpoint.path != path_of(*pointed)) {
    log_warning("[{}] is the latest checkpoint but no longer exists; using {}", path_of(*pointed),
                chosen->checkpoint.path);
  }
  return chosen->checkpoint;
}

std::optional<Checkpoint> CheckpointStore::open_best() const {
  std::string fault;
  const auto target = read_pointer("best", fault);
  require(fault.empty(), "{}", fault);
  if (!target) return std::nullopt;
  return open_checkpoint(env_, path_of(*target));
}

Checkpoint open_checkpoint(Env& env, const std::string& path, bool verify) {
  require(env.is_directory(path), "[{}] is not a checkpoint: {}", path,
          env.exists(path) ? "it is a file, expected a folder" : "there is no such folder");
  CheckpointListing listing = inspect(env, path, verify);
  require(listing.is_whole(), "[{}] is not a complete checkpoint: {}", path, listing.broken);
  return listing.checkpoint;
}

void verify_files(Env& env, const Checkpoint& checkpoint, std::span<const std::string_view> names) {
  Checkpoint part = checkpoint;
  std::erase_if(part.files, [&](const CheckpointFile& file) {
    return std::find(names.begin(), names.end(), file.name) == names.end();
  });
  const std::string broken = check_files(env, part, true);
  require(broken.empty(), "[{}] is not a complete checkpoint: {}", checkpoint.path, broken);
}

RunLock::RunLock(Env& env, const std::string& run_directory) {
  env.make_directories(run_directory);
  const std::string path = join_path(run_directory, "run.lock");
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  try {
    lock_ = env.lock(path, fmt::format("{} {}\n", ::getpid(), host));
  } catch (const IoError& error) {
    if (error.code() == EWOULDBLOCK) {
      std::string holder = env.read_text(path, 4096);  // "1234 host\n"
      while (holder.ends_with('\n')) holder.pop_back();
      const size_t space = holder.find(' ');
      if (space == holder.npos) fail("[{}] is in use by another process", run_directory);
      fail("[{}] is in use by process {} on {}: two processes must not write one run folder", run_directory,
           holder.substr(0, space), holder.substr(space + 1));
    }
    if (error.code() != ENOSYS && error.code() != ENOTSUP && error.code() != ENOLCK) throw;
    log_warning(
        "{}: this file system has no locks, so nothing stops a second process from using this run folder",
        error.what());
  }
}

}  // namespace octet
