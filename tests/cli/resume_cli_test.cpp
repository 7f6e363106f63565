// Runs that are killed, stopped and resumed, as processes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "support/places.h"
#include "support/process.h"

namespace octet::test {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;
using Flags = std::map<std::string, std::string>;

struct ResumeCli : testing::Test {
  ResumeCli() {
    std::string text;
    for (int i = 0; i < 300; ++i) text += "line " + std::to_string(i * 7919 % 1000) + " of the text\n";
    folder.write("text.txt", text);
  }

  static std::vector<std::string> arguments(const std::string& name, const Flags& changes = {}) {
    Flags flags = {{"dataset", "text.txt"}, {"device", "cpu"},     {"max_seq_length", "32"},
                   {"max_steps", "40"},     {"eval_batches", "1"}, {"eval_steps", "0"},
                   {"progress", "plain"},   {"run_name", name},    {"per_device_train_batch_size", "2"},
                   {"save_steps", "3"},     {"num_threads", "1"},  {"model_preset", "llama-tiny"}};
    for (const auto& [key, value] : changes) flags[key] = value;
    std::vector<std::string> result = {"train"};
    for (const auto& [key, value] : flags) result.push_back("--" + key + "=" + value);
    return result;
  }

  ProcessResult run(const std::vector<std::string>& flags) {
    return run_process(test::octet_program(), flags, folder.path());
  }

  pid_t start(const std::vector<std::string>& flags) {
    return start_process(test::octet_program(), flags, folder.path());
  }

  std::vector<nlohmann::json> metrics(const std::string& name) {
    std::vector<nlohmann::json> lines;
    std::ifstream file(folder.path() + "/runs/" + name + "/metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      nlohmann::json record = nlohmann::json::parse(line, nullptr, false);
      if (record.is_object()) lines.push_back(std::move(record));
    }
    return lines;
  }

