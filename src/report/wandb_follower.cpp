#include "report/wandb_follower.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "base/python.h"
#include "base/signals.h"
#include "base/text.h"
#include "base/version.h"
#include "report/text.h"

namespace octet {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

// The process says something every second. Importing the package may hold it up on a slow file system.
constexpr seconds kSilence{15};
// A wait of this length needs no word.
constexpr seconds kTellAfter{1};
constexpr std::chrono::milliseconds kLookForSignals{100};

std::atomic<bool> wait_interrupted = false;
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may use lock-free atomics only");

// A file in memory. The child gets it as a descriptor of its own.
int memory_file(const char* name, std::string_view text) {
  const int fd = ::memfd_create(name, MFD_CLOEXEC);
  require(fd >= 0, "[wandb] memfd_create: {}", std::strerror(errno));
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t count = ::write(fd, text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    require(count > 0, "[wandb] a file in memory cannot be written: {}", std::strerror(errno));
    done += static_cast<size_t>(count);
  }
  ::lseek(fd, 0, SEEK_SET);
  return fd;
}

std::string job_json(const WandbJob& job) {
  nlohmann::json config = nlohmann::json::object();
  for (const auto& [name, value] : job.config)
    std::visit([&, key = name](const auto& held) { config[key] = held; }, value);
  config["octet_version"] = octet_version();
  const nlohmann::json all = {
      {"folder", job.folder},        {"mode", job.mode},          {"run_name", job.run_name},
      {"project", job.project},      {"entity", job.entity},      {"wandb_run_name", job.wandb_run_name},
      {"config", std::move(config)}, {"live", job.live},          {"pid", job.live ? ::getpid() : 0},
      {"again", job.again},          {"max_steps", job.max_steps}};
  return all.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// The host part of a URL.
std::string host_of(std::string_view url) {
  if (const size_t scheme = url.find("://"); scheme != url.npos) url.remove_prefix(scheme + 3);
  const std::string_view authority = url.substr(0, url.find_first_of("/?"));
  return std::string(authority.substr(authority.rfind('@') + 1));  // npos + 1 is 0: no user and password
}

bool netrc_has(const std::string& path, const std::string& host) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;  // a pipe would be waited for
  std::ifstream file(path);
  std::string word, before;
  while (file >> word) {
    if (before == "machine" && word == host) return true;
    before = word;
  }
  return false;
}

}  // namespace

std::string find_wandb_key(const EnvironmentValue& environment) {
  for (const char* name : {"WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"}) {
    if (environment(name)) return name;
  }
  const std::string host = host_of(environment("WANDB_BASE_URL").value_or("https://api.wandb.ai"));
  std::vector<std::string> places;
  if (const auto netrc = environment("NETRC")) places.push_back(*netrc);
  if (const auto home = environment("HOME")) {
    places.push_back(*home + "/.netrc");
    places.push_back(*home + "/_netrc");
  }
  const auto found =
      std::ranges::find_if(places, [&](const std::string& path) { return netrc_has(path, host); });
  return found == places.end() ? "" : *found;
}

WandbMode choose_wandb_mode(const std::string& wanted, const EnvironmentValue& environment) {
  constexpr const char* kNoKey =
      "no W&B key was found (WANDB_API_KEY, or 'wandb login'), so the run is recorded offline";
  if (wanted == "offline" || wanted == "disabled") return {wanted, ""};
  std::string mode = wanted;
  if (mode.empty()) {
    const std::string given = environment("WANDB_MODE").value_or("");
    if (given == "offline" || given == "dryrun") return {"offline", "WANDB_MODE is " + given};
    if (given == "disabled") return {"disabled", "WANDB_MODE is disabled, so nothing is recorded for W&B"};
    if (parse_bool(environment("WANDB_DISABLED").value_or("false")).value_or(true))
      return {"disabled", "WANDB_DISABLED is set, so nothing is recorded for W&B"};
  }
  if (!find_wandb_key(environment).empty()) return {"online", ""};
  return {"offline", kNoKey};
}

seconds WandbFollower::patience(bool stopped) {
  seconds limit = stopped ? seconds(10) : seconds(60);
  if (const auto given = environment_value("OCTET_WANDB_WAIT")) {
    if (const auto number = parse_int(*given); number && *number >= 0 && *number <= 86400)
      limit = seconds(*number);
  }
  return limit;
}

std::unique_ptr<WandbFollower> WandbFollower::start(const WandbJob& job) {
  const std::string python = python_program();
  const std::string log = job.folder + "/wandb.log";
  try {
    Descriptor script(memory_file("octet-wandb", kWandbFollowerScript));
    Descriptor task(memory_file("octet-wandb-job", job_json(job)));
    int control[2], status[2];
    // A socket rather than a pipe: a process that is gone is then no SIGPIPE.
    require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, control) == 0, "[wandb] socketpair: {}",
            std::strerror(errno));
    Descriptor control_read(control[0]), control_write(control[1]);
    require(::pipe2(status, O_CLOEXEC) == 0, "[wandb] pipe: {}", std::strerror(errno));
    Descriptor status_read(status[0]), status_write(status[1]);
    const Descriptor log_file = open_output(log, O_APPEND);
    const ProgramStart program{
        .words = {python, "/dev/fd/3"},
        .environment = python_environment(),
        .files = {control_read.get(), status_write.get(), log_file.get(), script.get(), task.get()},
        .own_session = true};
    pid_t child = 0;
    const int code = start_program(program, child);
    if (code != 0) {
      log_warning(
          "nothing is sent to W&B, because {} cannot be started: {}. Install Python with the package wandb, or set "
          "OCTET_PYTHON",
          python, std::strerror(code));
      return nullptr;
    }
    return std::unique_ptr<WandbFollower>(
        new WandbFollower(child, control_write.release(), status_read.release(), job));
  } catch (const std::exception& error) {  // also of the standard library: no memory, no thread
    log_warning("nothing is sent to W&B: {}", error.what());
    return nullptr;
  }
}

