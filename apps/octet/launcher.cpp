#include "launcher.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "base/clock.h"
#include "base/cpu_threads.h"
#include "base/environment.h"
#include "base/error.h"
#include "base/exit_codes.h"
#include "base/log.h"
#include "base/print.h"
#include "base/process.h"
#include "base/signals.h"
#include "base/text.h"
#include "dist/rendezvous_messages.h"

namespace octet {
namespace {

using std::chrono::seconds;
namespace fs = std::filesystem;

constexpr seconds kGrace{15};      // for the ranks to notice a failure themselves
constexpr seconds kAfterTerm{30};  // from SIGTERM to SIGKILL
constexpr size_t kShownLines = 20, kShownRanks = 3;

class ScratchFolder {
 public:
  ScratchFolder() {
    std::error_code error;
    const fs::path place = fs::temp_directory_path(error);
    if (error)
      fail_config("[launch] TMPDIR is {}, which is not a folder",
                  environment_value("TMPDIR").value_or("not set"));
    std::string pattern = (place / "octet-launch-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr)
      fail("[launch] {} cannot be made: {}", pattern, std::strerror(errno));
    path_ = pattern;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string last_lines(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::deque<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back(line);
    if (lines.size() > kShownLines) lines.pop_front();
  }
  return fmt::format("{}", fmt::join(lines, "\n"));
}

// One start of all processes of this node.
class Attempt {
 public:
  Attempt(const LaunchPlan& plan, const WaitingSignals& signals, std::map<std::string, std::string> shared,
          std::string folder)
      : plan_(plan), signals_(signals), shared_(std::move(shared)), folder_(std::move(folder)) {}

  // Returns when all processes have ended.
  int run() {
    for (int i = 0; i < plan_.processes; ++i) start(i);
    while (!running_.empty()) {
      const int number = signals_.next(200);
      if (number == SIGHUP) {
        forward(SIGTERM);
      } else if (number != 0 && number != SIGCHLD) {
        forward(number);
      }
      collect();
      end_the_rest();
    }
    return combined_exit_code(ends_);
  }
  bool was_signalled() const { return was_signalled_; }

 private:
  std::string output_of(int local_rank) const {
    return fmt::format("{}/rank_{}", folder_, rank_of(local_rank));
  }
  int rank_of(int local_rank) const { return plan_.node_rank * plan_.processes + local_rank; }

  void start(int local_rank) {
    std::map<std::string, std::string> variables = shared_;
    variables["OCTET_RANK"] = std::to_string(rank_of(local_rank));
    variables["OCTET_LOCAL_RANK"] = std::to_string(local_rank);
    OctetStart child{.arguments = plan_.command, .signal_mask = &signals_.before()};
    child.environment =
        environment_entries([&](std::string_view name) { return variables.contains(std::string(name)); });
    for (const auto& [name, value] : variables)
      child.environment.push_back(fmt::format("{}={}", name, value));
    try {
      const Descriptor output =
          rank_of(local_rank) == 0 ? Descriptor() : open_output(output_of(local_rank), O_TRUNC, 0600);
      child.output = child.messages = output.get();
      running_[start_octet(std::move(child))] = local_rank;
    } catch (const Error& error) {
      forward(SIGKILL);
      fail("[launch] rank {} cannot be started: {}", rank_of(local_rank), error.what());
    }
  }

  void forward(int number) {
    was_signalled_ = true;
    send_all(number);
  }
  void send_all(int number) const {
    for (const auto& [pid, local_rank] : running_) kill(pid, number);
  }

  void collect() {
    int status = 0;
    pid_t pid = 0;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
      const auto found = running_.find(pid);
      if (found == running_.end()) continue;
      ProcessEnd end;
      (WIFEXITED(status) ? end.code : end.signal) =
          WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status);
      ends_.push_back(end);
      // Also with a checkpoint: one that hangs must not outlive the others.
      if ((end.signal != 0 || end.code != kExitDone) && !first_failure_) first_failure_ = Clock::now();
      // A rank that could go on says nothing here, unless the first rank could not speak for it.
      // Neither does one that ended at once because the user asked twice.
      const bool was_asked = was_signalled_ && (end.signal != 0 || end.code > 128);
      const bool failed =
          !was_asked && (end.signal != 0 || (end.code != kExitDone && end.code != kExitRequeue));
      const bool speaks = end.code == kExitRequeue && rank_of(found->second) != 0 &&
                          !last_lines(output_of(found->second)).empty();
      if (failed || speaks) report(found->second, end);
      running_.erase(found);
    }
  }

