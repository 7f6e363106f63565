#pragma once

#include <signal.h>
#include <sys/types.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace octet {

// A file descriptor that is closed at the end of the scope.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&&) = delete;

  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// A file for a child's output. `flag` is O_TRUNC or O_APPEND. A link is not followed.
Descriptor open_output(const std::string& path, int flag, mode_t mode = 0644);

// Pointers to the texts and a null at the end, as exec takes them.
std::vector<char*> exec_words(std::vector<std::string>& texts);

// The variables of this process as "NAME=value", without those that `leaves_out` names.
std::vector<std::string> environment_entries(const std::function<bool(std::string_view)>& leaves_out =
                                                 [](std::string_view) { return false; });

// 128 + the signal's number if one ended the process.
int exit_code_of(int wait_status);

// A program that becomes a child. It gets `files` as its descriptors 0, 1, 2 and so on; -1 is an empty file. Files that are
// not in the list are closed in it, if they were opened with O_CLOEXEC.
struct ProgramStart {
  std::vector<std::string> words;        // the first one is found on the PATH
  std::vector<std::string> environment;  // "NAME=value"
  std::vector<int> files;
  bool own_session = false;  // Ctrl-C in the terminal does not reach it; no signal is blocked
};
// 0, or the error's number.
int start_program(ProgramStart start, pid_t& child);

// This very program as a child, with an empty standard input. It ends when its parent does. It has a process group of its
// own: Ctrl-C reaches it through its parent only, once.
struct OctetStart {
  std::vector<std::string> arguments;
  std::vector<std::string> environment = environment_entries();
  int output = -1, messages = -1;         // -1: those of this process
  const sigset_t* signal_mask = nullptr;  // null: that of this process
};
pid_t start_octet(OctetStart start);

// While it lives, stop signals and SIGCHLD wait until next() takes them. For programs without other threads.
class WaitingSignals {
 public:
  WaitingSignals();
  ~WaitingSignals();
  WaitingSignals(const WaitingSignals&) = delete;
  WaitingSignals& operator=(const WaitingSignals&) = delete;

  // The number of a signal; 0 if none has come after that time.
  int next(int milliseconds) const;
  const sigset_t& before() const { return before_; }

 private:
  sigset_t set_{}, before_{};
};

}  // namespace octet
