// What octet tells about a run while it trains: energy and cost, red flags, traces, and octet watch.

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "support/fake_nvml.h"
#include "support/places.h"
#include "support/process.h"
#include "support/trace_file.h"

namespace octet::test {
namespace {

using nlohmann::json;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
namespace fs = std::filesystem;

using Flags = std::map<std::string, std::string>;

struct MonitoringCli : testing::Test {
  MonitoringCli() {
    std::string text;
    for (int i = 0; i < 300; ++i)
      text += "the quick brown fox number " + std::to_string(i * 7919 % 1000) + " jumps\n";
    folder.write("text.txt", text);
  }
  // A run of the smallest model.
  ProcessResult train(const std::string& name, const Flags& changes = {}) {
    Flags flags = {{"--dataset", "text.txt"},      {"--device", "cpu"},
                   {"--num_threads", "1"},         {"--model_preset", "llama"},
                   {"--hidden_size", "32"},        {"--num_hidden_layers", "1"},
                   {"--num_attention_heads", "2"}, {"--vocab_size", "272"},
                   {"--max_seq_length", "32"},     {"--per_device_train_batch_size", "2"},
                   {"--max_steps", "6"},           {"--eval_strategy", "no"},
                   {"--save_strategy", "no"},      {"--warmup_steps", "0"},
                   {"--progress", "plain"},        {"--run_name", name}};
    for (const auto& [flag, value] : changes) flags[flag] = value;
    std::vector<std::string> arguments = {"train"};
    for (const auto& [flag, value] : flags) arguments.push_back(flag + "=" + value);
    return octet(arguments);
  }
  ProcessResult octet(const std::vector<std::string>& arguments) {
    return run_process(test::octet_program(), arguments, folder.path());
  }
  std::string path(const std::string& name) const { return folder.path() + "/" + name; }
  std::vector<json> metrics(const std::string& name) {
    std::vector<json> lines;
    std::ifstream file(path("runs/" + name + "/metrics.jsonl"));
    for (std::string line; std::getline(file, line);) lines.push_back(json::parse(line));
    return lines;
  }
  std::vector<double> losses(const std::string& name) {
    std::vector<double> result;
    for (const json& line : metrics(name)) result.push_back(line["loss"]);
    return result;
  }
  TemporaryFolder folder;
};

TEST_F(MonitoringCli, EveryRecordHasTimeMemoryAndDataWait) {
  const ProcessResult result = train("plain");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  double before = 0;
  for (const json& line : metrics("plain")) {
    EXPECT_GT(line["time"].get<double>(), before);
    before = line["time"];
    EXPECT_GT(line["memory_bytes"].get<int64_t>(), 1000);
    EXPECT_GE(line["data_wait_ms"].get<double>(), 0);
    EXPECT_LE(line["data_wait_ms"].get<double>(), line["step_ms"].get<double>());
    EXPECT_FALSE(line.contains("gpu"));
    EXPECT_FALSE(line.contains("red_flags"));
  }
  EXPECT_THAT(result.out, Not(HasSubstr("energy")));
  EXPECT_THAT(result.out, Not(HasSubstr("cost")));
  EXPECT_THAT(result.err, Not(HasSubstr("NVML")));
}

TEST_F(MonitoringCli, EnergyAndCostAreCountedOverARestart) {
  const FakeNvml fake(
      "power_mw 500000\nenergy_mj 1000\nutilization 97\nsm_clock 1700\ntemperature 61\nthrottle 4\n");
  setenv("OCTET_NVML_GPU", "0", 1);
  const Flags flags = {{"--max_steps", "40"},
                       {"--save_strategy", "steps"},
                       {"--save_steps", "20"},
                       {"--price_per_hour", "3600"}};
  const ProcessResult first = train("energy", flags);
  Flags more = flags;
  more["--max_steps"] = "60";
  more["--resume"] = "latest";
  const ProcessResult second = train("energy", more);
  unsetenv("OCTET_NVML_GPU");
  ASSERT_EQ(first.exit_code, 0) << first.err;
  ASSERT_EQ(second.exit_code, 0) << second.err;
  EXPECT_THAT(first.out, ContainsRegex("energy +[0-9.e-]+ kWh, [0-9.e+-]+ J per 1,000 tokens"));
  EXPECT_THAT(first.out, ContainsRegex("cost +[0-9.e-]+ \\([0-9.e-]+ device hours at 3600"));
  const auto lines = metrics("energy");
  ASSERT_EQ(lines.size(), 60u);
  const json& gpu = lines[39]["gpu"];
  EXPECT_EQ(gpu["power_watts"], 500);
  EXPECT_EQ(gpu["sm_clock_mhz"], 1700);
  EXPECT_EQ(gpu["temperature_c"], 61);
  EXPECT_EQ(gpu["throttled"], "power cap");
  EXPECT_NEAR(gpu["utilization"].get<double>(), 0.97, 1e-9);
  // 500 W for as long as the steps took, and not less after the restart.
  double before = 0;
  for (const json& line : lines) {
    const double energy = line["gpu"]["energy_joules"];
    EXPECT_GE(energy, before);
    before = energy;
  }
  EXPECT_GT(lines[0]["device_seconds"].get<double>(), 0);
  EXPECT_GT(lines[40]["device_seconds"].get<double>(), lines[39]["device_seconds"].get<double>());
  // The counter may be read a moment before the time is.
  const double seconds = lines[39]["device_seconds"];
  EXPECT_LE(lines[39]["gpu"]["energy_joules"].get<double>(), 500 * (seconds + 1));
}

TEST_F(MonitoringCli, ALossThatDoesNotFallIsARedFlagOnce) {
  const Flags flags = {{"--learning_rate", "1e-12"},
                       {"--max_steps", "130"},
                       {"--save_strategy", "steps"},
                       {"--lr_scheduler_type", "constant"}};
  const ProcessResult result = train("stuck", flags);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("warning: step 100: red flag loss_not_falling: the loss was 5."));
  EXPECT_THAT(result.err, HasSubstr("Check learning_rate (now 1e-12)"));
  EXPECT_THAT(result.out, ContainsRegex("red flags +loss_not_falling"));
  // A loaded machine may give other kinds.
  std::vector<int64_t> steps;
  for (const json& line : metrics("stuck")) {
    if (!line.contains("red_flags")) continue;
    for (const json& flag : line["red_flags"]) {
      if (flag["kind"] == "loss_not_falling") steps.push_back(line["step"]);
    }
  }
  EXPECT_THAT(steps, testing::ElementsAre(100));

