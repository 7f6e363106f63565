#include "support/process.h"

#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/error.h"

extern char** environ;

namespace octet::test {

ProcessResult run_process(const std::string& program, const std::vector<std::string>& arguments,
                          const std::string& folder) {
  const TemporaryFolder scratch;
  // Files rather than pipes: nothing to drain, so nothing can block.
  const std::string out = scratch.path() + "/out", err = scratch.path() + "/err";

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (!folder.empty()) posix_spawn_file_actions_addchdir_np(&actions, folder.c_str());

  std::vector<std::string> words{program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);

  pid_t child = 0;
  const int code = posix_spawnp(&child, program.c_str(), &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  require(code == 0, "[process] {} cannot be started: error {}", program, code);

  int status = 0;
  while (waitpid(child, &status, 0) < 0) require(errno == EINTR, "[process] waiting for {} failed", program);
  const int exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return {exit_code, read_text(out), read_text(err)};
}

pid_t start_process(const std::string& program, std::vector<std::string> arguments, const std::string& folder,
                    const std::string& output) {
  arguments.insert(arguments.begin(), program);
  const pid_t child = fork();
  if (child != 0) return child;
  if (chdir(folder.c_str()) != 0) _exit(99);
  const int out = open(output.c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0644);
  dup2(out, 1);
  dup2(out, 2);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  execv(program.c_str(), argv.data());
  _exit(98);
}

int wait_for_process(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "octet-test-XXXXXX").string();
  require(mkdtemp(pattern.data()) != nullptr, "[process] {} cannot be made", pattern);
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string TemporaryFolder::write(const std::string& name, const std::string& text) const {
  const std::string file = path_ + "/" + name;
  std::ofstream stream(file, std::ios::binary);
  stream << text;
  require(bool(stream.flush()), "[process] {} cannot be written", file);
  return file;
}

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  require(bool(file), "[process] {} cannot be read", path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace octet::test
