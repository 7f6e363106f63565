#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "base/error.h"
#include "report/metrics.h"
#include "report/plan_facts.h"
#include "report/run_follow.h"
#include "report/text.h"
#include "report/watch_frame.h"
#include "report_test_support.h"

namespace octet {
namespace {

using testing::HasSubstr;
using testing::Not;
namespace fs = std::filesystem;

constexpr double kNow = 1'800'000'000;

StepRecord record_at(int64_t step, double loss, double time = kNow) {
  StepRecord record;
  record.step = step;
  record.loss = loss;
  record.lr = 3e-4;
  record.grad_norm = 0.5;
  record.step_ms = 1000;
  record.tokens_per_second = 73371;
  record.tokens = 1000 * step;
  record.precision = "FP8";
  record.time = time;
  return record;
}

struct Watch : testing::Test {
  Watch() { fs::create_directory(run); }
  void append(const std::string& text) { std::ofstream(run / "metrics.jsonl", std::ios::app) << text; }
  void append(const StepRecord& record) { append(metrics_line(record) + "\n"); }
  void configure(int64_t max_steps) {
    write_contents(run / "config.yaml", fmt::format("max_steps: {}\n", max_steps));
  }
  std::string frame(int columns = 100, int rows = 0, double now = kNow) {
    return watch_frame(RunFollower(run.string()), {.columns = columns, .rows = rows, .now = now});
  }
  RunState state(double now) { return state_of(RunFollower(run.string()), now); }

