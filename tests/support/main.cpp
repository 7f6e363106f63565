// main of all test programs. A process runs many tests: after each of them, the environment, the working folder, the umask,
// the signal handlers, the blocked signals and the sink of the log are as they were when the process began.
//   PROGRAM --file=NAME_test    # only the tests of NAME_test.cpp; exit code 77 if all of them are skipped

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "base/log.h"

namespace octet::test {
namespace {

// Without SIGBUS and other faults: their handlers are set once per process (src/io/mapping_faults.cpp, sanitizers).
constexpr std::array kSignals = {SIGHUP,  SIGINT,  SIGQUIT, SIGPIPE, SIGALRM, SIGTERM, SIGUSR1,
                                 SIGUSR2, SIGCHLD, SIGCONT, SIGTSTP, SIGXCPU, SIGXFSZ, SIGWINCH};

std::vector<std::string> environment() {
  std::vector<std::string> lines;
  for (char** line = environ; *line != nullptr; ++line) lines.emplace_back(*line);
  return lines;
}

class ProcessState {
 public:
  ProcessState() : environment_(environment()), folder_(std::filesystem::current_path()), umask_(umask(0)) {
    umask(umask_);
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked_);
    for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], nullptr, &actions_[i]);
  }

  void restore() const {
    if (environment() != environment_) {
      clearenv();
      for (const std::string& line : environment_) {
        const size_t equals = line.find('=');
        setenv(line.substr(0, equals).c_str(), line.substr(equals + 1).c_str(), 1);
      }
    }
    std::filesystem::current_path(folder_);
    umask(umask_);
    for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &actions_[i], nullptr);
    pthread_sigmask(SIG_SETMASK, &blocked_, nullptr);
    set_log_sink(nullptr);
  }

 private:
  std::vector<std::string> environment_;
  std::filesystem::path folder_;
  mode_t umask_;
  sigset_t blocked_{};
  std::array<struct sigaction, kSignals.size()> actions_{};
};

// The test that runs now, for the handler of a crash: gtest's brief output names a test only at its end.
std::array<char, 256> running{};

void on_crash(int number) {
  constexpr char kText[] = "\n[ CRASHED  ] ";
  bool written = write(STDERR_FILENO, kText, sizeof kText - 1) > 0;
  written = written && write(STDERR_FILENO, running.data(), std::strlen(running.data())) > 0;
  written = written && write(STDERR_FILENO, "\n", 1) > 0;
  raise(number);  // the default handler is back
}

class Listener final : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& test) override {
    std::snprintf(running.data(), running.size(), "%s.%s", test.test_suite_name(), test.name());
  }
  void OnTestEnd(const testing::TestInfo& test) override {
    state_.restore();
    siginfo_t child{};
    const bool has_child = waitid(P_ALL, 0, &child, WEXITED | WNOHANG | WNOWAIT) == 0;
    if (has_child && !had_child_) ADD_FAILURE() << "the test leaves a child process behind";
    had_child_ = has_child;
    // Brief output counts skipped tests without naming them.
    if (test.result()->Skipped() && GTEST_FLAG_GET(brief)) std::printf("[  SKIPPED ] %s\n", running.data());
  }

  const ProcessState state_;
  bool had_child_ = false;
};

// Keeps what --gtest_filter leaves out, because ctest runs those tests in processes of their own. False if no test is left.
bool run_only(const std::string& file) {
  const testing::UnitTest& tests = *testing::UnitTest::GetInstance();
  std::string filter;
  for (int s = 0; s < tests.total_test_suite_count(); ++s) {
    const testing::TestSuite& suite = *tests.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const testing::TestInfo& test = *suite.GetTestInfo(t);
      const std::string source = std::filesystem::path(test.file()).stem();
      if (!source.ends_with("_test")) {
        std::fprintf(stderr, "%s.%s is in %s; ctest runs only tests in files *_test.cpp\n", suite.name(),
                     test.name(), test.file());
        return false;
      }
      if (source == file) filter += std::string(suite.name()) + "." + test.name() + ":";
    }
  }
  const std::string given = GTEST_FLAG_GET(filter);
  if (const size_t dash = given.find('-'); dash != std::string::npos) filter += given.substr(dash);
  GTEST_FLAG_SET(filter, filter);
  return true;
}

}  // namespace
}  // namespace octet::test

int main(int argc, char** argv) {
  using namespace octet::test;
  testing::InitGoogleTest(&argc, argv);
  const bool only_a_file = argc > 1;
  for (int i = 1; i < argc; ++i) {
    constexpr const char* kFile = "--file=";
    if (std::strncmp(argv[i], kFile, std::strlen(kFile)) != 0) {
      std::fprintf(stderr, "unknown flag '%s', expected --file=NAME_test or a flag of gtest\n", argv[i]);
      return 2;
    }
    if (!run_only(argv[i] + std::strlen(kFile))) return 1;
  }
#ifndef OCTET_SANITIZED  // a sanitizer says more
  for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
    struct sigaction action {};
    action.sa_handler = on_crash;
    action.sa_flags = static_cast<int>(SA_RESETHAND | SA_NODEFER);
    sigaction(number, &action, nullptr);
  }
#endif
  testing::UnitTest& tests = *testing::UnitTest::GetInstance();
  tests.listeners().Append(new Listener);
  const int code = RUN_ALL_TESTS();
  if (tests.test_to_run_count() == 0) {
    std::fprintf(stderr, "no test has this name\n");
    return 1;
  }
  const bool all_skipped = tests.skipped_test_count() == tests.test_to_run_count();
  return code == 0 && only_a_file && all_skipped ? 77 : code;
}
