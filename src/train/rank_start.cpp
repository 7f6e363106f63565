#include "train/rank_start.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "base/hash.h"
#include "base/log.h"
#include "base/version.h"
#include "dist/pretend_ranks.h"
#include "dist/process_ranks.h"
#include "io/mapping_faults.h"
#include "plan/device_choice.h"

namespace octet {
namespace {

constexpr double kMostSilence = 30;  // seconds without a heartbeat

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(1e3 * seconds));
}

}  // namespace

std::unique_ptr<Ranks> join_ranks(const RankSpec& spec, const std::string& config) {
  const LaunchEnvironment launch = read_launch_environment(process_environment());
  if (const int ranks = spec.pretended; ranks > 0) {
    if (!launch.is_alone())
      fail_config("[pretend_ranks] is {}, but {} ranks are there", ranks, launch.place.ranks);
    return make_pretended_ranks(ranks, ranks, spec.pretended_gb);
  }
  if (launch.is_alone()) return make_single_rank();
  // The text itself, so that the first setting that differs can be named.
  constexpr size_t kMostConfig = 32768;
  ProcessRanksOptions options{.config = config.size() < kMostConfig ? config : Hash64().add(config).text(),
                              .version = octet_version(),
                              .rendezvous = milliseconds(spec.rendezvous_timeout),
                              .silence = milliseconds(std::min(spec.comm_timeout / 2, kMostSilence)),
                              .stall = milliseconds(spec.comm_timeout)};
  options.gpu = gpu_of_rank(spec.device, launch.place.local_rank);
  return make_process_ranks(launch, options);
}

struct RankLog::State {
  int console = -1;  // the standard error as it was
  std::mutex mutex;
  std::string early;
  bool is_open = false;
};

RankLog::RankLog(Ranks& ranks) : ranks_(ranks) {
  const RankPlace& place = ranks.place();
  if (place.is_first()) return;
  state_ = std::make_unique<State>();
  state_->console = dup(STDERR_FILENO);
  ranks.set_console(state_->console);
  const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (nowhere >= 0) {
    dup2(nowhere, STDOUT_FILENO);
    ::close(nowhere);
  }
  set_log_sink([state = state_.get(), rank = place.rank](LogLevel level, std::string_view message) {
    const std::lock_guard lock(state->mutex);
    const std::string line = fmt::format("{}{}\n",
                                         level == LogLevel::Error     ? "error: "
                                         : level == LogLevel::Warning ? "warning: "
                                                                      : "",
                                         message);
    if (level == LogLevel::Error) {
      const std::string marked = fmt::format("[rank {}] {}", rank, line);
      if (write(state->console, marked.data(), marked.size()) < 0) return;
    }
    if (!state->is_open) {
      state->early += line;
    } else if (write(STDERR_FILENO, line.data(), line.size()) < 0) {
      return;
    }
  });
}

void RankLog::open(const std::string& path) {
  if (!state_) return;
  const std::lock_guard lock(state_->mutex);
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644);
  require(file >= 0, "[{}] the log of this rank cannot be opened: {}", path, std::strerror(errno));
  std::fflush(stdout);
  dup2(file, STDOUT_FILENO);
  dup2(file, STDERR_FILENO);
  ::close(file);
  set_mapping_fault_console(state_->console);
  state_->is_open = true;
  if (write(STDERR_FILENO, state_->early.data(), state_->early.size()) < 0) return;
}

RankLog::~RankLog() {
  if (!state_) return;
  std::fflush(stdout);
  set_log_sink(nullptr);
  ranks_.set_console(-1);
  set_mapping_fault_console(-1);
  dup2(state_->console, STDERR_FILENO);  // what comes now is of interest to everybody
  ::close(state_->console);
}

CrashCounter::CrashCounter(Env& env, Ranks& ranks, const std::string& run_folder, int64_t first_step)
    : env_(env), path_(join_path(run_folder, "crashes")), is_first_(ranks.place().is_first()) {
  // "STEP COUNT": a run that started at STEP has crashed COUNT times since.
  if (is_first_) {
    int64_t step = -1;
    int count = 0;
    const std::string text = env_.exists(path_) ? env_.read_text(path_, 64) : "";
    if (std::sscanf(text.c_str(), "%ld %d", &step, &count) == 2 && step == first_step) crashes_ = count;
    env_.replace_file(path_, fmt::format("{} {}\n", first_step, crashes_ + 1));
  }
  crashes_ = std::atoi(ranks.host().from_first("crashes", std::to_string(crashes_)).c_str());
}

void CrashCounter::finish() {
  if (is_first_ && env_.exists(path_)) env_.remove_file(path_);
}

}  // namespace octet
