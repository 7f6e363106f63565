#include "report/run_follow.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "base/regular_file.h"
#include "report/metrics.h"
#include "report/plan_facts.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = "config.yaml";
constexpr const char* kPlan = "plan.json";
constexpr const char* kLock = "run.lock";
constexpr size_t kRemembered = 64;  // bytes before the place that was read to

double seconds_of(const timespec& time) {
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

// "1: FLOCK  ADVISORY  WRITE 4242 fe:00:1234 0 EOF". Taking the lock to see could make a run that is just starting fail.
// Some file systems (btrfs, overlayfs) show another device here than stat() gives: then the process decides.
bool is_locked_here(const struct stat& file, int64_t process) {
  std::ifstream locks("/proc/locks");
  const std::string inode = fmt::format(":{}", file.st_ino);
  const std::string whole = fmt::format("{:02x}:{:02x}{}", major(file.st_dev), minor(file.st_dev), inode);
  const std::string holder = fmt::format("{}", process);
  for (std::string line; std::getline(locks, line);) {
    std::istringstream words(line);
    std::string before;
    for (std::string word; words >> word; before = word) {
      if (word == whole || (process > 0 && word.ends_with(inode) && before == holder)) return true;
    }
  }
  return false;
}

namespace {

bool is_alive(int64_t process) {
  return process > 0 && (::kill(static_cast<pid_t>(process), 0) == 0 || errno == EPERM);
}

// When the file was changed, in nanoseconds; nothing if there is none.
std::optional<int64_t> change_of(const fs::path& path) {
  struct stat file {};
  if (::stat(path.c_str(), &file) != 0) return std::nullopt;
  return int64_t{file.st_mtim.tv_sec} * 1'000'000'000 + file.st_mtim.tv_nsec;
}

std::string own_host() {
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  return host;
}

}  // namespace

bool looks_like_run(const std::string& path) {
  std::error_code ignored;
  for (const char* name : {kMetricsName, kConfig, kLock}) {
    if (fs::is_regular_file(fs::path(path) / name, ignored)) return true;
  }
  return false;
}

std::vector<std::string> run_folders_in(const std::string& path) {
  std::vector<std::string> runs;
  std::error_code error;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
    if (looks_like_run(entry->path().string())) runs.push_back(entry->path().string());
  }
  std::sort(runs.begin(), runs.end());
  return runs;
}

RunFollower::RunFollower(const std::string& given) {
  fs::path path = given;
  std::error_code ignored;
  if (!fs::exists(path, ignored))
    fail_config("[{}] is not there, expected the folder of a run or its metrics.jsonl", given);
  if (fs::is_directory(path, ignored)) {
    if (!looks_like_run(given)) fail_config("[{}] is not the folder of a run: it has no config.yaml", given);
    path /= kMetricsName;
  }
  metrics_path_ = path.string();
  const fs::path folder = fs::absolute(path).lexically_normal().parent_path();
  const bool whole = path.filename() == kMetricsName;
  run_.name = whole ? folder.filename().string() : path.filename().string();
  if (whole) run_.folder = folder.string();
  require_regular_file(metrics_path_);
  refresh();
}

bool RunFollower::refresh() {
  const bool is_new = read_new_lines();
  if (run_.folder.empty()) return is_new;
  look_at_settings();
  look_at_lock();
  return is_new;
}

void RunFollower::look_at_settings() {
  const fs::path config = fs::path(run_.folder) / kConfig, plan = fs::path(run_.folder) / kPlan;
  // A half-written file will change again.
  if (const auto changed = change_of(config); changed && *changed != settings_changed_) {
    settings_changed_ = *changed;
    try {
      read_run_settings(config.string(), run_);
    } catch (const Error&) {
    }
  }
  if (const auto changed = change_of(plan); changed && *changed != plan_changed_) {
    plan_changed_ = *changed;
    try {
      const std::optional<PlanFacts> facts = read_plan_facts(run_.folder);
      planned_steps_ = facts ? facts->max_steps : 0;
    } catch (const Error&) {
    }
  }
}

void RunFollower::look_at_lock() {
  holder_ = Holder::Unknown;
  struct stat file {};
  const std::string path = (fs::path(run_.folder) / kLock).string();
  if (::stat(path.c_str(), &file) != 0 || !S_ISREG(file.st_mode)) return;
  std::ifstream text(path);  // "1234 host"
  int64_t process = 0;
  host_.clear();
  text >> process >> host_;
  const bool is_here = host_ == own_host();
  if (is_locked_here(file, is_here ? process : 0)) {
    holder_ = Holder::Process;
  } else if (is_here && !is_alive(process)) {
    holder_ = Holder::Nobody;
  }
}

bool RunFollower::read_new_lines() {
  struct stat file {};
  if (::stat(metrics_path_.c_str(), &file) != 0 || !S_ISREG(file.st_mode))
    return false;  // no step yet, or being replaced
  changed_at_ = seconds_of(file.st_mtim);
  std::ifstream stream(metrics_path_, std::ios::binary);
  if (!stream.is_open()) return false;
  const auto begin = offset_ - static_cast<int64_t>(last_bytes_.size());
  std::string before(last_bytes_.size(), '\0');
  stream.seekg(begin);
  stream.read(before.data(), static_cast<std::streamsize>(before.size()));
  const bool is_same = static_cast<uint64_t>(file.st_ino) == inode_ && stream.good() && before == last_bytes_;
  bool has_changed = false;
  if (!is_same) {
    has_changed = offset_ > 0;
    inode_ = file.st_ino;
    offset_ = lines_ = unreadable_ = 0;
    last_bytes_.clear();
    run_.records.clear();
    stream.clear();
    stream.seekg(0);
  }
  std::string line;
  while (std::getline(stream, line)) {
    if (stream.eof()) break;  // half written
    offset_ += static_cast<int64_t>(line.size()) + 1;
    last_bytes_ = (last_bytes_ + line + "\n");
    if (last_bytes_.size() > kRemembered) last_bytes_.erase(0, last_bytes_.size() - kRemembered);
    add_line(line, ++lines_);
    has_changed = true;
  }
  return has_changed;
}

void RunFollower::add_line(std::string_view line, int64_t number) {
  if (line.find_first_not_of(" \t\r") == line.npos) return;
  std::vector<StepRecord>& records = run_.records;
  try {
    StepRecord record = parse_metrics_line(line, fmt::format("{}:{}", metrics_path_, number));
    while (!records.empty() && records.back().step >= record.step) records.pop_back();
    if (record.fp8_json) {
      if (last_fp8_ < records.size()) records[last_fp8_].fp8_json.reset();
      last_fp8_ = records.size();
    }
    if (!record.samples.empty()) {
      if (last_samples_ < records.size()) records[last_samples_].samples.clear();
      last_samples_ = records.size();
    }
    records.push_back(std::move(record));
  } catch (const Error&) {
    ++unreadable_;
  }
}

}  // namespace octet