  void wait_for_steps(const std::string& name, size_t count) {
    for (int i = 0; i < 1200 && metrics(name).size() < count; ++i) usleep(50'000);
    ASSERT_GE(metrics(name).size(), count);
  }

  std::string step_folder(const std::string& name, int step) {
    return folder.path() + "/runs/" + name + "/checkpoints_fp8/step_" + std::to_string(step);
  }

  void expect_equal_ends(const std::string& a, const std::string& b, int step) {
    for (const char* file : {"model.safetensors", "optimizer.safetensors", "fp8_state.bin", "state.json"}) {
      EXPECT_TRUE(read_text(step_folder(a, step) + "/" + file) ==
                  read_text(step_folder(b, step) + "/" + file))
          << file;
    }
    const auto of_a = metrics(a), of_b = metrics(b);
    ASSERT_EQ(of_a.size(), of_b.size());
    for (size_t i = 0; i < of_a.size(); ++i) {
      for (const char* key : {"step", "loss", "grad_norm", "lr", "tokens"})
        EXPECT_EQ(of_a[i][key], of_b[i][key]) << i;
    }
  }

  TemporaryFolder folder;
};

TEST_F(ResumeCli, KilledTwentyTimesItEndsWithTheSameBits) {
  const auto began = std::chrono::steady_clock::now();
  ASSERT_EQ(run(arguments("whole")).exit_code, 0);
  // A life of a tenth of the whole run on average, however fast the machine is. A process that was done before its
  // kill does not count, and its run is begun anew.
  const std::chrono::duration<double> whole = std::chrono::steady_clock::now() - began;
  uint64_t state = 12345;
  int kills = 0, saved = 0;
  for (int attempts = 0; kills < 20 && attempts < 200; ++attempts) {
    const pid_t child = start(arguments("killed", {{"resume", "latest"}}));
    state = state * 6364136223846793005u + 1442695040888963407u;
    std::this_thread::sleep_for(whole * (0.05 + 0.3 * (static_cast<double>(state >> 40) * 0x1p-24)));
    kill(child, SIGKILL);
    if (wait_for_process(child) == 128 + SIGKILL) {
      ++kills;
      saved += fs::exists(folder.path() + "/runs/killed/checkpoints_fp8/latest");
    } else {
      fs::remove_all(folder.path() + "/runs/killed");
    }
  }
  ASSERT_EQ(kills, 20);
  ASSERT_GT(saved, 5) << "hardly a process lived to its first save";
  const ProcessResult last = run(arguments("killed", {{"resume", "latest"}}));
  ASSERT_EQ(last.exit_code, 0) << last.err;
  expect_equal_ends("whole", "killed", 40);
}

// FAULTS 23: the step is finished, the state saved, and the code asks for another start.
TEST_F(ResumeCli, ASignalSavesAndAsksToBeQueuedAgain) {
  // The rate does not depend on max_steps, so that runs of any length are parts of one another.
  Flags flags = {{"save_steps", "100000"}, {"max_steps", "100000"}, {"lr_scheduler_type", "constant"}};
  signal(SIGHUP, SIG_DFL);  // not as under nohup
  for (const int number : {SIGTERM, SIGUSR1, SIGINT, SIGHUP}) {
    const size_t before = metrics("stopped").size();
    const pid_t child = start(arguments("stopped", flags));
    wait_for_steps("stopped", before + 2);
    const auto asked = std::chrono::steady_clock::now();
    kill(child, number);
    EXPECT_EQ(wait_for_process(child), 75) << read_text(folder.path() + "/out.txt");
    EXPECT_LT(std::chrono::steady_clock::now() - asked, std::chrono::seconds(90));
    EXPECT_THAT(read_text(folder.path() + "/out.txt"), HasSubstr("stopped on request"));
    EXPECT_TRUE(fs::exists(step_folder("stopped", static_cast<int>(metrics("stopped").size())))) << number;
    flags["resume"] = "latest";
  }
  const int steps = static_cast<int>(metrics("stopped").size());
  Flags whole = {
      {"max_steps", std::to_string(steps)}, {"lr_scheduler_type", "constant"}, {"save_steps", "0"}};
  ASSERT_EQ(run(arguments("whole", whole)).exit_code, 0);
  for (const char* file : {"model.safetensors", "optimizer.safetensors", "fp8_state.bin"}) {
    EXPECT_TRUE(read_text(step_folder("whole", steps) + "/" + file) ==
                read_text(step_folder("stopped", steps) + "/" + file))
        << file;
  }
}

// The second signal does not wait, also while the first one's state is being saved; what was saved before stays whole.
TEST_F(ResumeCli, ASecondSignalEndsAtOnce) {
  const pid_t child = start(arguments("run", {{"max_steps", "100000"}, {"save_steps", "5"}}));
  wait_for_steps("run", 12);
  kill(child, SIGTERM);
  usleep(70'000);  // more than one request's echo
  kill(child, SIGTERM);
  const int code = wait_for_process(child);
  EXPECT_TRUE(code == 143 || code == 75) << code;  // 75: it was quicker than the second signal
  const ProcessResult list = run({"checkpoints", "runs/run", "--verify"});
  EXPECT_EQ(list.exit_code, 0) << list.out << list.err;
}

// FAULTS 5: without help from the program the system would end it with SIGXFSZ.
TEST_F(ResumeCli, ALimitOnTheSizeOfFilesIsLikeAFullDisk) {
  ASSERT_EQ(run(arguments("limited", {{"max_steps", "3"}})).exit_code, 0);
  std::string command = "ulimit -f 1000; exec " + test::octet_program();
  for (const std::string& word : arguments("limited", {{"resume", "latest"}})) command += " '" + word + "'";
  const ProcessResult result = run_process("/bin/bash", {"-c", command}, folder.path());
  EXPECT_EQ(result.exit_code, 4) << result.err;
  EXPECT_THAT(result.err, HasSubstr("File too large"));
  EXPECT_THAT(result.err, HasSubstr("3 checkpoints in a row could not be saved"));
  EXPECT_EQ(run({"checkpoints", "runs/limited", "--verify"}).exit_code, 0);
  const ProcessResult again = run(arguments("limited", {{"resume", "latest"}}));
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("resumed from runs/limited/checkpoints_fp8/step_3 "));
}

// "ulimit -t" sets the hard limit, too, which kills a process.
TEST_F(ResumeCli, ALimitOnTheTimeOfTheCpuStopsARunCleanly) {
  std::string command = "ulimit -t 3; exec " + test::octet_program();
  for (const std::string& word : arguments("limited", {{"max_steps", "1000000"}})) command += " '" + word + "'";
  const ProcessResult result = run_process("/bin/bash", {"-c", command}, folder.path());
  EXPECT_EQ(result.exit_code, 75) << result.err;
  EXPECT_EQ(run({"checkpoints", "runs/limited", "--verify"}).exit_code, 0);
}

TEST_F(ResumeCli, TwoProcessesOnOneRunFolderAreRefused) {
  const pid_t child = start(arguments("one", {{"max_steps", "100000"}}));
  wait_for_steps("one", 4);
  const ProcessResult second = run(arguments("one", {{"max_steps", "100000"}, {"resume", "latest"}}));
  kill(child, SIGKILL);
  wait_for_process(child);
  EXPECT_EQ(second.exit_code, 2);
  EXPECT_THAT(second.err, HasSubstr(std::to_string(child))) << "the other process is named";
}

// FAULTS 15: two fresh runs are one, also on another number of threads.
TEST_F(ResumeCli, TwoFreshRunsHaveTheSameBits) {
  ASSERT_EQ(run(arguments("one", {{"max_steps", "100"}, {"deterministic", "true"}})).exit_code, 0);
  ASSERT_EQ(run(arguments("two", {{"max_steps", "100"}, {"deterministic", "true"}, {"num_threads", "2"}}))
                .exit_code,
            0);
  expect_equal_ends("one", "two", 100);
}

TEST_F(ResumeCli, WithoutAFileTheRunsOwnConfigurationIsTaken) {
  ASSERT_EQ(run(arguments("first", {{"max_steps", "6"}, {"learning_rate", "0.001"}})).exit_code, 0);
  const ProcessResult more = run({"train", "--resume", "latest", "--max_steps", "9"});
  ASSERT_EQ(more.exit_code, 0) << more.err;
  EXPECT_THAT(more.out, HasSubstr("resumed from runs/first/checkpoints_fp8/step_6 after step 6"));
  EXPECT_THAT(more.out, HasSubstr("changed setting: max_steps 6 -> 9"));
  EXPECT_EQ(metrics("first").size(), 9u);
  const ProcessResult done = run({"train", "--resume", "runs/first"});
  EXPECT_EQ(done.exit_code, 0) << done.err;
  EXPECT_THAT(done.out, HasSubstr("nothing is left to train"));
}

TEST_F(ResumeCli, BadRequestsAreNamed) {
  const auto error = [&](const Flags& changes) {
    const ProcessResult result = run(arguments("bad", changes));
    EXPECT_NE(result.exit_code, 0);
    return result.err;
  };
  EXPECT_THAT(error({{"resume", "runs/nothing"}}), HasSubstr("runs/nothing"));
  EXPECT_THAT(error({{"resume", "."}}), HasSubstr("holds no checkpoint"));
  EXPECT_THAT(error({{"resume", ""}}), HasSubstr("--resume is empty"));
  ASSERT_EQ(run(arguments("unsaved", {{"max_steps", "2"}, {"save_strategy", "no"}})).exit_code, 0);
  EXPECT_THAT(error({{"resume", "runs/unsaved"}}),
              AllOf(HasSubstr("runs/unsaved, a run that has saved no checkpoint"),
                    HasSubstr("/runs --run_name unsaved --resume latest")));
  const ProcessResult again = run(arguments("unsaved", {{"max_steps", "2"}, {"resume", "latest"}}));
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("starts from the beginning"));
  EXPECT_THAT(error({{"save_total_limit", "1"}}), HasSubstr("save_total_limit is 1"));
  EXPECT_FALSE(fs::exists(folder.path() + "/runs/bad"));
  EXPECT_THAT(run({"train", "--resume", "latest"}).err, HasSubstr("holds no run with a checkpoint"));
  // A file without a name: the newest run may be anybody's.
  folder.write("run.yaml", "max_steps: 3\n");
  EXPECT_THAT(run({"train", "run.yaml", "--resume", "latest"}).err, HasSubstr("set run_name"));
  const ProcessResult nothing =
      run_process(test::octet_program(), {"train", "--list_checkpoints", "--output_dir", "nothing"}, folder.path());
  EXPECT_EQ(nothing.exit_code, 2);
  EXPECT_THAT(nothing.err, HasSubstr("output_dir nothing holds no run with checkpoints"));
}

TEST_F(ResumeCli, TensorBoardFilesStandInTheRunsFolder) {
  ASSERT_EQ(run(arguments("board", {{"max_steps", "2"}})).exit_code, 0);
  int files = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder.path() + "/runs/board")) {
    files += entry.path().filename().string().starts_with("events.out.tfevents.");
  }
  EXPECT_EQ(files, 1);
}

}  // namespace
}  // namespace octet::test
