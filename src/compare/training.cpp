#include "compare/training.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/exit_codes.h"
#include "base/log.h"
#include "base/print.h"
#include "base/signals.h"
#include "checkpoint/model_folder.h"
#include "compare/child_process.h"
#include "io/checkpoint_store.h"
#include "io/env.h"
#include "report/run_folder.h"
#include "report/text.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

constexpr double kLookSeconds = 0.2;
constexpr size_t kShownLines = 12;
constexpr int64_t kResumedSteps = 5;
constexpr const char* kSettingsFile = "compare.yaml";

std::string read_all(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct Progress {
  int64_t step = 0;
  double loss = 0, tokens_per_second = 0;
};

// The last whole line of a file that is just being written. Quietly: half a line is no news while a run goes on.
std::optional<Progress> progress_of(const std::string& folder) {
  std::ifstream file(fs::path(folder) / "metrics.jsonl", std::ios::binary | std::ios::ate);
  if (!file.is_open()) return std::nullopt;
  const auto size = static_cast<int64_t>(file.tellg());
  file.seekg(size - std::min<int64_t>(size, 1 << 20));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t end = text.rfind('\n');
  if (end == std::string::npos || end == 0) return std::nullopt;
  const size_t before = text.rfind('\n', end - 1);
  const size_t begin = before == std::string::npos ? 0 : before + 1;
  const auto record = nlohmann::json::parse(text.substr(begin, end - begin), nullptr, false);
  if (!record.is_object()) return std::nullopt;
  const auto number = [&](const char* name) {
    const auto found = record.find(name);
    return found != record.end() && found->is_number() ? found->get<double>() : std::nan("");
  };
  const double step = number("step");
  if (!std::isfinite(step)) return std::nullopt;
  return Progress{static_cast<int64_t>(step), number("loss"), number("tokens_per_second")};
}

std::vector<std::string> train_command(const TrainingOptions& options, std::vector<std::string> rest) {
  std::vector<std::string> words;
  if (options.processes > 1) words = {"launch", "-n", fmt::format("{}", options.processes)};
  words.emplace_back("train");
  words.insert(words.end(), rest.begin(), rest.end());
  words.emplace_back("--progress=plain");
  return words;
}

class ProgressLine {
 public:
  ProgressLine(const PlannedRun& run, const TrainingOptions& options) : run_(run), options_(options) {}
  ~ProgressLine() { clear(); }

  void look() {
    if (!options_.shows_progress) return;
    const std::optional<Progress> record = progress_of(run_.folder);
    if (!record || record->step == shown_) return;
    clear();
    print_stderr("{}: step {} of {}, loss {:.4f}, {} tokens/s", run_.name, record->step, options_.steps,
                 record->loss, human_count(record->tokens_per_second));
    std::fflush(stderr);
    shown_ = record->step;
  }

 private:
  void clear() {
    if (shown_ >= 0) std::fputs("\r\x1b[K", stderr);
  }
  const PlannedRun& run_;
  const TrainingOptions& options_;
  int64_t shown_ = -1;
};

void write_settings(const PlannedRun& run) {
  posix_env().make_directories(run.folder);
  posix_env().replace_file(join_path(run.folder, kSettingsFile), run.yaml);
}

// Which lines of two small YAML texts differ: "max_steps: 100 (now max_steps: 50)".
std::string changed_lines(const std::string& before, const std::string& now) {
  const auto lines = [](const std::string& text) {
    std::map<std::string, std::string> result;
    size_t begin = 0;
    while (begin < text.size()) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      const std::string line = text.substr(begin, end - begin);
      result[line.substr(0, line.find(':'))] = line;
      begin = end + 1;
    }
    return result;
  };
  const auto old_lines = lines(before), new_lines = lines(now);
  std::vector<std::string> changes;
  for (const auto& [key, line] : new_lines) {
    const auto found = old_lines.find(key);
    if (found == old_lines.end())
      changes.push_back(fmt::format("{}, which it did not set", line));
    else if (found->second != line)
      changes.push_back(fmt::format("{}, it had {}", line, found->second));
  }
  for (const auto& [key, line] : old_lines) {
    if (!new_lines.contains(key)) changes.push_back(fmt::format("no {}, it had {}", key, line));
  }
  return fmt::format("{}", fmt::join(changes, "; "));
}

enum class Found { Nothing, Part, Whole };

Found look_for(const PlannedRun& run, int64_t steps) {
  const std::string settings = join_path(run.folder, kSettingsFile);
  if (!posix_env().exists(settings)) {
    if (is_run_folder(run.folder))
      fail_config("{} holds a run that 'octet compare' did not start; choose another run_name", run.folder);
    return Found::Nothing;
  }
  if (const std::string before = read_all(settings); before != run.yaml) {
    if (!is_run_folder(run.folder)) return Found::Nothing;
    fail_config("{} holds a run with other settings ({}); choose another run_name, or remove the folder",
                run.folder, changed_lines(before, run.yaml));
  }
  if (!is_run_folder(run.folder)) return Found::Nothing;
  const std::vector<StepRecord> records = read_run_folder(run.folder).records;
  return !records.empty() && records.back().step >= steps ? Found::Whole : Found::Part;
}

