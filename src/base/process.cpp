#include "base/process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/exit_codes.h"
#include "base/signals.h"

extern char** environ;

namespace octet {

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

Descriptor open_output(const std::string& path, int flag, mode_t mode) {
  Descriptor file(::open(path.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW | flag, mode));
  if (file.get() < 0) fail("[{}] cannot be written: {}", path, std::strerror(errno));
  return file;
}

std::vector<char*> exec_words(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> environment_entries(const std::function<bool(std::string_view)>& leaves_out) {
  std::vector<std::string> entries;
  for (char** each = environ; each && *each; ++each) {
    const std::string_view entry = *each;
    if (!leaves_out(entry.substr(0, entry.find('=')))) entries.emplace_back(entry);
  }
  return entries;
}

int exit_code_of(int wait_status) {
  return WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status);
}

int start_program(ProgramStart start, pid_t& child) {
  // First to numbers that are in nobody's way: dup2 onto 3 could close a descriptor that is still needed.
  constexpr int kFirstFree = 10;
  std::vector<Descriptor> copies;
  for (const int file : start.files) {
    const Descriptor nothing(file < 0 ? ::open("/dev/null", O_RDWR | O_CLOEXEC) : -1);
    copies.emplace_back(::fcntl(file < 0 ? nothing.get() : file, F_DUPFD_CLOEXEC, kFirstFree));
    if (copies.back().get() < 0) return errno;
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  int code = 0;
  for (size_t i = 0; i < copies.size() && code == 0; ++i)
    code = posix_spawn_file_actions_adddup2(&actions, copies[i].get(), static_cast<int>(i));
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  if (start.own_session) {
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK);
    if (code == 0) code = posix_spawn_file_actions_addclosefrom_np(&actions, static_cast<int>(copies.size()));
  }
  if (code == 0) {
    code = ::posix_spawnp(&child, start.words[0].c_str(), &actions, &attributes,
                          exec_words(start.words).data(), exec_words(start.environment).data());
  }
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  return code;
}

pid_t start_octet(OctetStart start) {
  // Everything is ready before the fork.
  start.arguments.insert(start.arguments.begin(), "octet");
  const std::vector<char*> argv = exec_words(start.arguments), envp = exec_words(start.environment);
  const pid_t parent = ::getpid(), child = ::fork();
  if (child < 0) fail("a process cannot be started: {}", std::strerror(errno));
  if (child > 0) return child;
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(128 + SIGTERM);
  const int nothing = ::open("/dev/null", O_RDONLY);
  if (nothing >= 0) ::dup2(nothing, STDIN_FILENO);
  if (start.output >= 0) ::dup2(start.output, STDOUT_FILENO);
  if (start.messages >= 0) ::dup2(start.messages, STDERR_FILENO);
  if (start.signal_mask) ::sigprocmask(SIG_SETMASK, start.signal_mask, nullptr);
  ::execve("/proc/self/exe", argv.data(), envp.data());
  ::_exit(kExitFailure);
}

WaitingSignals::WaitingSignals() {
  sigemptyset(&set_);
  std::vector<int> numbers = stop_signals();
  numbers.push_back(SIGCHLD);
  for (const int number : numbers) {
    sigaddset(&set_, number);
    ::signal(number, SIG_DFL);  // one that is ignored would not wait
  }
  ::sigprocmask(SIG_BLOCK, &set_, &before_);
}

WaitingSignals::~WaitingSignals() {
  ::sigprocmask(SIG_SETMASK, &before_, nullptr);
}

int WaitingSignals::next(int milliseconds) const {
  const timespec limit{.tv_sec = 0, .tv_nsec = milliseconds * 1'000'000L};
  return std::max(0, ::sigtimedwait(&set_, nullptr, &limit));
}

}  // namespace octet
