#pragma once

// What the tests of runs in Weights & Biases share.

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>

#include "support/places.h"
#include "support/process.h"

namespace octet::test {

using nlohmann::json;
namespace fs = std::filesystem;

// Of whoever runs the tests; tests may set another one for octet.
inline const std::string& python() {
  static const std::string program = [] {
    const char* given = std::getenv("OCTET_PYTHON");
    return std::string(given ? given : "python3");
  }();
  return program;
}

inline bool has_wandb() {
  static const bool found =
      run_process(python(), {"-c", "import importlib.util as u, sys; sys.exit(u.find_spec('wandb') is None)"})
          .exit_code == 0;
  return found;
}

#define REQUIRE_WANDB() \
  if (!has_wandb()) GTEST_SKIP() << "the Python package wandb is not installed"

// Whether it becomes true within two minutes: on a machine with much other work, Python alone takes seconds to start.
template <typename Condition>
bool becomes_true(const Condition& condition) {
  for (int i = 0; i < 2400; ++i) {
    if (condition()) return true;
    usleep(50'000);
  }
  return false;
}

struct WandbCli : testing::Test {
  WandbCli() {
    std::string text;
    for (int i = 0; i < 300; ++i) text += "line " + std::to_string(i * 7919 % 1000) + " of the text\n";
    folder.write("text.txt", text);
    // No key and no settings of whoever runs the tests.
    std::vector<std::string> names = {"NETRC"};
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string_view variable = *entry;
      if (variable.starts_with("WANDB_")) names.emplace_back(variable.substr(0, variable.find('=')));
    }
    for (const std::string& name : names) unsetenv(name.c_str());
    setenv("OCTET_PYTHON", python().c_str(), 1);
    unsetenv("OCTET_WANDB_WAIT");
    setenv("HOME", folder.path().c_str(), 1);
    setenv("WANDB_CACHE_DIR", (folder.path() + "/cache").c_str(), 1);
    setenv("WANDB_ERROR_REPORTING", "false", 1);
  }

  static std::vector<std::string> arguments(std::map<std::string, std::string> changes = {}) {
    std::map<std::string, std::string> flags = {{"dataset", "text.txt"},
                                                {"device", "cpu"},
                                                {"max_seq_length", "32"},
                                                {"max_steps", "6"},
                                                {"eval_batches", "1"},
                                                {"eval_steps", "2"},
                                                {"progress", "plain"},
                                                {"run_name", "a"},
                                                {"per_device_train_batch_size", "2"},
                                                {"save_steps", "2"},
                                                {"num_threads", "1"},
                                                {"use_wandb", "true"},
                                                {"fp8_stats_steps", "2"},
                                                {"model_preset", "llama-tiny"}};
    changes.swap(flags);
    for (const auto& [key, value] : flags) changes[key] = value;
    std::vector<std::string> result = {"train"};
    for (const auto& [key, value] : changes) result.push_back("--" + key + "=" + value);
    return result;
  }

  ProcessResult octet(const std::vector<std::string>& words) {
    return run_process(test::octet_program(), words, folder.path());
  }
  std::string run_path(const std::string& name = "a") const { return folder.path() + "/runs/" + name; }

  std::vector<json> metrics(const std::string& name = "a") const {
    std::vector<json> lines;
    std::ifstream file(run_path(name) + "/metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      json record = json::parse(line, nullptr, false);
      if (record.is_object()) lines.push_back(std::move(record));
    }
    return lines;
  }

  // What the files of W&B hold, one object per start.
  json recorded(const std::string& name = "a") const {
    const ProcessResult read =
        run_process(python(), {test::source_path("/tests/cli/read_wandb.py"), run_path(name)});
    EXPECT_EQ(read.exit_code, 0) << read.err;
    json files = json::parse(read.out, nullptr, false);
    return files.is_array() ? files : json::array();
  }

  json state(const std::string& name = "a") const {
    return json::parse(read_text(run_path(name) + "/wandb.json"), nullptr, false);
  }

  // A program that stands for Python.
  void use_fake_python(const std::string& script) {
    const std::string path =
        folder.write("fake_python", "#!/bin/sh\necho $$ > '" + folder.path() + "/pid'\n" + script);
    fs::permissions(path, fs::perms::owner_all);
    setenv("OCTET_PYTHON", path.c_str(), 1);
  }
  bool fake_python_is_gone() const {
    return kill(static_cast<pid_t>(std::stol(read_text(folder.path() + "/pid"))), 0) != 0;
  }

  // What a process that was started writes.
  std::string output(const std::string& name = "out.txt") const {
    const std::string path = folder.path() + "/" + name;
    return fs::exists(path) ? read_text(path) : "";
  }

  TemporaryFolder folder;
};

// A run as another program may have left it: every kind of field, a value that is not finite, a torn last line.
inline constexpr const char* kRecords =
    R"({"step":1,"epoch":0.5,"loss":null,"loss_text":"nan","lr":0.001,"grad_norm":null,"grad_norm_text":"inf","time":1700000000.5,)"
    R"("memory_bytes":1024,"data_wait_ms":1.5,"gpu":{"power_watts":300.5,"utilization":0.9,"throttled":"power"},)"
    R"("tasks":{"hellaswag/acc_norm":0.25},"eval_loss/wiki":2.5,"a_new_figure":7})"
    "\n"
    R"({"step":3,"loss":2.0,"precision":"FP8","red_flags":[{"kind":"saturation","text":"layers.0 saturates"}],)"
    R"("samples":["<script>alert(1)</script>"],"checkpoint":{"step":2,"bytes":10,"wait_ms":0.5,"write_seconds":1}})"
    "\n"
    R"({"step":4,"loss":1.)";

}  // namespace octet::test