void train_one(const PlannedRun& run, const TrainingOptions& options, Found found, StopSignal& stop) {
  write_settings(run);
  std::vector<std::string> words = {join_path(run.folder, kSettingsFile)};
  if (found == Found::Part) words.emplace_back("--resume=latest");
  const std::string log = join_path(run.folder, "compare.log");
  log_info("{}: training {}{}", run.name, counted(options.steps, "step"),
           found == Found::Part ? ", continued where it was stopped" : "");
  ChildProcess child(train_command(options, words), log, log);
  int code = 0;
  {
    ProgressLine progress(run, options);
    bool was_told = false;
    code = child.wait(kLookSeconds, [&] {
      progress.look();
      if (stop.requested() && !was_told) {
        child.send(stop.number());
        was_told = true;
      }
    });
  }
  if (stop.requested()) throw Stopped{kExitRequeue};
  if (code == 0) return;
  const std::string tail = terminal_safe(last_lines(log, kShownLines));
  if (code == kExitUsage) fail_config("[{}] cannot be trained:\n{}", run.name, tail);
  // A run whose loss became NaN has metrics, and those say more than a failure does.
  if (code == kExitNotFinite && is_run_folder(run.folder)) {
    log_warning("{}: training stopped because no gradient was finite; see {}", run.name, log);
    return;
  }
  fail("[{}] training ended with exit code {}; the last lines of {}:\n{}", run.name, code, log, tail);
}

// The checkpoints of a run, the oldest first.
std::vector<Checkpoint> checkpoints_of(const std::string& folder) {
  std::vector<Checkpoint> all;
  for (const std::string& directory : checkpoint_folders(posix_env(), folder)) {
    for (const CheckpointListing& listing : CheckpointStore(posix_env(), directory).list()) {
      if (listing.is_whole()) all.push_back(listing.checkpoint);
    }
  }
  std::ranges::sort(all, {}, &Checkpoint::step);
  return all;
}

}  // namespace

void train_variants(const std::vector<PlannedRun>& runs, const TrainingOptions& options) {
  // All are looked at before the first one is trained.
  std::vector<Found> found;
  for (const PlannedRun& run : runs) found.push_back(look_for(run, options.steps));
  survive_broken_pipes();
  StopSignal stop;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (found[i] == Found::Whole) {
      log_info("{}: already trained with these settings, reused from {}", runs[i].name, runs[i].folder);
    } else {
      train_one(runs[i], options, found[i], stop);
    }
  }
}

SampleCheck try_sample(const PlannedRun& run) {
  SampleCheck check{.variant = run.variant};
  const std::string output = join_path(run.folder, "compare_sample.txt");
  std::vector<std::string> words = {"generate", run.folder, "--max_new_tokens=48",
                                    fmt::format("--prompt={}", run.config.sample_prompt),
                                    fmt::format("--device={}", config_text(run.config, "device"))};
  if (run.config.num_threads > 0) words.push_back(fmt::format("--num_threads={}", run.config.num_threads));
  const std::string messages = join_path(run.folder, "compare_sample.log");
  ChildProcess child(words, output, messages);
  const int code = child.wait(kLookSeconds, [] {});
  if (code != 0) {
    check.error = fmt::format("octet generate ended with exit code {}: {}", code, last_lines(messages, 2));
    return check;
  }
  check.text = read_all(output);
  while (!check.text.empty() && check.text.back() == '\n') check.text.pop_back();
  // The prompt is no work of the model.
  if (check.text.starts_with(run.config.sample_prompt)) check.text.erase(0, run.config.sample_prompt.size());
  return check;
}

ResumeCheck try_resume(const PlannedRun& run, const TrainingOptions& options) {
  ResumeCheck check;
  const std::vector<Checkpoint> checkpoints = checkpoints_of(run.folder);
  const auto before_end = std::ranges::find_if(
      checkpoints, [&](const Checkpoint& c) { return c.step < options.steps && c.step > 0; });
  if (before_end == checkpoints.end()) {
    check.error = fmt::format("{} has no checkpoint before its last step", run.folder);
    return check;
  }
  check.checkpoint_step = before_end->step;
  // Next to the run, and new each time: an old try proves nothing about this program.
  const std::string name = run.name + "-resumed";
  const std::string folder = join_path(run.config.output_dir, name);
  if (posix_env().exists(folder) && !posix_env().exists(join_path(folder, "compare.log"))) {
    check.error = fmt::format("{} is in the way; it is not of 'octet compare'", folder);
    return check;
  }
  std::error_code ignored;
  fs::remove_all(folder, ignored);
  posix_env().make_directories(folder);
  const std::string log = join_path(folder, "compare.log");
  ChildProcess child(
      train_command(options, {join_path(run.folder, kSettingsFile), "--resume=" + before_end->path,
                              "--run_name=" + name, "--save_strategy=no"}),
      log, log);
  const int64_t last = std::min(options.steps, check.checkpoint_step + kResumedSteps);
  bool was_told = false;
  const int code = child.wait(kLookSeconds, [&] {
    const std::optional<Progress> record = progress_of(folder);
    if (record && record->step >= last && !was_told) {
      child.send(SIGTERM);
      was_told = true;
    }
  });
  if (code != 0 && !was_told) {
    check.error = fmt::format("resuming ended with exit code {}: {}", code, last_lines(log, 3));
    return check;
  }
  check.compare(read_run_folder(run.folder).records, read_run_folder(folder).records);
  if (check.steps == 0) check.error = "the resumed run has no step in common with the run";
  return check;
}

}  // namespace octet