  TemporaryFolder folder;
  fs::path run = folder.path() / "first";
};

TEST_F(Watch, ReadsOnlyWhatIsNewAndWholeLines) {
  configure(10);
  RunFollower follower(run.string());
  EXPECT_TRUE(follower.run().records.empty());
  EXPECT_FALSE(follower.refresh());
  append(record_at(1, 4));
  EXPECT_TRUE(follower.refresh());
  const std::string line = metrics_line(record_at(2, 3)) + "\n";
  append(line.substr(0, 20));
  EXPECT_FALSE(follower.refresh()) << "half a line";
  ASSERT_EQ(follower.run().records.size(), 1u);
  append(line.substr(20));
  EXPECT_TRUE(follower.refresh());
  ASSERT_EQ(follower.run().records.size(), 2u);
  EXPECT_EQ(follower.run().records[1].loss, 3);
  EXPECT_FALSE(follower.refresh());
  EXPECT_EQ(follower.run().setting("max_steps"), "10");
  configure(20);
  follower.refresh();
  EXPECT_EQ(follower.run().setting("max_steps"), "20") << "a resumed run may be longer";
}

TEST_F(Watch, FollowsAResumedRun) {
  configure(10);
  for (int step = 1; step <= 5; ++step) append(record_at(step, 5));
  RunFollower follower(run.string());
  ASSERT_EQ(follower.run().records.size(), 5u);
  const auto rewrite = [&](const fs::path& to, int steps) {
    std::string text;
    for (int step = 1; step <= steps; ++step) text += metrics_line(record_at(step, 4)) + "\n";
    write_contents(to, text);
  };
  // Replaced by another file, as octet does.
  rewrite(run / "new", 3);
  fs::rename(run / "new", run / "metrics.jsonl");
  EXPECT_TRUE(follower.refresh());
  ASSERT_EQ(follower.run().records.size(), 3u);
  EXPECT_EQ(follower.run().records[2].loss, 4);
  // Cut short in place.
  fs::resize_file(run / "metrics.jsonl", metrics_line(record_at(1, 4)).size() + 1);
  EXPECT_TRUE(follower.refresh());
  EXPECT_EQ(follower.run().records.size(), 1u);
  // Records that repeat steps replace the old ones.
  append(record_at(2, 9));
  append(record_at(3, 9));
  append(record_at(2, 8));
  follower.refresh();
  ASSERT_EQ(follower.run().records.size(), 2u);
  EXPECT_EQ(follower.run().records[1].loss, 8);
}

TEST_F(Watch, ALineThatIsNoRecordIsCountedAndShown) {
  configure(10);
  append(record_at(1, 4));
  append("{\"step\": \"x\"}\nnot json\n");
  append(record_at(2, 3));
  const RunFollower follower(run.string());
  EXPECT_EQ(follower.run().records.size(), 2u);
  EXPECT_EQ(follower.unreadable_lines(), 2);
  EXPECT_THAT(frame(), HasSubstr("2 lines of metrics.jsonl cannot be read"));
}

TEST_F(Watch, WrongPathsAreNamed) {
  const auto error_of = [](const std::string& path) {
    try {
      RunFollower follower(path);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(error_of((folder.path() / "none").string()), HasSubstr("is not there"));
  EXPECT_THAT(error_of(run.string()), HasSubstr("is not the folder of a run"));
  configure(3);
  EXPECT_EQ(error_of(run.string()), "");
  EXPECT_THAT(run_folders_in(folder.path().string()), testing::ElementsAre(run.string()));
}

TEST_F(Watch, SaysWhereARunStands) {
  configure(100);
  EXPECT_EQ(state(kNow).kind, RunState::Kind::Waiting);
  EXPECT_THAT(frame(), HasSubstr("first: waiting for the first step"));
  for (int step = 1; step <= 10; ++step) append(record_at(step, 4, kNow + 30 * step));
  const RunState running = state(kNow + 310);
  EXPECT_EQ(running.kind, RunState::Kind::Running);
  ASSERT_TRUE(running.remaining_seconds);
  EXPECT_NEAR(*running.remaining_seconds, 90 * 30 - 10, 1);
  EXPECT_EQ(state(kNow + 300 + 299).kind, RunState::Kind::Running) << "records come every half minute";
  const RunState silent = state(kNow + 300 + 900);
  EXPECT_EQ(silent.kind, RunState::Kind::Silent);
  EXPECT_EQ(state_text(silent), "silent for 15m 00s");
  append(record_at(100, 2, kNow + 3000));
  EXPECT_EQ(state(kNow + 9000).kind, RunState::Kind::Finished);
}

TEST_F(Watch, TheLockTellsAStoppedRunFromASilentOne) {
  configure(100);
  for (int step = 1; step <= 3; ++step) append(record_at(step, 4, kNow + step));
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  const pid_t ended = fork();
  if (ended == 0) _exit(0);
  ASSERT_EQ(waitpid(ended, nullptr, 0), ended);
  write_contents(run / "run.lock", fmt::format("{} {}\n", ended, host));
  EXPECT_EQ(state(kNow + 5).kind, RunState::Kind::Running);
  EXPECT_EQ(state(kNow + 60).kind, RunState::Kind::Stopped) << "nobody holds it";
  EXPECT_EQ(state_text(state(kNow + 63)), "stopped 1m 00s ago");
  // A process that lives, without a lock that can be seen: no file system may make it look stopped.
  write_contents(run / "run.lock", fmt::format("{} {}\n", getpid(), host));
  EXPECT_EQ(state(kNow + 60).kind, RunState::Kind::Running);
  EXPECT_EQ(state(kNow + 600).kind, RunState::Kind::Silent);
  write_contents(run / "run.lock", "4242 another-machine\n");
  EXPECT_EQ(state(kNow + 60).kind, RunState::Kind::Running) << "nothing is known about other machines";
  EXPECT_EQ(state(kNow + 600).kind, RunState::Kind::Silent);
  EXPECT_THAT(frame(100, 0, kNow + 4), HasSubstr("(another-machine)"));

  write_contents(run / "run.lock", fmt::format("{} {}\n", ended, host));
  const int file = open((run / "run.lock").c_str(), O_RDWR);
  ASSERT_EQ(flock(file, LOCK_EX | LOCK_NB), 0);
  const RunFollower::Holder held = RunFollower(run.string()).holder();
  close(file);
  if (held == RunFollower::Holder::Nobody)
    GTEST_SKIP() << "this system does not list file locks in /proc/locks";
  EXPECT_EQ(held, RunFollower::Holder::Process);
}

TEST_F(Watch, ThePlanCountsTheStepsOfEpochs) {
  write_contents(run / "config.yaml", "num_train_epochs: 2\nmax_steps: 0\n");
  for (int step = 1; step <= 10; ++step) append(record_at(step, 4, kNow - 10 + step));
  EXPECT_EQ(state(kNow).max_steps, 0) << "an older run";
  RunFollower follower(run.string());
  write_contents(run / "plan.json", plan_facts_json({.max_steps = 20}));
  follower.refresh();
  EXPECT_EQ(state_of(follower, kNow).max_steps, 20);
  EXPECT_THAT(frame(), HasSubstr("step 10 of 20 (50.0 %)"));
  EXPECT_THAT(frame(), HasSubstr("ETA 10.0 s"));
  append(record_at(20, 4, kNow));
  EXPECT_EQ(state(kNow + 900).kind, RunState::Kind::Finished);
}

TEST_F(Watch, AFrameHasTheFiguresOfTheRun) {
  configure(2000);
  for (int step = 1; step <= 200; ++step) append(record_at(step, 3 + 5.0 / step, kNow - 200 + step));
  StepRecord record = record_at(201, 3.0, kNow);
  record.eval_loss = 3.25;
  record.data_wait_ms = 5;
  record.memory_bytes = int64_t{12} << 30;
  record.task_scores = {{"hellaswag/acc_norm", 0.2925}};
  record.gpu = GpuFigures{.power_watts = 612,
                          .energy_joules = 3.6e6,
                          .utilization = 0.98,
                          .sm_clock_mhz = 1755,
                          .temperature_c = 61,
                          .throttled = "power cap"};
  record.fp8_json =
      R"({"layers.0.mlp.up.input": {"scale": 16, "saturated": 0.0005, "flushed": 0.01},
          "layers.1.mlp.up.input": {"scale": 512, "saturated": 0, "flushed": 0.02}})";
  record.red_flags = {{"loss_spikes", "3 loss spikes in the last 200 steps. Lower learning_rate"}};
  append(record);
  const std::string text = frame();
  EXPECT_THAT(text, HasSubstr("first: running, ETA 29m 59s"));
  EXPECT_THAT(text, HasSubstr("step 201 of 2,000 (10.0 %)  [####"));
  EXPECT_THAT(text, HasSubstr("loss        3.0000 (mean of 50: "));
  EXPECT_THAT(text, HasSubstr("evaluation  3.2500 at step 201, best 3.2500"));
  EXPECT_THAT(text, HasSubstr("tasks       hellaswag/acc_norm 0.2925 at step 201"));
  EXPECT_THAT(text, HasSubstr("73.4K tokens/s, 1000.0 ms per step, 0.5 % of it waiting for data"));
  EXPECT_THAT(text, HasSubstr("memory      12.0 GiB, FP8"));
  EXPECT_THAT(text, HasSubstr("98 % busy, 612 W, 1755 MHz, 61 C, 1 kWh so far, throttled: power cap"));
  EXPECT_THAT(
      text,
      HasSubstr("saturated at most 0.05 % (layers.0.mlp.up.input), flushed at most 2 %, scales 16 to 512"));
  EXPECT_THAT(text, HasSubstr("red flag    loss_spikes at step 201\n            3 loss spikes in the last"));
  EXPECT_THAT(text, HasSubstr("loss (dots: evaluation)\n")) << "the chart";
  EXPECT_THAT(text, Not(HasSubstr("\x1b"))) << "no colours";
}

TEST_F(Watch, AFrameFitsItsScreen) {
  configure(2000);
  for (int step = 1; step <= 300; ++step) append(record_at(step, 4, kNow - 300 + step));
  StepRecord record = record_at(301, 4, kNow);
  record.red_flags = {
      {"throttled", std::string(400, 'x') + " words that are wrapped to several lines of the screen"}};
  append(record);
  for (const int columns : {30, 60, 80, 200}) {
    for (const int rows : {5, 12, 24, 60}) {
      const std::string text = frame(columns, rows);
      std::istringstream lines(text);
      int count = 0;
      for (std::string line; std::getline(lines, line); ++count)
        EXPECT_LE(display_width(line), std::max(columns, 30)) << columns << "x" << rows << ": " << line;
      EXPECT_LE(count, rows);
      EXPECT_THAT(text, HasSubstr("first: running"));
    }
  }
}

TEST_F(Watch, NamesOfRunsCannotMoveTheCursor) {
  const fs::path odd = folder.path() / "odd\x1b[2Jname";
  fs::create_directory(odd);
  write_contents(odd / "metrics.jsonl", metrics_line(record_at(1, 2)) + "\n");
  const RunFollower follower(odd.string());
  EXPECT_THAT(watch_frame(follower, {.now = kNow}), Not(HasSubstr("\x1b")));
  EXPECT_THAT(watch_overview({&follower}, {.now = kNow}), Not(HasSubstr("\x1b")));
}

TEST_F(Watch, AnOverviewHasARowPerRun) {
  configure(100);
  for (int step = 1; step <= 10; ++step) append(record_at(step, 4, kNow - 10 + step));
  const fs::path second = folder.path() / "second";
  fs::create_directory(second);
  write_contents(second / "config.yaml", "max_steps: 5\n");
  const RunFollower a(run.string()), b(second.string());
  const std::string text = watch_overview({&a, &b}, {.columns = 200, .now = kNow});
  EXPECT_THAT(text, testing::ContainsRegex("first +running +10/100 +4.0000 +- +73.4K +- +1m 30s"));
  EXPECT_THAT(text, testing::ContainsRegex("second +waiting for the first step"));
}

}  // namespace
}  // namespace octet
