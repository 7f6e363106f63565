#include "train/step_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "support/captured_log.h"
#include "support/process.h"
#include "support/tiny_run.h"
#include "support/trace_file.h"

namespace octet::test {
namespace {

// The ops that a step has are counted as on the GPU (tests/cuda/training_test.cpp).
TEST(CpuProfile, HasEveryKindOfOp) {
  TinyRun run({.precision = Precision::Fp8, .fp8 = {.recipe = Fp8Recipe::Current}});
  run.steps(2);
  run.device->start_profile();
  run.step();
  std::map<std::string, int64_t> calls;
  double total = 0, flops = 0;
  for (const OpTime& time : run.device->finish_profile()) {
    calls[time.kind] += time.calls;
    total += time.ms;
    flops += time.flops;
    EXPECT_GE(time.ms, 0) << time.op;
  }
  EXPECT_GT(total, 0);
  EXPECT_GT(flops, 0);
  const int64_t products = 2 * 4;  // of two layers
  EXPECT_EQ(calls["GEMM forward"], products);
  EXPECT_EQ(calls["GEMM dgrad"], products);
  EXPECT_EQ(calls["GEMM wgrad"], products);
  EXPECT_EQ(calls["attention forward"], 2);
  EXPECT_EQ(calls["attention backward"], 2);
  EXPECT_EQ(calls["norm"], 2 * (2 * 2 + 1));
  EXPECT_EQ(calls["activation"], 2 * 2);
  EXPECT_EQ(calls["optimizer"], 1);
  EXPECT_EQ(calls["norm of gradients"], 1);
  for (const char* kind : {"rope", "embedding", "head and loss", "idle", "copies"})
    EXPECT_GT(calls[kind], 0) << kind;
  EXPECT_TRUE(run.device->finish_profile().empty());  // switched off
}

TEST(CpuProfile, DoesNotChangeTheResults) {
  const TinyRunOptions options{.precision = Precision::Fp8};
  TinyRun plain(options), profiled(options);
  for (int i = 0; i < 3; ++i) {
    profiled.device->start_profile();
    const StepResult a = plain.step(), b = profiled.step();
    profiled.device->finish_profile();
    EXPECT_EQ(a.loss, b.loss);
    EXPECT_EQ(a.grad_norm, b.grad_norm);
  }
}

TEST(StepTrace, WritesTheStepsOfItsRange) {
  const TemporaryFolder folder;
  const CapturedLog log;
  TinyRun run({.precision = Precision::Bf16});
  const std::string path = folder.path() + "/trace.json";
  StepTrace trace(StepRange{2, 3}, *run.device, 4, path);
  for (int64_t step = 1; step <= 5; ++step) {
    trace.begin_step(step);
    run.step();
    trace.end_step(step);
    EXPECT_EQ(std::filesystem::exists(path), step >= 3) << step;
  }
  trace.finish();
  ASSERT_EQ(log.messages.size(), 1u);
  EXPECT_THAT(log.messages[0], testing::HasSubstr("/trace.json"));

  const TraceFile file(read_text(path));
  EXPECT_EQ(file.fault(), "");
  const std::string device = run.device->description() + ", rank 4";
  EXPECT_EQ(file.tracks(),
            (std::set<std::string>{"octet, rank 4/training", device + "/phases", device + "/compute"}));
  std::vector<std::string> steps, phases;
  const auto training = file.spans("octet, rank 4/training");
  for (const auto& span : training) {
    if (span["name"].get<std::string>().starts_with("step")) steps.push_back(span["name"]);
  }
  EXPECT_THAT(steps, testing::ElementsAre("step 2", "step 3"));
  for (const auto& span : file.spans(device + "/phases")) phases.push_back(span["name"]);
  EXPECT_THAT(phases, testing::ElementsAre("forward", "head", "backward", "optimizer", "forward", "head",
                                           "backward", "optimizer"));
  // The ops of a step lie in it: both clocks are the same. The file has three digits of a microsecond or more.
  const auto ops = file.spans(device + "/compute");
  constexpr double kRounding = 1;  // us
  EXPECT_GT(ops.size(), 40u);
  const double begin = training.front()["ts"],
               end = training.back()["ts"].get<double>() + training.back()["dur"].get<double>();
  for (const auto& op : ops) {
    EXPECT_GE(op["ts"].get<double>(), begin - kRounding) << op;
    EXPECT_LE(op["ts"].get<double>() + op["dur"].get<double>(), end + kRounding) << op;
  }
}

TEST(StepTrace, ARunThatEndsEarlyHasWhatWasTraced) {
  const TemporaryFolder folder;
  const CapturedLog log;
  TinyRun run({});
  StepTrace trace(StepRange{1, 100}, *run.device, 0, folder.path() + "/trace.json");
  trace.begin_step(1);
  run.step();
  trace.end_step(1);
  trace.finish();
  EXPECT_EQ(TraceFile(read_text(folder.path() + "/trace.json")).fault(), "");
}

// What it leads to is not octet's.
TEST(StepTrace, ALinkInTheWayIsReplaced) {
  const TemporaryFolder folder;
  const CapturedLog log;
  folder.write("notes.txt", "mine");
  const std::string path = folder.path() + "/trace.json";
  std::filesystem::create_symlink("notes.txt", path);
  TinyRun run({});
  StepTrace trace(StepRange{1, 1}, *run.device, 0, path);
  trace.begin_step(1);
  run.step();
  trace.end_step(1);
  EXPECT_EQ(read_text(folder.path() + "/notes.txt"), "mine");
  EXPECT_EQ(TraceFile(read_text(path)).fault(), "");
}

TEST(StepTrace, AFileThatCannotBeWrittenIsAWarning) {
  const CapturedLog log;
  TinyRun run({});
  StepTrace trace(StepRange{1, 1}, *run.device, 0, "/nonexistent/trace.json");
  trace.begin_step(1);
  run.step();
  trace.end_step(1);
  ASSERT_EQ(log.messages.size(), 1u);
  EXPECT_THAT(log.messages[0],
              testing::HasSubstr("[/nonexistent/trace.json] the trace could not be written"));
  EXPECT_FALSE(active_trace());
}

}  // namespace
}  // namespace octet::test
