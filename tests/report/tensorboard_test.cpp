#include "report/tensorboard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <numeric>

#include "base/crc32c.h"
#include "base/error.h"
#include "report/protobuf.h"
#include "report_test_support.h"

namespace octet {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

uint64_t little_endian(std::string_view bytes, size_t size) {
  uint64_t value = 0;
  for (size_t i = 0; i < size; ++i) value |= uint64_t{static_cast<unsigned char>(bytes.at(i))} << (8 * i);
  return value;
}

// The events of a file, checking each checksum on the way.
std::vector<std::string> events_of(const std::filesystem::path& path) {
  const std::string bytes = contents_of(path);
  std::string_view rest = bytes;
  std::vector<std::string> events;
  while (!rest.empty()) {
    const uint64_t size = little_endian(rest, 8);
    EXPECT_EQ(crc32c_unmask(static_cast<uint32_t>(little_endian(rest.substr(8), 4))),
              crc32c(rest.substr(0, 8)));
    events.emplace_back(rest.substr(12, size));
    EXPECT_EQ(crc32c_unmask(static_cast<uint32_t>(little_endian(rest.substr(12 + size), 4))),
              crc32c(events.back()));
    rest.remove_prefix(16 + size);
  }
  return events;
}

// A message as field number -> raw values: the bytes of a nested field, or of the number itself.
std::multimap<uint64_t, std::string> fields_of(std::string_view message) {
  std::multimap<uint64_t, std::string> fields;
  size_t at = 0;
  const auto varint = [&] {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(message.at(at++));
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
  };
  while (at < message.size()) {
    const uint64_t tag = varint();
    size_t size = 0;
    if ((tag & 7) == 0) {
      fields.emplace(tag >> 3, std::to_string(static_cast<int64_t>(varint())));
      continue;
    }
    size = (tag & 7) == 1 ? 8 : (tag & 7) == 5 ? 4 : varint();
    fields.emplace(tag >> 3, message.substr(at, size));
    at += size;
  }
  return fields;
}

std::string one(const std::multimap<uint64_t, std::string>& fields, uint64_t field) {
  EXPECT_EQ(fields.count(field), 1u) << field;
  return fields.count(field) == 1 ? fields.find(field)->second : "";
}

std::map<std::string, float> scalars_of(std::string_view event) {
  std::map<std::string, float> scalars;
  const auto summary = fields_of(one(fields_of(event), 5));
  for (const auto& [field, value] : summary) {
    const auto parts = fields_of(value);
    if (parts.count(2) == 0) continue;
    scalars[one(parts, 1)] = std::bit_cast<float>(static_cast<uint32_t>(little_endian(one(parts, 2), 4)));
  }
  return scalars;
}

TEST(ProtoMessage, EncodesTheWireFormat) {
  // The examples of the protobuf encoding guide: 150 as field 1, "testing" as field 2, a nested message as
  // field 3.
  EXPECT_EQ(ProtoMessage().integer(1, 150).encoded(), "\x08\x96\x01");
  EXPECT_EQ(ProtoMessage().bytes(2, "testing").encoded(), "\x12\x07testing");
  EXPECT_EQ(ProtoMessage().message(3, ProtoMessage().integer(1, 150)).encoded(), "\x1a\x03\x08\x96\x01");
  EXPECT_EQ(ProtoMessage().integer(1, -2).encoded(), "\x08\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01");
  EXPECT_EQ(ProtoMessage().number(1, 1.0f).encoded(), std::string("\x0d\0\0\x80\x3f", 5));
  EXPECT_EQ(ProtoMessage().number(1, 1.0).encoded(), std::string("\x09\0\0\0\0\0\0\xf0\x3f", 9));
  const double pair[] = {0.0, 1.0};
  EXPECT_EQ(ProtoMessage().packed(6, pair).encoded(),
            std::string("\x32\x10\0\0\0\0\0\0\0\0\0\0\0\0\0\0\xf0\x3f", 18));
  EXPECT_EQ(ProtoMessage().integer(16, 1).encoded(), "\x80\x01\x01");
}

TEST(TensorBoard, StartsWithTheFileVersion) {
  TemporaryFolder folder;
  TensorBoardWriter writer(folder.path());
  EXPECT_THAT(writer.path().filename().string(), testing::StartsWith("events.out.tfevents."));
  const auto events = events_of(writer.path());
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(one(fields_of(events[0]), 3), "brain.Event:2");
}

TEST(TensorBoard, AStepIsOneEventWithAllItsNumbers) {
  TemporaryFolder folder;
  TensorBoardWriter writer(folder.path());
  StepRecord record = example_record();
  record.penalty = 0.5;
  record.eval_loss = std::nan("");
  record.fp8_json = R"({"saturated": 0.25, "layers": {"0": {"amax": 3}}, "name": "x"})";
  record.samples = {"Once | upon\na time"};
  writer.step(record);
  record.step = 251;
  record.samples.clear();
  writer.step(record);
  const auto events = events_of(writer.path());
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(one(fields_of(events[1]), 2), "250");
  auto scalars = scalars_of(events[1]);
  EXPECT_TRUE(std::isnan(scalars.at("eval/loss")));
  scalars.erase("eval/loss");
  const std::map<std::string, float> expected = {
      {"train/loss", 3.456789f}, {"train/lr", 6e-4f},        {"train/grad_norm", 0.8234f},
      {"train/epoch", 0.25f},    {"train/tokens", 131072.f}, {"train/penalty", 0.5f},
      {"perf/step_ms", 156.78f}, {"fp8/saturated", 0.25f},   {"perf/tokens_per_second", 3345.67f},
      {"fp8/layers/0/amax", 3.f}};
  EXPECT_EQ(scalars, expected);
  EXPECT_THAT(events[1], HasSubstr("    Once | upon\n    a time"));
  EXPECT_THAT(events[1], HasSubstr("train/precision"));
  EXPECT_THAT(events[2], testing::Not(HasSubstr("train/precision")));  // unchanged
}

TEST(Histogram, CountsEveryValueOnce) {
  std::vector<float> values(1000);
  std::iota(values.begin(), values.end(), -500.f);
  const Histogram histogram = make_histogram(values);
  EXPECT_EQ(histogram.min, -500);
  EXPECT_EQ(histogram.max, 499);
  EXPECT_EQ(histogram.count, 1000);
  EXPECT_EQ(histogram.sum, -500);
  EXPECT_EQ(histogram.sum_squares, 2 * (499.0 * 500 * 999 / 6) + 250000);
  ASSERT_EQ(histogram.limits.size(), histogram.counts.size());
  EXPECT_EQ(std::accumulate(histogram.counts.begin(), histogram.counts.end(), 0.0), 1000);
  EXPECT_TRUE(std::is_sorted(histogram.limits.begin(), histogram.limits.end()));
  for (size_t i = 1; i < histogram.limits.size(); ++i) {
    const auto inside = std::count_if(values.begin(), values.end(), [&](float x) {
      return x >= histogram.limits[i - 1] && x < histogram.limits[i];
    });
    ASSERT_EQ(histogram.counts[i], static_cast<double>(inside)) << i;
  }
  EXPECT_EQ(histogram.counts.front(), 0);  // only gives the lower border
  EXPECT_GT(histogram.counts.back(), 0);
}

TEST(Histogram, NonFiniteValuesAreCountedApart) {
  const float inf = std::numeric_limits<float>::infinity();
  const float largest = std::numeric_limits<float>::max();
  const Histogram histogram =
      make_histogram(std::vector<float>{1, inf, -inf, std::nanf(""), largest, -largest});
  EXPECT_EQ(histogram.nonfinite, 3);
  EXPECT_EQ(histogram.count, 3);
  EXPECT_EQ(histogram.max, double{largest});
  EXPECT_EQ(histogram.min, -double{largest});
  const Histogram none = make_histogram({});
  EXPECT_EQ(none.count, 0);
  EXPECT_EQ(none.limits.size(), 1u);

  TemporaryFolder folder;
  TensorBoardWriter writer(folder.path());
  writer.histogram("grad", 5, histogram);
  EXPECT_EQ(scalars_of(events_of(writer.path()).at(1)),
            (std::map<std::string, float>{{"grad/nonfinite", 3.f}}));
  EXPECT_THROW(writer.histogram("grad", 5, Histogram{}), Error);
}

TEST(TensorBoard, AFullDiskDoesNotStopTheRun) {
  if (access("/dev/full", W_OK) != 0) GTEST_SKIP() << "no /dev/full on this machine";
  CapturedLog log;
  AppendFile file("/dev/full", "tensorboard");
  EXPECT_FALSE(file.append("x"));
  EXPECT_FALSE(file.append("x"));
  EXPECT_EQ(log.messages.size(), 1u);
  EXPECT_THROW(TensorBoardWriter("/dev/null/folder"), Error);
}

// Writes the run that check_tensorboard.py reads, into the folder that it names (else a temporary one).
TEST(TensorBoard, WritesTheExampleForTheReader) {
  TemporaryFolder temporary;
  const char* named = std::getenv("OCTET_TENSORBOARD_EXAMPLE");
  const std::filesystem::path folder = named == nullptr ? temporary.path() : named;
  const char* resume = std::getenv("OCTET_TENSORBOARD_RESUME");
  const int64_t first = resume == nullptr ? 1 : std::atoll(resume);
  TensorBoardWriter writer(folder, resume == nullptr ? std::nullopt : std::optional(first));
  writer.hparams(
      {{"learning_rate", 6e-4}, {"max_steps", int64_t{1000}}, {"fp8", true}, {"model", "gpt2|café"}});
  std::vector<float> values(1000);
  std::iota(values.begin(), values.end(), -500.f);
  for (int64_t step = first; step < first + 20; ++step) {
    StepRecord record = example_record();
    record.step = step;
    record.loss = 10.0 / static_cast<double>(step) + (resume == nullptr ? 0 : 100);
    if (step % 10 == 0) {
      record.eval_loss = std::nan("");
      record.samples = {"Once upon\na \xff time café"};
      record.fp8_json = R"({"qkv": {"amax": 1.5}})";
    }
    writer.step(record);
    if (step % 10 == 0) writer.histogram("weights/qkv", step, make_histogram(values));
  }
  // version, session start where resumed, hparams, 20 steps, 2 histograms
  EXPECT_EQ(events_of(writer.path()).size(), resume == nullptr ? 24u : 25u);
}

}  // namespace
}  // namespace octet
