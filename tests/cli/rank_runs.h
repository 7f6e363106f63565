#pragma once

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "support/places.h"
#include "support/process.h"

namespace octet::test {

using Flags = std::map<std::string, std::string>;

// Small runs of several ranks on the CPU, in a folder of their own. What is started here is killed at the end.
struct RankRuns : testing::Test {
  // What a rank that waits for a failed one may take in all, on a machine that is busy with other tests. The default of
  // comm_timeout is longer.
  static constexpr std::chrono::seconds kEndsWithin{60};

  RankRuns() {
    std::string text;
    for (int i = 0; i < 300; ++i) text += "line " + std::to_string(i * 7919 % 1000) + " of the text\n";
    folder.write("text.txt", text);
  }
  ~RankRuns() override {
    for (const pid_t pid : started) {
      if (waitpid(pid, nullptr, WNOHANG) != 0) continue;
      for (const pid_t child : children_of(pid)) kill(child, SIGKILL);
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
  }

  static std::vector<std::string> train(const std::string& name, const Flags& changes = {}) {
    Flags flags = {{"dataset", "text.txt"}, {"device", "cpu"},     {"max_seq_length", "32"},
                   {"max_steps", "6"},      {"eval_batches", "1"}, {"eval_steps", "0"},
                   {"progress", "plain"},   {"run_name", name},    {"per_device_train_batch_size", "1"},
                   {"save_steps", "0"},     {"num_threads", "1"},  {"lr_scheduler_type", "constant"},
                   {"comm_timeout", "50"},  {"warmup_steps", "0"}, {"model_preset", "llama-tiny"}};
    for (const auto& [key, value] : changes) flags[key] = value;
    std::vector<std::string> result = {"train"};
    for (const auto& [key, value] : flags) result.push_back("--" + key + "=" + value);
    return result;
  }
  static std::vector<std::string> launch_words(int ranks, const std::vector<std::string>& command) {
    std::vector<std::string> words = {"launch", "-n", std::to_string(ranks)};
    words.insert(words.end(), command.begin(), command.end());
    return words;
  }

  ProcessResult launch(int ranks, const std::string& name, const Flags& changes = {}) {
    return run_process(test::octet_program(), launch_words(ranks, train(name, changes)), folder.path());
  }
  pid_t start(const std::vector<std::string>& words) {
    started.push_back(start_process(test::octet_program(), words, folder.path()));
    return started.back();
  }
  pid_t start_launch(int ranks, const std::string& name, const Flags& changes = {}) {
    return start(launch_words(ranks, train(name, changes)));
  }
  // One rank without a launcher; its output is in out_JOB_RANK.txt. All ranks are on `nodes` nodes.
  pid_t start_rank(int rank, int ranks, const std::vector<std::string>& command,
                   std::vector<std::string> variables = {}, int nodes = 1, const std::string& job = "job") {
    const int local = ranks / nodes;
    std::vector<std::string> words = {fmt::format("OCTET_RANK={}", rank),
                                      fmt::format("OCTET_RANKS={}", ranks),
                                      fmt::format("OCTET_LOCAL_RANK={}", rank % local),
                                      fmt::format("OCTET_LOCAL_RANKS={}", local),
                                      fmt::format("OCTET_JOB={} {}", job, folder.path()),
                                      fmt::format("OCTET_MASTER=127.0.0.1:{}", port),
                                      "OCTET_SECRET=a secret of this test"};
    words.insert(words.end(), variables.begin(), variables.end());
    words.push_back(test::octet_program());
    words.insert(words.end(), command.begin(), command.end());
    started.push_back(
        start_process("/usr/bin/env", words, folder.path(), fmt::format("out_{}_{}.txt", job, rank)));
    return started.back();
  }

  // Its exit code; -1 if it has not ended in time.
  int end_of(pid_t pid, std::chrono::seconds limit = kEndsWithin) {
    int status = 0;
    for (const auto deadline = std::chrono::steady_clock::now() + limit;
         waitpid(pid, &status, WNOHANG) == 0;) {
      if (std::chrono::steady_clock::now() > deadline) return -1;
      usleep(20'000);
    }
    std::erase(started, pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  static std::vector<pid_t> children_of(pid_t pid) {
    std::ifstream file(fmt::format("/proc/{0}/task/{0}/children", pid));
    std::vector<pid_t> result;
    for (pid_t child = 0; file >> child;) result.push_back(child);
    return result;
  }
  // The processes that a launcher has started, by rank.
  static std::vector<pid_t> ranks_of(pid_t launcher) {
    std::map<int, pid_t> by_rank;
    for (const pid_t child : children_of(launcher)) {
      std::ifstream file(fmt::format("/proc/{}/environ", child), std::ios::binary);
      for (std::string variable; std::getline(file, variable, '\0');)
        if (variable.starts_with("OCTET_RANK=")) by_rank[std::stoi(variable.substr(11))] = child;
    }
    std::vector<pid_t> result;
    for (const auto& [rank, pid] : by_rank) result.push_back(pid);
    return result;
  }
  static bool is_running(pid_t pid) { return kill(pid, 0) == 0; }

  std::string file(const std::string& name) const { return folder.path() + "/" + name; }
  std::string run_file(const std::string& name, const std::string& path) const {
    return file("runs/" + name + "/" + path);
  }
  std::string console() const { return read_text(file("out.txt")); }
  bool has_checkpoint(const std::string& name) const {
    return std::filesystem::exists(run_file(name, "checkpoints_fp8/latest"));
  }

  std::vector<nlohmann::json> metrics(const std::string& name) const {
    std::vector<nlohmann::json> lines;
    std::ifstream stream(run_file(name, "metrics.jsonl"));
    for (std::string line; std::getline(stream, line);) {
      nlohmann::json record = nlohmann::json::parse(line, nullptr, false);
      if (record.is_object()) lines.push_back(std::move(record));
    }
    return lines;
  }
  std::vector<double> values(const std::string& name, const char* key) const {
    std::vector<double> result;
    for (const nlohmann::json& record : metrics(name)) result.push_back(record.at(key).get<double>());
    return result;
  }
  template <class Condition>
  static bool wait_until(Condition&& condition) {
    for (int i = 0; i < 1200; ++i, usleep(50'000))
      if (condition()) return true;
    return false;
  }
  // The ranks of a launched run that has done so many steps in all. Empty: it has not.
  std::vector<pid_t> ranks_after_steps(pid_t launcher, const std::string& name, size_t steps) const {
    return wait_until([&] { return metrics(name).size() >= steps; }) ? ranks_of(launcher)
                                                                     : std::vector<pid_t>{};
  }

  TemporaryFolder folder;
  std::vector<pid_t> started;
  // Another one for each test of this process, and for processes next to it.
  static inline int ports = 0;
  const int port = 20000 + (getpid() * 61 + ports++) % 20000;
};

}  // namespace octet::test
