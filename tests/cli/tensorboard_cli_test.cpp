// octet tensorboard, with the real package.

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "support/places.h"
#include "support/process.h"

namespace octet::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
namespace fs = std::filesystem;

// Of whoever runs the tests; tests may set another one for octet.
const std::string& python() {
  static const std::string program = [] {
    const char* given = std::getenv("OCTET_PYTHON");
    return std::string(given ? given : "python3");
  }();
  return program;
}

struct TensorboardCli : testing::Test {
  TensorboardCli() {
    setenv("OCTET_PYTHON", python().c_str(), 1);
    for (const char* name : {"a", "b"}) {
      fs::create_directories(folder.path() + "/runs/" + name);
      // An event file without events: TensorBoard lists the run all the same.
      folder.write(std::string("runs/") + name + "/events.out.tfevents.1700000000.host.1.0", "");
      folder.write(std::string("runs/") + name + "/metrics.jsonl", "");
    }
    fs::create_directories(folder.path() + "/empty");
  }

  ProcessResult octet(const std::vector<std::string>& words) {
    return run_process(test::octet_program(), words, folder.path());
  }

  // Prints its arguments, one line each.
  void use_fake_python() {
    const std::string path =
        folder.write("python", "#!/bin/sh\nshift 2\nfor word; do echo \"[$word]\"; done\n");
    fs::permissions(path, fs::perms::owner_all);
    setenv("OCTET_PYTHON", path.c_str(), 1);
  }

  TemporaryFolder folder;
};

TEST_F(TensorboardCli, TakesTheFoldersOfTheRuns) {
  use_fake_python();
  const std::string runs = folder.path() + "/runs";
  EXPECT_EQ(octet({"tensorboard"}).out,
            "[--logdir]\n[" + runs + "]\n[--host]\n[127.0.0.1]\n[--port]\n[6006]\n");
  EXPECT_THAT(octet({"tensorboard", "runs/a", "--port", "0"}).out,
              AllOf(HasSubstr("[--logdir]\n[" + runs + "/a]"), HasSubstr("[--port]\n[0]")));
  EXPECT_THAT(octet({"tensorboard", "runs/a", "runs/b/"}).out,
              HasSubstr("[--logdir_spec]\n[a:" + runs + "/a,b:" + runs + "/b/]"));
  fs::create_directories(folder.path() + "/old");
  fs::copy(runs + "/a", folder.path() + "/old/a");
  EXPECT_THAT(octet({"tensorboard", "runs/a", "old/a"}).out, HasSubstr(",a-2:" + folder.path() + "/old/a]"));
  const ProcessResult open = octet({"tensorboard", "--host", "0.0.0.0"});
  EXPECT_THAT(open.err, HasSubstr("everyone who can reach 0.0.0.0:6006 sees the runs"));
}

TEST_F(TensorboardCli, RefusesWhatHoldsNoRuns) {
  use_fake_python();
  EXPECT_THAT(octet({"tensorboard", "nowhere"}).err, HasSubstr("[nowhere] is not a folder"));
  EXPECT_THAT(octet({"tensorboard", "empty"}).err, HasSubstr("[empty] holds no runs with event files"));
  fs::remove(folder.path() + "/runs/a/events.out.tfevents.1700000000.host.1.0");
  EXPECT_THAT(octet({"tensorboard", "runs/a"}).err, HasSubstr("use_tensorboard false"));
  fs::remove_all(folder.path() + "/runs");
  const ProcessResult none = octet({"tensorboard"});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, HasSubstr("there is no folder 'runs' here"));
}

TEST_F(TensorboardCli, SaysWhatToInstall) {
  const std::string path = folder.write("python", "#!/bin/sh\nexec " + python() + " -S -E \"$@\"\n");
  fs::permissions(path, fs::perms::owner_all);
  setenv("OCTET_PYTHON", path.c_str(), 1);
  const ProcessResult result = octet({"tensorboard"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("error: "), HasSubstr("-m pip install tensorboard")));
  setenv("OCTET_PYTHON", "/no/python", 1);
  EXPECT_THAT(octet({"tensorboard"}).err, HasSubstr("/no/python cannot be started"));
}

TEST_F(TensorboardCli, FilesOfTheCurrentFolderAreNotExecuted) {
  folder.write("tensorboard.py", "print('executed')\n");
  const std::string path = folder.write("python", "#!/bin/sh\nexec " + python() + " -S -E \"$@\"\n");
  fs::permissions(path, fs::perms::owner_all);
  setenv("OCTET_PYTHON", path.c_str(), 1);
  const ProcessResult result = octet({"tensorboard"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("-m pip install tensorboard"));
  EXPECT_EQ(result.out, "");
}

// A port that nobody listens on just now.
int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  socklen_t size = sizeof address;
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  close(fd);
  return ntohs(address.sin_port);
}

// The answer to a request; "" if nobody answers.
std::string ask(int port, const std::string& path) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  std::string answer;
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
    const std::string request = "GET " + path + " HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n";
    send(fd, request.data(), request.size(), MSG_NOSIGNAL);
    char buffer[4096];
    for (ssize_t count; (count = read(fd, buffer, sizeof buffer)) > 0;)
      answer.append(buffer, static_cast<size_t>(count));
  }
  close(fd);
  return answer;
}

TEST_F(TensorboardCli, TheRealOneAnswersAndEndsWithASignal) {
  if (run_process(python(), {"-c", "import tensorboard.main"}).exit_code != 0)
    GTEST_SKIP() << "the Python package tensorboard is not installed";
  const int port = free_port();
  const pid_t child =
      start_process(test::octet_program(), {"tensorboard", "--port", std::to_string(port)}, folder.path());
  std::string answer;
  for (int i = 0; i < 600 && answer.find("200 OK") == answer.npos; ++i) {
    usleep(100'000);
    answer = ask(port, "/data/logdir");
  }
  EXPECT_THAT(answer, AllOf(HasSubstr("200 OK"), HasSubstr(folder.path() + "/runs")))
      << read_text(folder.path() + "/out.txt");
  kill(child, SIGTERM);
  wait_for_process(child);
  for (int i = 0; i < 100 && !ask(port, "/").empty(); ++i) usleep(100'000);
  EXPECT_EQ(ask(port, "/"), "");
  // Nobody is left who was started for this folder: TensorBoard may have a data server as its child.
  const std::string find = "for f in /proc/[0-9]*/cmdline; do tr '\\0' '\\n' < $f 2>/dev/null | grep -qx '" +
                           folder.path() + "/runs' && echo $f; done; true";
  std::string others = "?";
  for (int i = 0; i < 50 && !others.empty(); ++i) {
    usleep(100'000);
    others = run_process("sh", {"-c", find}).out;
  }
  EXPECT_EQ(others, "");
}

}  // namespace
}  // namespace octet::test