WandbFollower::WandbFollower(pid_t pid, int control, int status, const WandbJob& job)
    : control_(control), shared_(std::make_shared<Shared>()) {
  shared_->pid = pid;
  shared_->status = status;
  shared_->folder = job.folder;
  shared_->live = job.live;
  shared_->last_sign = steady_clock::now();
  try {
    listener_ = std::thread([shared = shared_] { shared->listen(); });
  } catch (const std::exception&) {
    // Nobody would hear the process.
    ::kill(-pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    ::close(control);
    ::close(status);
    throw;
  }
}

WandbFollower::~WandbFollower() {
  if (control_ >= 0) end(1, patience(true));
  std::unique_lock lock(shared_->mutex);
  const bool ended = shared_->ended;
  lock.unlock();
  if (ended) {
    listener_.join();
  } else {
    listener_.detach();
  }
}

bool WandbFollower::ended() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->ended;
}

std::string WandbFollower::Shared::advice() const {
  return live ? fmt::format("'octet wandb {}' sends the run", folder)
              : "repeat the command to send what is missing";
}

// The only reader of the status pipe.
void WandbFollower::Shared::listen() {
  std::string rest;
  char buffer[4096];
  for (;;) {
    const ssize_t count = ::read(status, buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    rest.append(buffer, static_cast<size_t>(count));
    for (size_t end; (end = rest.find('\n')) != rest.npos; rest.erase(0, end + 1)) hear(rest.substr(0, end));
  }
  ::close(status);
  int result = 0;
  while (::waitpid(pid, &result, 0) < 0 && errno == EINTR) {
  }
  const int code = exit_code_of(result);
  std::unique_lock lock(mutex);
  const bool explain = code != 0 && !explained && !muted;
  lock.unlock();
  if (explain) {
    log_warning("the process that sends to W&B has ended with exit code {}{}. {}/wandb.log may say why; {}",
                code, live ? "; the run is not affected" : "", folder, advice());
  }
  lock.lock();
  exit_code = code;
  ended = true;
  changed.notify_all();
}

void WandbFollower::Shared::hear(std::string_view line) {
  const size_t space = std::min(line.find(' '), line.size());
  const std::string_view kind = line.substr(0, space);
  const std::string_view text = line.substr(std::min(space + 1, line.size()));
  std::unique_lock lock(mutex);
  heard = true;
  last_sign = steady_clock::now();
  if (kind == "problem") explained = true;
  if (muted) return;
  lock.unlock();
  if (kind == "info") log_info("{}", text);
  if (kind == "warning") log_warning("{}", text);
  if (kind == "problem")
    log_warning("{}: {}", live ? "nothing is sent to W&B from now on" : "W&B did not get everything", text);
}

bool WandbFollower::end(int exit_code, seconds limit) {
  if (control_ >= 0) {
    // Much less than a socket holds, so it does not wait. A process that is gone needs no message.
    const std::string message = fmt::format("end {}\n", exit_code);
    (void)::send(control_, message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    ::close(std::exchange(control_, -1));
  }
  Shared& shared = *shared_;
  const auto start = steady_clock::now(), deadline = start + limit;
  wait_interrupted = false;
  // The run is over: its exit code must not become that of a signal, because a scheduler starts the run again or not by it.
  const StopHandler interruptible([](int) { wait_interrupted = true; });
  std::unique_lock lock(shared.mutex);
  bool told = limit <= kTellAfter;
  while (!shared.ended && !wait_interrupted) {
    const auto now = steady_clock::now();
    const auto last = std::min(deadline, shared.last_sign + kSilence);
    if (now >= last) break;
    if (!told && now >= start + kTellAfter) {
      told = true;
      lock.unlock();
      if (shared.live) {
        log_info("waiting for W&B, at most {} s; Ctrl-C ends the waiting", limit.count());
      } else {
        log_info("sending to W&B; after Ctrl-C it goes on in the background");
      }
      lock.lock();
      continue;
    }
    shared.changed.wait_until(lock, std::min(last, now + kLookForSignals));
  }
  if (shared.ended) return shared.exit_code == 0;
  shared.muted = true;
  // One that was interrupted before it could say a word may be in order.
  const bool is_alive =
      (shared.heard || wait_interrupted) && steady_clock::now() < shared.last_sign + kSilence;
  lock.unlock();
  if (is_alive) {
    log_warning("W&B has not received everything yet; process {} continues to send. If it is cut off: {}",
                shared.pid, shared.advice());
    return false;
  }
  log_warning("the process that sends to W&B does not answer and is ended; {}", shared.advice());
  ::kill(-shared.pid, SIGKILL);
  lock.lock();
  shared.changed.wait_for(lock, seconds(5), [&] { return shared.ended; });
  return false;
}

}  // namespace octet
