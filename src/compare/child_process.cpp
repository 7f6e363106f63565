#include "compare/child_process.h"

#include <fcntl.h>
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
#include "base/process.h"

namespace octet {
ChildProcess::ChildProcess(std::vector<std::string> arguments, const std::string& output,
                           const std::string& messages) {
  const Descriptor file = open_output(output, O_TRUNC);
  const Descriptor error_file = messages == output ? Descriptor() : open_output(messages, O_TRUNC);
  pid_ = start_octet({.arguments = std::move(arguments),
                      .output = file.get(),
                      .messages = messages == output ? file.get() : error_file.get()});
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
      return exit_code_of(status);
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
