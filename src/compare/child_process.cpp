#include "compare/child_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <deque>
#include <fstream>
#include <system_error>
#include <thread>

#include "base/error.h"

namespace octet {
namespace {

int open_output(const std::string& path) {
  const int file =
      ::open(path.c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (file < 0) fail("[{}] cannot be written: {}", path, std::generic_category().message(errno));
  return file;
}

}  // namespace

ChildProcess::ChildProcess(std::vector<std::string> arguments, const std::string& output,
                           const std::string& messages) {
  arguments.insert(arguments.begin(), "octet");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const int file = open_output(output);
  const int error_file = messages == output ? file : open_output(messages);
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0) {
    // A group of its own: Ctrl-C reaches it through its parent only, once.
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != parent) ::_exit(128 + SIGTERM);
    const int nothing = ::open("/dev/null", O_RDONLY);
    if (nothing >= 0) ::dup2(nothing, STDIN_FILENO);
    ::dup2(file, STDOUT_FILENO);
    ::dup2(error_file, STDERR_FILENO);
    ::execv("/proc/self/exe", argv.data());
    ::_exit(1);
  }
  const int code = errno;
  ::close(file);
  if (error_file != file) ::close(error_file);
  if (pid_ < 0) fail("a process cannot be started: {}", std::generic_category().message(code));
}

ChildProcess::~ChildProcess() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

int ChildProcess::wait(double seconds, const std::function<void()>& look) {
  for (;;) {
    int status = 0;
    const pid_t ended = ::waitpid(pid_, &status, WNOHANG);
    if (ended == pid_) {
      pid_ = -1;
      return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    if (ended < 0 && errno != EINTR)
      fail("waiting for a process failed: {}", std::generic_category().message(errno));
    look();
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  }
}

void ChildProcess::send(int signal) const {
  if (pid_ > 0) ::kill(pid_, signal);
}

std::string last_lines(const std::string& path, size_t count) {
  std::ifstream file(path, std::ios::binary);
  std::deque<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    constexpr std::string_view kPrefix = "error: ";
    if (line.starts_with(kPrefix)) line.erase(0, kPrefix.size());
    lines.push_back(std::move(line));
    if (lines.size() > count) lines.pop_front();
  }
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

}  // namespace octet