  Flags more = flags;
  more["--max_steps"] = "260";
  more["--resume"] = "latest";
  const ProcessResult again = train("stuck", more);
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.err, Not(HasSubstr("red flag loss_not_falling")));
  EXPECT_THAT(again.out, ContainsRegex("red flags +loss_not_falling"));

  Flags healthy = flags;
  healthy["--learning_rate"] = "3e-3";
  const ProcessResult learns = train("learns", healthy);
  EXPECT_THAT(learns.err, Not(HasSubstr("red flag loss_not_falling")));
  EXPECT_THAT(learns.out, Not(HasSubstr("loss_not_falling")));
}

TEST_F(MonitoringCli, TracesStepsWithoutChangingThem) {
  const Flags flags = {
      {"--save_strategy", "steps"}, {"--save_steps", "3"}, {"--gradient_accumulation_steps", "2"}};
  ASSERT_EQ(train("plain", flags).exit_code, 0);
  Flags with_trace = flags;
  with_trace["--profile_steps"] = "2:4";
  const ProcessResult result = train("traced", with_trace);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(losses("plain"), losses("traced"));
  EXPECT_THAT(result.err, ContainsRegex("trace of [0-9]+ spans: runs/traced/trace-rank0.json"));
  EXPECT_THAT(read_text(path("runs/traced/config.yaml")), Not(HasSubstr("profile_steps")));
  EXPECT_FALSE(fs::exists(path("runs/plain/trace-rank0.json")));

  const TraceFile file(read_text(path("runs/traced/trace-rank0.json")));
  EXPECT_EQ(file.fault(), "");
  std::map<std::string, int> names;
  for (const std::string& track : file.tracks()) {
    for (const json& span : file.spans(track)) ++names[span["name"].get<std::string>()];
  }
  for (const char* name : {"step 2", "step 3", "step 4", "save: copy the state"})
    EXPECT_EQ(names[name], 1) << name;
  EXPECT_LE(names["write checkpoint"], 1) << "in the background: it may begin after the last traced step";
  EXPECT_EQ(names["wait for data"], 6);
  EXPECT_GE(names["load batch"], 3);
  EXPECT_EQ(names["adamw"], 3);
  EXPECT_EQ(names["optimizer"], 3);
  EXPECT_GT(names["copy_to_host"], 0);
  EXPECT_EQ(names.count("step 5"), 0u);
  EXPECT_THAT(file.tracks(), testing::IsSupersetOf({std::string("octet, rank 0/training"),
                                                    std::string("octet, rank 0/data loader")}));
  EXPECT_EQ(file.tracks().contains("octet, rank 0/checkpoint writer"), names["write checkpoint"] == 1);
}

