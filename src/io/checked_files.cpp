#include "io/checked_files.h"

#include <sys/stat.h>

#include <bit>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "base/log.h"
#include "base/text.h"
#include "io/cache_folder.h"
#include "io/sealed_json.h"
#include "io/temporary_file.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

constexpr const char* kName = "checked.json";
constexpr const char* kFormat = "octet checked files";
constexpr const char* kSeal = "crc32c";
constexpr int64_t kVersion = 1;
// A file system may keep times in steps of two seconds. A file that was changed that recently may change once more
// without a new time.
constexpr int64_t kRecentNs = 2'000'000'000;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string number_text(uint64_t number) {
  return fmt::format("{:016x}", number);
}

uint64_t parse_number(const std::string& text, const std::string& place) {
  require(text.size() == 16 && text.find_first_not_of("0123456789abcdef") == text.npos,
          "[{}] \"found\" is \"{}\", expected sixteen hexadecimal digits", place, text);
  return std::stoull(text, nullptr, 16);
}

}  // namespace

FileStamp file_stamp(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) throw IoError("stat", path, errno);
  return {.size = info.st_size,
          .modified_ns = int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec,
          .inode = std::bit_cast<int64_t>(uint64_t{info.st_ino}),
          .taken_ns = now_ns()};
}

bool is_checked_files_name(std::string_view name) {
  if (name == kName || name == fmt::format(".{}.lock", kName)) return true;
  return is_temporary_of(kName, name);
}

CheckedFiles::CheckedFiles(Env& env, const std::string& folder, Place place) : env_(env) {
  std::error_code error;
  const fs::path whole = fs::canonical(folder, error);
  folder_ = error ? folder : whole.string();
  if (place == Place::Folder) memories_.push_back({join_path(folder_, kName)});
  if (const std::string cache = octet_cache_folder(); !cache.empty()) {
    memories_.push_back(
        {join_path(join_path(cache, "checked"), fmt::format("{}.json", Hash64().add(folder_).text()))});
  }
  read();
}

bool CheckedFiles::is_in_folder(const std::string& path) const {
  return path == join_path(folder_, kName);
}

void CheckedFiles::read() {
  for (Memory& memory : memories_) memory.entries = read(memory);
}

CheckedFiles::Entries CheckedFiles::read(Memory& memory) const {
  const std::string& path = memory.path;
  try {
    if (!env_.exists(path)) return {};
    const nlohmann::json object = parse_sealed_json(env_.read_text(path), path, kSeal);
    require(object.is_object() && object.contains("format") && object["format"] == kFormat,
            "[{}] does not list checked files", path);
    const auto version = json_field<int64_t>(object, "version", path);
    require(version == kVersion, "[{}] has format version {}, this program reads version {}", path, version,
            kVersion);
    Entries entries;
    for (const nlohmann::json& file : json_field<nlohmann::json::array_t>(object, "files", path)) {
      require(file.is_object(), "[{}] \"files\" holds something that is not an object", path);
      entries[json_field<std::string>(file, "name", path)] = {
          .stamp = {.size = json_field<int64_t>(file, "size", path),
                    .modified_ns = json_field<int64_t>(file, "modified_ns", path),
                    .inode = json_field<int64_t>(file, "inode", path)},
          .found = parse_number(json_field<std::string>(file, "found", path), path)};
    }
    return entries;
  } catch (const Error& error) {
    if (std::exchange(memory.complaint, error.what()) != error.what()) {
      log_info("data: {}{}; it is ignored, and the files are checked again", error.what(), cache_note(path));
    }
    return {};
  }
}

std::optional<uint64_t> CheckedFiles::find(const std::string& name, const FileStamp& stamp) const {
  for (const Memory& memory : memories_) {
    const auto entry = memory.entries.find(name);
    if (entry != memory.entries.end() && entry->second.stamp == stamp) return entry->second.found;
  }
  return std::nullopt;
}

void CheckedFiles::begin_checks() {
  for (const Memory& memory : memories_) {
    const std::string parent = parent_path(memory.path);
    try {
      if (!is_in_folder(memory.path)) env_.make_directories(parent);
      lock_path_ = join_path(parent, fmt::format(".{}.lock", fs::path(memory.path).filename().string()));
      // The file is removed with the lock. So whoever has waited may hold the lock of a removed file, and takes a new one.
      // In the worst case two processes do the same work.
      for (bool waited = true; waited;) {
        waited = false;
        lock_.reset();
        lock_ = wait_for_lock(env_, lock_path_, "", [&] {
          waited = true;
          log_info("data: another process is checking the files of {}; waiting for it", folder_);
        });
      }
      read();
      return;
    } catch (const IoError&) {
      // A folder that cannot be written, or a file system without locks: then two processes may do the same work.
    }
  }
}

void CheckedFiles::remember(const std::string& name, const FileStamp& stamp, uint64_t found) {
  if (stamp.taken_ns - stamp.modified_ns < kRecentNs) return;
  news_[name] = {.stamp = stamp, .found = found};
}

void CheckedFiles::forget(const std::string& name) {
  for (Memory& memory : memories_) memory.has_changed = memory.entries.erase(name) > 0 || memory.has_changed;
}

std::string CheckedFiles::text(const Entries& known) const {
  Entries all = news_;
  for (const auto& [name, entry] : known) {
    if (env_.exists(join_path(folder_, name))) all.try_emplace(name, entry);
  }
  nlohmann::ordered_json object = {{"format", kFormat},
                                   {"version", kVersion},
                                   {"folder", printable(folder_)},
                                   {"files", nlohmann::ordered_json::array()}};
  for (const auto& [name, entry] : all) {
    object["files"].push_back({{"name", name},
                               {"size", entry.stamp.size},
                               {"modified_ns", entry.stamp.modified_ns},
                               {"inode", entry.stamp.inode},
                               {"found", number_text(entry.found)}});
  }
  return seal_json(object, kSeal);
}

void CheckedFiles::save() {
  std::string failure = "there is no cache folder";
  bool saved = news_.empty();
  for (Memory& memory : memories_) {
    if (saved && !memory.has_changed) continue;
    try {
      if (!is_in_folder(memory.path)) env_.make_directories(parent_path(memory.path));
      env_.replace_file(memory.path, text(memory.entries));
      saved = true;
      memory.has_changed = false;
      for (const auto& [name, entry] : news_) memory.entries.insert_or_assign(name, entry);
    } catch (const Error& error) {
      failure = error.what() + cache_note(memory.path);
    } catch (const nlohmann::json::exception&) {
      failure = "the name of a file is not UTF-8";
    }
  }
  if (!saved && !std::exchange(said_that_nothing_is_kept_, true))
    log_info("data: the next start checks the files of {} again, because {}", folder_, failure);
  news_.clear();
  release();
}

void CheckedFiles::release() {
  if (lock_) env_.sys_unlink(lock_path_);
  lock_.reset();
}

CheckedFiles& FileChecks::memory(const std::string& folder, CheckedFiles::Place place) {
  return memories_.try_emplace({folder, place}, env_, folder, place).first->second;
}

void FileChecks::add(const Amount& amount) {
  amount_.files += amount.files;
  amount_.bytes += amount.bytes;
  amount_.seconds += amount.seconds;
}

}  // namespace octet
