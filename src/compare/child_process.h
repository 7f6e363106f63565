#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

namespace octet {

// This very program as a child, its output in the file `output`, its messages in `messages` (may be the same). The child
// ends with its parent.
class ChildProcess {
 public:
  ChildProcess(std::vector<std::string> arguments, const std::string& output, const std::string& messages);
  ~ChildProcess();  // ends it
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // The exit code, 128 + the signal's number if one ended it. Looks every `seconds`, and calls `look` each time.
  int wait(double seconds, const std::function<void()>& look);
  void send(int signal) const;

 private:
  pid_t pid_ = -1;
};

// The last `count` lines of a text file; fewer if it has fewer. Errors come without "error: ", which is written again where the
// lines are shown.
std::string last_lines(const std::string& path, size_t count);

}  // namespace octet