TEST_F(MonitoringCli, StepsThatCannotBeTracedAreRefused) {
  const auto refused = [&](const std::string& steps) {
    const ProcessResult result = train("refused", {{"--profile_steps", steps}});
    EXPECT_EQ(result.exit_code, 2) << steps;
    return result.err;
  };
  EXPECT_THAT(refused("4:2"), HasSubstr("profile_steps is '4:2'; expected two steps such as 10:12"));
  EXPECT_THAT(refused("soon"), HasSubstr("profile_steps is 'soon'"));
  EXPECT_THAT(refused("5:7"), HasSubstr("profile_steps is 5:7, but the run has 6 steps"));
  EXPECT_FALSE(fs::exists(path("runs/refused")));
}

TEST_F(MonitoringCli, AResumedRunDoesNotTraceWhatIsDone) {
  const Flags flags = {{"--save_strategy", "steps"}};
  ASSERT_EQ(train("run", flags).exit_code, 0);
  Flags more = flags;
  more["--max_steps"] = "8";
  more["--resume"] = "latest";
  more["--profile_steps"] = "2:4";
  const ProcessResult result = train("run", more);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err,
              HasSubstr("profile_steps is 2:4, but the run continues after step 6: no trace is written"));
}

TEST_F(MonitoringCli, BenchTracesProfilesAndMeasuresEnergy) {
  const std::vector<std::string> bench = {"bench", "--device",       "cpu",         "--num_threads",
                                          "1",     "--model_preset", "gpt2-tiny",   "--max_seq_length",
                                          "16",    "--bench_steps",  "2",           "--bench_warmup",
                                          "1",     "--variants",     "bf16,delayed"};
  const auto with = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), bench.begin(), bench.end());
    return octet(flags);
  };
  const FakeNvml fake("power_mw 500000\nenergy_mj 1000\n");
  setenv("OCTET_NVML_GPU", "0", 1);
  const ProcessResult result = with({"--profile_steps", "2", "--profile", "--json", "bench.json"});
  unsetenv("OCTET_NVML_GPU");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("J/1,000 tokens"));
  EXPECT_THAT(result.out, ContainsRegex("GEMM forward +[0-9]+"));
  for (const char* name : {"trace-bf16.json", "trace-delayed.json"}) {
    const TraceFile file(read_text(path(name)));
    EXPECT_EQ(file.fault(), "") << name;
    EXPECT_GE(file.tracks().size(), 3u);
  }
  // The steps that give the speed are others than those that give the energy: on a busy machine they do not agree.
  for (const json& run : json::parse(read_text(path("bench.json"))))
    EXPECT_GT(run["joules_per_1000_tokens"].get<double>(), 0);
  const ProcessResult plain = with({});
  EXPECT_THAT(plain.out, Not(HasSubstr("J/1,000 tokens")));
  const ProcessResult refused = with({"--profile_steps", "2:9"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("profile_steps is 2:9, but bench runs 3 steps, warm-up included"));
}

