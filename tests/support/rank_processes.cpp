#include "support/rank_processes.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <thread>

extern char** environ;

namespace octet::test {
namespace {

// Each rank writes a file per call, and looks for those of the others.
class FolderHost final : public HostChannel {
 public:
  FolderHost(std::string folder, int rank, int ranks)
      : folder_(std::move(folder)), rank_(rank), ranks_(ranks) {}
  using HostChannel::all_gather;
  int rank() const override { return rank_; }
  int size() const override { return ranks_; }

  std::vector<std::string> all_gather(const std::string& tag, const std::string& mine,
                                      std::chrono::milliseconds limit,
                                      std::span<const int> members) override {
    std::vector<int> all(static_cast<size_t>(ranks_));
    for (int r = 0; r < ranks_; ++r) all[static_cast<size_t>(r)] = r;
    if (members.empty()) members = all;
    const std::string base = name_of(tag, members);
    const std::string path = base + std::to_string(rank_);
    std::FILE* file = std::fopen((path + ".new").c_str(), "wb");
    require(file && std::fwrite(mine.data(), 1, mine.size(), file) == mine.size() && std::fclose(file) == 0,
            "[test host] {} cannot be written", path);
    std::filesystem::rename(path + ".new", path);

    const auto deadline =
        std::chrono::steady_clock::now() + std::min(limit, std::chrono::milliseconds(60'000));
    std::vector<std::string> texts;
    for (const int member : members) {
      const std::string theirs = base + std::to_string(member);
      while (!std::filesystem::exists(theirs)) {
        if (std::chrono::steady_clock::now() > deadline)
          throw RankError(fmt::format("[{}] rank {} did not come", tag, member));
        std::this_thread::sleep_for(std::chrono::milliseconds(1));  // nothing tells when a file appears
      }
      texts.push_back(read_text(theirs));
    }
    return texts;
  }

 private:
  // A tag may be used again: its calls are counted.
  std::string name_of(const std::string& tag, std::span<const int> members) {
    const std::lock_guard lock(mutex_);
    std::string key = tag;
    for (const int member : members) key += fmt::format(" {}", member);
    const int call = calls_[key]++;
    for (char& c : key)
      if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
    return fmt::format("{}/{}.{}.", folder_, key, call);
  }

  std::string folder_;
  int rank_, ranks_;
  std::mutex mutex_;
  std::map<std::string, int> calls_;
};

std::map<std::string, std::function<void(RankProcess&)>>& works() {
  static std::map<std::string, std::function<void(RankProcess&)>> all;
  return all;
}

// Runs before the tests. In a process that was started for a rank it does that rank's work instead of them.
class RankEnvironment final : public testing::Environment {
 public:
  void SetUp() override {
    const char* name = std::getenv("OCTET_TEST_RANK_WORK");
    if (!name) return;
    const int rank = std::atoi(std::getenv("OCTET_TEST_RANK")),
              ranks = std::atoi(std::getenv("OCTET_TEST_RANKS"));
    const std::string folder = std::getenv("OCTET_TEST_FOLDER");
    FolderHost host(folder, rank, ranks);
    RankProcess process{rank, ranks, folder, host};
    int code = 0;
    try {
      works().at(name)(process);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      code = 1;
    }
    std::fflush(nullptr);
    _exit(code);
  }
};

}  // namespace

bool add_rank_process(const std::string& name, std::function<void(RankProcess&)> work) {
  static const auto* environment = testing::AddGlobalTestEnvironment(new RankEnvironment);
  works()[name] = std::move(work);
  return environment != nullptr;
}

std::vector<ProcessResult> run_rank_processes(
    const std::string& name, int ranks, const std::function<std::vector<std::string>(int)>& environment) {
  const TemporaryFolder folder;
  const auto output_of = [&](int rank, const char* which) {
    return fmt::format("{}/{}.{}", folder.path(), which, rank);
  };
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<std::string> lines = environment(rank);
    lines.push_back("OCTET_TEST_RANK_WORK=" + name);
    lines.push_back("OCTET_TEST_RANK=" + std::to_string(rank));
    lines.push_back("OCTET_TEST_RANKS=" + std::to_string(ranks));
    lines.push_back("OCTET_TEST_FOLDER=" + folder.path());
    for (char** line = environ; *line; ++line)
      if (!std::string_view(*line).starts_with("GTEST_")) lines.emplace_back(*line);
    std::vector<char*> pointers;
    for (std::string& line : lines) pointers.push_back(line.data());
    pointers.push_back(nullptr);

    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, output_of(rank, "out").c_str(), O_WRONLY | O_CREAT, 0600);
    posix_spawn_file_actions_addopen(&actions, 2, output_of(rank, "err").c_str(), O_WRONLY | O_CREAT, 0600);
    std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
    char* argv[] = {program.data(), nullptr};
    pid_t child = 0;
    const int code = posix_spawn(&child, program.c_str(), &actions, nullptr, argv, pointers.data());
    posix_spawn_file_actions_destroy(&actions);
    require(code == 0, "[process] {} cannot be started: error {}", program, code);
    children.push_back(child);
  }
  std::vector<ProcessResult> results;
  for (int rank = 0; rank < ranks; ++rank) {
    const int code = wait_for_process(children[static_cast<size_t>(rank)]);
    results.push_back({code, read_text(output_of(rank, "out")), read_text(output_of(rank, "err"))});
  }
  return results;
}

}  // namespace octet::test
