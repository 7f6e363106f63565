#include "base/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "support/trace_file.h"

namespace octet {
namespace {

using nlohmann::json;
using test::TraceFile;

TEST(Trace, IsAFileInTheTraceEventFormat) {
  Trace trace("octet, rank 1", 1);
  const size_t outer = trace.begin("training", "step 10");
  const size_t inner = trace.begin("training", "wait for data");
  trace.end(inner);
  const auto start = Clock::now();
  trace.add("GPU", "compute", "gemm 4 x 8 x 16", "GEMM forward", start, 12.5, {{"flops", 1024}});
  trace.add("GPU", "gather", "all_gather", "communication", start, 3, {});
  trace.end(outer);
  EXPECT_EQ(trace.spans(), 4u);
  const TraceFile file(trace.json());
  EXPECT_EQ(file.fault(), "");
  EXPECT_EQ(file.tracks(), (std::set<std::string>{"octet, rank 1/training", "GPU/compute", "GPU/gather"}));
  const json gemm = file.spans("GPU/compute").at(0);
  EXPECT_EQ(gemm["name"], "gemm 4 x 8 x 16");
  EXPECT_EQ(gemm["cat"], "GEMM forward");
  EXPECT_EQ(gemm["dur"], 12.5);
  EXPECT_EQ(gemm["args"]["flops"], 1024);
  const auto training = file.spans("octet, rank 1/training");
  ASSERT_EQ(training.size(), 2u);
  EXPECT_GE(training[1]["ts"].get<double>(), training[0]["ts"].get<double>());
  EXPECT_NE(gemm["pid"], training[0]["pid"]);
}

TEST(Trace, ASpanThatHasNotEndedEndsNow) {
  Trace trace("octet");
  trace.begin("writer", "write");
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const TraceFile file(trace.json());
  EXPECT_EQ(file.fault(), "");
  EXPECT_GE(file.spans("octet/writer").at(0)["dur"].get<double>(), 5000);
}

TEST(Trace, ThreadsThatDoTheSameHaveTracksOfTheirOwn) {
  const auto trace = std::make_shared<Trace>("octet");
  set_active_trace(trace);
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([] {
      for (int k = 0; k < 50; ++k) {
        const TraceSpan outer("loader", "load");
        const TraceSpan inner("loader", "read");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  set_active_trace(nullptr);
  { const TraceSpan after("loader", "after the end"); }
  const TraceFile file(trace->json());
  EXPECT_EQ(file.fault(), "");
  EXPECT_EQ(file.tracks(), (std::set<std::string>{"octet/loader 1", "octet/loader 2", "octet/loader 3"}));
  EXPECT_EQ(file.spans("octet/loader 2").size(), 100u);
}

int pushed = 0, popped = 0;

TEST(Trace, RangesAreToldToAnExternalProfiler) {
  set_trace_ranges({.push = [](const char*) { ++pushed; }, .pop = [] { ++popped; }});
  { const TraceSpan span("training", "step"); }
  set_trace_ranges({});
  { const TraceSpan span("training", "step"); }
  EXPECT_EQ(pushed, 1);
  EXPECT_EQ(popped, 1);
}

// The check that the tests of traces rely on.
TEST(TraceFile, FindsWhatIsWrong) {
  const auto fault = [](const char* events) {
    return TraceFile(std::string("{\"traceEvents\": [") + events + "]}").fault();
  };
  const std::string names =
      R"({"ph":"M","name":"process_name","pid":1,"tid":0,"args":{"name":"p"}},
         {"ph":"M","name":"thread_name","pid":1,"tid":1,"args":{"name":"t"}},)";
  const std::string a = R"({"ph":"X","name":"a","cat":"c","ts":0,"dur":10,"pid":1,"tid":1})";
  EXPECT_EQ(fault((names + a).c_str()), "");
  EXPECT_THAT(fault(a.c_str()), testing::HasSubstr("has no name"));
  EXPECT_THAT(
      fault((names + a + R"(,{"ph":"X","name":"b","cat":"c","ts":5,"dur":10,"pid":1,"tid":1})").c_str()),
      testing::HasSubstr("overlap"));
  EXPECT_THAT(fault((names + R"({"ph":"X","name":"b","cat":"c","ts":5,"pid":1,"tid":1})").c_str()),
              testing::HasSubstr("dur"));
  EXPECT_THAT(TraceFile("{").fault(), testing::HasSubstr("not JSON"));
}

}  // namespace
}  // namespace octet