// ---- octet watch ----

TEST_F(MonitoringCli, WatchPrintsOneFrameWithoutATerminal) {
  ASSERT_EQ(train("first").exit_code, 0);
  const ProcessResult frame = octet({"watch", "runs/first"});
  ASSERT_EQ(frame.exit_code, 0) << frame.err;
  EXPECT_THAT(frame.out, testing::StartsWith("first: finished"));
  EXPECT_THAT(frame.out, HasSubstr("step 6 of 6 (100.0 %)"));
  EXPECT_THAT(frame.out, HasSubstr("tokens/s"));
  EXPECT_THAT(frame.out, Not(HasSubstr("\x1b")));
  EXPECT_EQ(octet({"watch", "runs/first", "--once"}).exit_code, 0);
  EXPECT_EQ(octet({"watch", "runs/first/metrics.jsonl"}).exit_code, 0);

  fs::create_directory(path("runs/second"));
  std::ofstream(path("runs/second/config.yaml")) << "max_steps: 100\n";
  const ProcessResult overview = octet({"watch", "runs"});
  EXPECT_THAT(overview.out, ContainsRegex("first +finished +6/6"));
  EXPECT_THAT(overview.out, ContainsRegex("second +waiting for the first step"));
  EXPECT_EQ(octet({"watch", "runs/first", "runs/second"}).out, overview.out);
  EXPECT_THAT(octet({"watch", "runs/second"}).out, HasSubstr("second: waiting for the first step"));
}

TEST_F(MonitoringCli, WatchNamesWhatIsWrong) {
  const auto refused = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "watch");
    const ProcessResult result = octet(arguments);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(result.out, "");
    return result.err;
  };
  EXPECT_THAT(refused({"runs/none"}), HasSubstr("[runs/none] is not there"));
  EXPECT_THAT(refused({"."}), HasSubstr("[.] is not the folder of a run"));
  EXPECT_THAT(refused({"--interval", "0", "runs"}), HasSubstr("--interval is '0'"));
  EXPECT_THAT(refused({}), HasSubstr("RUN"));
}

