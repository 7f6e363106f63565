#include "report/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "report_test_support.h"

namespace octet {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string error_of(const std::filesystem::path& path) {
  try {
    read_metrics(path);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Metrics, LineHasTheDocumentedFields) {
  EXPECT_EQ(metrics_line(example_record()),
            R"({"step":250,"epoch":0.25,"loss":3.456789,"lr":0.0006,"grad_norm":0.8234,"step_ms":156.78,)"
            R"("tokens_per_second":3345.67,"tokens":131072,"precision":"FP8"})");
}

TEST(Metrics, LineHasOptionalFieldsWhereTheyExist) {
  StepRecord record = example_record();
  record.penalty = 0.5;
  record.eval_loss = 3.25;
  record.samples = {"a \"quoted\"\ntext", "caf\xc3\xa9 \xff"};
  record.fp8_json = R"({"qkv": {"amax": 1.5}})";
  const std::string line = metrics_line(record);
  EXPECT_THAT(line, HasSubstr(R"("loss":3.456789,"penalty":0.5,)"));
  EXPECT_THAT(line, HasSubstr(R"("eval_loss":3.25,"samples":["a \"quoted\"\ntext","café )"
                              "\uFFFD"
                              R"("])"));
  EXPECT_THAT(line, HasSubstr(R"("fp8":{"qkv":{"amax":1.5}}})"));
  EXPECT_EQ(line.find('\n'), std::string::npos);
}

TEST(Metrics, NonFiniteNumbersStayValidJsonAndAreReadBack) {
  TemporaryFolder folder;
  StepRecord record = example_record();
  record.loss = std::nan("");
  record.grad_norm = std::numeric_limits<double>::infinity();
  record.eval_loss = -std::numeric_limits<double>::infinity();
  record.fp8_json = "{\"amax\": nan}";
  const std::string line = metrics_line(record);
  EXPECT_THAT(line, HasSubstr(R"("loss":null,"loss_text":"nan")"));
  EXPECT_THAT(line, HasSubstr(R"("grad_norm":null,"grad_norm_text":"inf")"));
  EXPECT_THAT(line, HasSubstr(R"("fp8":null,"fp8_text":"{\"amax\": nan}")"));
  write_contents(folder.path() / "m", line + "\n");
  const auto records = read_metrics(folder.path() / "m");
  ASSERT_EQ(records.size(), 1u);
  EXPECT_TRUE(std::isnan(records[0].loss));
  EXPECT_EQ(records[0].grad_norm, record.grad_norm);
  EXPECT_EQ(records[0].eval_loss, record.eval_loss);
}

TEST(Metrics, WhatIsWrittenIsReadBack) {
  TemporaryFolder folder;
  const auto path = folder.path() / "metrics.jsonl";
  StepRecord record = example_record();
  record.loss = 1.0 / 3;
  record.penalty = 1e-300;
  record.eval_loss = 2.5;
  record.samples = {"one", "two\n"};
  record.fp8_json = "{\"a\":[1,2]}";
  {
    MetricsWriter writer(path);
    EXPECT_TRUE(writer.write(record));
  }
  {
    MetricsWriter writer(path);  // appends
    EXPECT_TRUE(writer.write(example_record()));
  }
  const auto records = read_metrics(path);
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].step, 250);
  EXPECT_EQ(records[0].epoch, 0.25);
  EXPECT_EQ(records[0].loss, 1.0 / 3);
  EXPECT_EQ(records[0].penalty, 1e-300);
  EXPECT_EQ(records[0].lr, 6e-4);
  EXPECT_EQ(records[0].grad_norm, 0.8234);
  EXPECT_EQ(records[0].step_ms, 156.78);
  EXPECT_EQ(records[0].tokens_per_second, 3345.67);
  EXPECT_EQ(records[0].tokens, 131072);
  EXPECT_EQ(records[0].precision, "FP8");
  EXPECT_EQ(records[0].eval_loss, 2.5);
  EXPECT_THAT(records[0].samples, ElementsAre("one", "two\n"));
  EXPECT_EQ(records[0].fp8_json, "{\"a\":[1,2]}");
  EXPECT_FALSE(records[1].penalty || records[1].eval_loss || records[1].fp8_json);
}

TEST(Metrics, ATornLastLineIsCutOffOnOpening) {
  TemporaryFolder folder;
  const auto path = folder.path() / "metrics.jsonl";
  const std::string whole = metrics_line(example_record()) + "\n";
  // Torn at many places, and once behind more than one block of the backward search.
  for (size_t cut = 1; cut < whole.size() - 1; cut += 9) {
    write_contents(path, whole + whole.substr(0, cut));
    CapturedLog log;
    MetricsWriter(path).write(example_record());
    ASSERT_EQ(contents_of(path), whole + whole) << cut;
    ASSERT_EQ(log.messages.size(), 1u);
    ASSERT_THAT(log.messages[0], HasSubstr("incomplete"));
  }
  CapturedLog log;
  write_contents(path, whole + "{\"samples\": \"" + std::string(200'000, 'x'));
  MetricsWriter(path).write(example_record());
  EXPECT_EQ(contents_of(path), whole + whole);
  write_contents(path, "{\"st");  // nothing but the torn line
  MetricsWriter(path).write(example_record());
  EXPECT_EQ(contents_of(path), whole);
}

TEST(Metrics, AWholeLastLineOnlyGetsItsNewline) {
  TemporaryFolder folder;
  const auto path = folder.path() / "metrics.jsonl";
  const std::string line = metrics_line(example_record());
  write_contents(path, line);
  CapturedLog log;
  MetricsWriter(path).write(example_record());
  EXPECT_EQ(contents_of(path), line + "\n" + line + "\n");
  EXPECT_TRUE(log.messages.empty());
}

TEST(Metrics, ReadingLeavesOutATornLastLine) {
  TemporaryFolder folder;
  const auto path = folder.path() / "m";
  write_contents(path, metrics_line(example_record()) + "\n\n{\"step\": 3, \"lo");
  CapturedLog log;
  EXPECT_EQ(read_metrics(path).size(), 1u);
  ASSERT_EQ(log.messages.size(), 1u);
  EXPECT_THAT(log.messages[0], HasSubstr(path.string() + ":3"));
}

TEST(Metrics, ReadingNamesFileLineAndField) {
  TemporaryFolder folder;
  const auto path = folder.path() / "m";
  const std::string place = path.string() + ":2: ";
  const std::string good = metrics_line(example_record()) + "\n";
  const auto error_for = [&](const std::string& line) {
    write_contents(path, good + line + "\n" + good);
    return error_of(path);
  };
  EXPECT_THAT(error_for("{\"step\": 1, "), HasSubstr(place + "not JSON"));
  EXPECT_THAT(error_for("[1]"), HasSubstr(place + "JSON of type array, expected an object"));
  EXPECT_THAT(error_for("{\"loss\": 1}"), HasSubstr(place + "no field 'step'"));
  EXPECT_THAT(error_for("{\"step\": 1.5}"), HasSubstr(place + "'step' is 1.5, expected an integer"));
  EXPECT_THAT(error_for("{\"step\": 18446744073709551615}"), HasSubstr("expected an integer"));
  EXPECT_THAT(error_for("{\"step\": 1, \"loss\": \"low\"}"),
              HasSubstr(place + "'loss' is \"low\", expected a number"));
  EXPECT_THAT(error_for("{\"step\": 1, \"loss\": null, \"loss_text\": 7}"), HasSubstr("'loss_text' is 7"));
  EXPECT_THAT(error_for("{\"step\": 1, \"samples\": [1]}"), HasSubstr("'samples'"));
  EXPECT_EQ(error_for("{\"step\": 1, \"of a later version\": {}}"), "");
  EXPECT_THAT(error_of(folder.path() / "absent"), HasSubstr("absent: cannot be opened"));
}

TEST(Metrics, StepsWrittenAgainAfterAResumeReplaceTheOldOnes) {
  std::vector<StepRecord> records;
  for (const int64_t step : {10, 20, 30, 40, 30, 40, 50}) {
    records.push_back(example_record());
    records.back().step = step;
    records.back().tokens = static_cast<int64_t>(records.size());
  }
  std::vector<int64_t> steps, order;
  for (const auto& record : drop_superseded(records)) {
    steps.push_back(record.step);
    order.push_back(record.tokens);
  }
  EXPECT_THAT(steps, ElementsAre(10, 20, 30, 40, 50));
  EXPECT_THAT(order, ElementsAre(1, 2, 5, 6, 7));
}

TEST(Metrics, AFolderThatIsNotThereIsAnError) {
  TemporaryFolder folder;
  EXPECT_THROW(MetricsWriter(folder.path() / "no" / "metrics.jsonl"), Error);
}

TEST(Metrics, AFullDiskIsLoudOnceAndTheRunGoesOn) {
  if (access("/dev/full", W_OK) != 0) GTEST_SKIP() << "no /dev/full on this machine";
  CapturedLog log;
  MetricsWriter writer("/dev/full");
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(writer.write(example_record()));
  ASSERT_EQ(log.messages.size(), 1u);
  EXPECT_THAT(log.messages[0], HasSubstr("/dev/full: cannot be written: No space left on device"));
}

// A limit on the file's size makes the kernel write a part of a line, as a disk does that fills up.
TEST(Metrics, APartOfALineIsTakenBackAndAllLinesAreWrittenLater) {
  TemporaryFolder folder;
  const auto path = folder.path() / "metrics.jsonl";
  const auto record = [](int64_t step) {
    StepRecord result = example_record();
    result.step = step;
    return result;
  };
  const std::string line = metrics_line(record(1)) + "\n";
  const pid_t child = fork();
  if (child == 0) {
    std::vector<std::string> messages;
    set_log_sink([&](LogLevel, std::string_view message) { messages.emplace_back(message); });
    signal(SIGXFSZ, SIG_IGN);
    MetricsWriter writer(path);
    rlimit limit{line.size() + line.size() / 2, RLIM_INFINITY};
    bool right = writer.write(record(1)) && setrlimit(RLIMIT_FSIZE, &limit) == 0;
    right = right && !writer.write(record(2)) && !writer.write(record(3));
    right = right && contents_of(path) == line && messages.size() == 1;
    limit.rlim_cur = RLIM_INFINITY;
    right =
        right && setrlimit(RLIMIT_FSIZE, &limit) == 0 && writer.write(record(4)) && writer.write(record(5));
    right = right && messages.size() == 2 &&
            messages[1].find("2 earlier records were written late, 0 are missing") != std::string::npos;
    _exit(right ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  std::vector<int64_t> steps;
  for (const StepRecord& written : read_metrics(path)) steps.push_back(written.step);
  EXPECT_THAT(steps, ElementsAre(1, 2, 3, 4, 5));
}

}  // namespace
}  // namespace octet