  // Many ranks fail with the same words; those of a few are enough.
  void report(int local_rank, const ProcessEnd& end) {
    const std::string how =
        end.signal != 0 ? fmt::format("was killed by signal {} ({})", end.signal, strsignal(end.signal))
                        : fmt::format("ended with code {}", end.code);
    const int rank = rank_of(local_rank);
    const std::string text = rank == 0 ? "" : last_lines(output_of(local_rank));
    const bool is_shown = !text.empty() && shown_.size() < kShownRanks && shown_.insert(text).second;
    print_stderr("[launch] rank {} {}{}\n", rank, how, is_shown ? "; its last lines:" : "");
    if (!is_shown) return;
    std::string_view rest = text;
    while (!rest.empty()) {
      const size_t end_of_line = std::min(rest.find('\n'), rest.size());
      print_stderr("[rank {}] {}\n", rank, rest.substr(0, end_of_line));
      rest.remove_prefix(std::min(end_of_line + 1, rest.size()));
    }
  }

  void end_the_rest() {
    if (!first_failure_ || running_.empty()) return;
    const auto since = Clock::now() - *first_failure_;
    if (since >= kGrace && !sent_term_) {
      sent_term_ = true;
      send_all(SIGTERM);
      send_all(SIGCONT);  // a stopped process gets no other signal before
    }
    if (since >= kGrace + kAfterTerm && !sent_kill_) {
      sent_kill_ = true;
      send_all(SIGKILL);
    }
  }

  const LaunchPlan& plan_;
  const WaitingSignals& signals_;
  const std::map<std::string, std::string> shared_;
  const std::string folder_;
  std::map<pid_t, int> running_;  // local rank by process
  std::vector<ProcessEnd> ends_;  // in the order in which they ended
  std::set<std::string> shown_;
  std::optional<Clock::time_point> first_failure_;
  bool was_signalled_ = false, sent_term_ = false, sent_kill_ = false;
};

int64_t last_step(const std::string& file) {
  std::ifstream stream(file);
  int64_t step = -1;
  return stream >> step ? step : -1;
}

bool has_resume(const std::vector<std::string>& command) {
  return std::ranges::any_of(
      command, [](const std::string& word) { return word == "--resume" || word.starts_with("--resume="); });
}

}  // namespace

int combined_exit_code(const std::vector<ProcessEnd>& ends) {
  for (const ProcessEnd& end : ends) {
    if (end.signal == 0 && end.code != kExitDone && end.code != kExitRequeue) return end.code;
  }
  // A rank that was killed says nothing about the checkpoint; those that saw it happen do.
  for (const ProcessEnd& end : ends) {
    if (end.signal == 0 && end.code == kExitRequeue) return kExitRequeue;
  }
  for (const ProcessEnd& end : ends) {
    if (end.signal != 0) return 128 + end.signal;
  }
  return kExitDone;
}

int launch_processes(const LaunchPlan& plan) {
  survive_broken_pipes();
  const ScratchFolder scratch;
  const WaitingSignals signals;
  LaunchPlan current = plan;
  const std::string progress = scratch.path() + "/progress";
  const std::string job = !plan.job.empty() ? plan.job
                          : plan.nodes > 1  ? "launch at " + plan.master
                                            : random_hex(16);
  std::map<std::string, std::string> shared = {{"OCTET_RANKS", std::to_string(plan.nodes * plan.processes)},
                                               {"OCTET_LOCAL_RANKS", std::to_string(plan.processes)},
                                               {"OCTET_MASTER", plan.nodes > 1 ? plan.master : "127.0.0.1"},
                                               {"OCTET_PROGRESS_FILE", progress}};
  if (!plan.secret) shared["OCTET_SECRET"] = random_hex(32);
  if (std::getenv("OMP_NUM_THREADS") == nullptr)
    shared["OMP_NUM_THREADS"] = std::to_string(std::max(1, default_threads().count / plan.processes));

  int64_t step = -1;
  int without_step = 0;
  for (int restarts = 0;; ++restarts) {
    // Another key: a process that is left over from the last time must not be taken for one of these.
    shared["OCTET_JOB"] = restarts == 0 ? job : fmt::format("{} restart {}", job, restarts);
    Attempt attempt(current, signals, shared, scratch.path());
    const int code = attempt.run();
    if (code != kExitRequeue || attempt.was_signalled() || plan.max_restarts == 0) return code;
    const int64_t now_at = last_step(progress);
    without_step = now_at > step ? 1 : without_step + 1;
    step = std::max(step, now_at);
    if (without_step > plan.max_restarts) {
      log_warning("[launch] {} restarts without a new step; giving up", plan.max_restarts);
      return kExitFailure;
    }
    if (!has_resume(current.command)) current.command.insert(current.command.end(), {"--resume", "latest"});
    log_warning("[launch] restart {}: the processes ended after a failure, at step {}", restarts + 1,
                step < 0 ? std::string("unknown") : std::to_string(step));
  }
}

}  // namespace octet