// A terminal with the live view in it.
class Terminal {
 public:
  Terminal(const std::string& folder, std::vector<std::string> arguments) {
    const winsize size{.ws_row = 30, .ws_col = 90, .ws_xpixel = 0, .ws_ypixel = 0};
    int line = -1;
    EXPECT_EQ(openpty(&screen_, &line, nullptr, nullptr, &size), 0);
    line_ = line;
    EXPECT_EQ(tcgetattr(line_, &before_), 0);
    child_ = fork();
    if (child_ == 0) {
      setsid();
      ioctl(line, TIOCSCTTY, 0);
      for (const int fd : {0, 1, 2}) dup2(line, fd);
      setenv("TERM", "xterm-256color", 1);
      if (chdir(folder.c_str()) != 0) _exit(99);
      arguments.insert(arguments.begin(), test::octet_program());
      std::vector<char*> words;
      for (std::string& argument : arguments) words.push_back(argument.data());
      words.push_back(nullptr);
      execv(words[0], words.data());
      _exit(98);
    }
  }
  ~Terminal() {
    if (child_ > 0) {
      kill(child_, SIGKILL);
      waitpid(child_, nullptr, 0);
    }
    close(screen_);
    close(line_);
  }
  // Reads until the text has come after what was found before; false after some seconds.
  bool shows(const std::string& text) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (std::chrono::steady_clock::now() < end) {
      if (const size_t at = output_.find(text, seen_); at != output_.npos) {
        seen_ = at + text.size();
        return true;
      }
      pollfd ready{.fd = screen_, .events = POLLIN, .revents = 0};
      if (poll(&ready, 1, 100) <= 0) continue;
      char bytes[4096];
      const ssize_t count = read(screen_, bytes, sizeof bytes);
      if (count > 0) output_.append(bytes, static_cast<size_t>(count));
    }
    return false;
  }
  void press(const std::string& keys) {
    EXPECT_EQ(write(screen_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }
  void resize(unsigned short columns, unsigned short rows) {
    const winsize size{.ws_row = rows, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    ioctl(screen_, TIOCSWINSZ, &size);
  }
  void signal(int number) { kill(child_, number); }
  int exit_code() {
    int status = 0;
    waitpid(child_, &status, 0);
    child_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  // Whether the terminal reads keys as before.
  bool is_restored() {
    termios now{};
    tcgetattr(line_, &now);
    return now.c_lflag == before_.c_lflag;
  }
  const std::string& output() const { return output_; }

 private:
  int screen_ = -1, line_ = -1;
  pid_t child_ = -1;
  termios before_{};
  std::string output_;
  size_t seen_ = 0;
};

struct WatchTerminal : MonitoringCli {
  WatchTerminal() {
    fs::create_directories(path("runs/live"));
    std::ofstream(path("runs/live/config.yaml")) << "max_steps: 1000\n";
  }
  void append(int step) {
    std::ofstream file(path("runs/live/metrics.jsonl"), std::ios::app);
    file << fmt::format(
        "{{\"step\": {}, \"loss\": 4.5, \"step_ms\": 10, \"tokens_per_second\": 100, \"time\": {}}}\n", step,
        std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count());
  }
};

TEST_F(WatchTerminal, FollowsARunAndGivesTheTerminalBack) {
  Terminal terminal(folder.path(), {"watch", "runs/live", "--interval", "0.1"});
  ASSERT_TRUE(terminal.shows("\x1b[?1049h")) << "the alternate screen";
  ASSERT_TRUE(terminal.shows("live: waiting for the first step"));
  append(1);
  append(2);
  ASSERT_TRUE(terminal.shows("live: running")) << terminal.output();
  ASSERT_TRUE(terminal.shows("step 2 of 1,000"));
  append(3);
  ASSERT_TRUE(terminal.shows("step 3 of 1,000"));
  EXPECT_FALSE(terminal.is_restored()) << "keys come one by one";
  terminal.resize(40, 12);
  ASSERT_TRUE(terminal.shows("step 3 of 1,000"));
  terminal.press("x");
  terminal.press("q");
  ASSERT_TRUE(terminal.shows("\x1b[?25h\x1b[?1049l")) << "cursor and screen are back";
  EXPECT_EQ(terminal.exit_code(), 0);
  EXPECT_TRUE(terminal.is_restored());
  // Nothing is cleared before it is drawn: that would flicker.
  EXPECT_EQ(terminal.output().find("\x1b[2J", terminal.output().find("\x1b[2J") + 1), std::string::npos);
}

TEST_F(WatchTerminal, CtrlCAndSignalsLeaveItAsWell) {
  for (const bool by_key : {true, false}) {
    Terminal terminal(folder.path(), {"watch", "runs/live", "--interval", "60"});
    ASSERT_TRUE(terminal.shows("waiting for the first step"));
    if (by_key) {
      terminal.press("\x03");
    } else {
      terminal.signal(SIGTERM);
    }
    ASSERT_TRUE(terminal.shows("\x1b[?25h\x1b[?1049l"));
    EXPECT_EQ(terminal.exit_code(), 0);
    EXPECT_TRUE(terminal.is_restored());
  }
}

}  // namespace
}  // namespace octet::test
