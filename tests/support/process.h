#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace octet::test {

struct ProcessResult {
  int exit_code = 0;  // 128 + the signal's number where a signal ended it
  std::string out;
  std::string err;
};

// Runs the program (a path, or a name that PATH finds) with these arguments, an empty standard input and, where given,
// `folder` as working directory; returns when it has ended.
ProcessResult run_process(const std::string& program, const std::vector<std::string>& arguments,
                          const std::string& folder = "");

// Starts the program (a path) in `folder`, its output in the file `output` there, and returns at once.
pid_t start_process(const std::string& program, std::vector<std::string> arguments, const std::string& folder,
                    const std::string& output = "out.txt");
// Its exit code when it has ended, 128 + the signal's number where a signal ended it.
int wait_for_process(pid_t child);

// An empty folder that is removed, with what is in it, at the end of the scope.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string write(const std::string& name, const std::string& text) const;  // returns the file's path

 private:
  std::string path_;
};

std::string read_text(const std::string& path);

}  // namespace octet::test
