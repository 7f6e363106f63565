#include "compare/checklist.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "compare/example_runs.h"

namespace octet::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::vector<SampleCheck> kSamples = {{"bf16", "there was a cat", ""}, {"fp8", "there was a dog", ""}};
const ResumeCheck kResumed{.checkpoint_step = 50, .steps = 5, .largest_percent = 0};

std::vector<std::string> failed(const Checklist& checklist) {
  std::vector<std::string> names;
  for (const ChecklistItem& item : checklist.items) {
    if (!item.passed) names.push_back(item.name);
  }
  return names;
}

std::vector<std::string> failed_of(const std::vector<ComparedRun>& runs,
                                   const std::vector<SampleCheck>& samples = kSamples,
                                   const ResumeCheck& resume = kResumed) {
  return failed(make_checklist(compare_runs(runs), samples, resume));
}

TEST(Checklist, AGoodRunIsReady) {
  const Checklist checklist = make_checklist(compare_runs(bf16_and_fp8()), kSamples, kResumed);
  EXPECT_THAT(failed(checklist), ElementsAre());
  EXPECT_TRUE(checklist.is_ready());
  EXPECT_EQ(checklist.items.size(), 8U);
  EXPECT_THAT(checklist_text(checklist, false), HasSubstr("ready for a long run\n"));
  EXPECT_THAT(checklist_text(checklist, false), HasSubstr("14.6 KiB planned, the limit is 97.7 KiB"));
  EXPECT_EQ(checklist_json(checklist)["ready"], true);
  EXPECT_FALSE(Checklist{}.is_ready());
}

// Every check can fail, and then it alone does.
TEST(Checklist, EmulatedFp8IsNoHardware) {
  EXPECT_THAT(failed_of(bf16_and_fp8({.name = "fp8", .precision = "FP8 (emulated)", .speed = 1460})),
              ElementsAre("hardware"));
}
TEST(Checklist, FewerThanAHundredSteps) {
  EXPECT_THAT(failed_of(bf16_and_fp8({.name = "fp8", .speed = 1460, .steps = 99})),
              ElementsAre("100 steps in both precisions"));
}
TEST(Checklist, SkippedSteps) {
  std::vector<ComparedRun> runs = bf16_and_fp8();
  runs[0].run.records.back().skipped_steps = 1;
  EXPECT_THAT(failed_of(runs), ElementsAre("no NaN"));
}
TEST(Checklist, NotANumber) {
  std::vector<ComparedRun> runs = bf16_and_fp8();
  runs[1].run.records[3].loss = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(failed_of(runs), ElementsAre("no NaN"));
  // Of a run that does not recover, the losses cannot be compared either.
  for (StepRecord& record : runs[1].run.records) record.loss = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(failed_of(runs), ElementsAre("no NaN", "loss at most 1 % higher"));
}
TEST(Checklist, LossTooFarAway) {
  EXPECT_THAT(failed_of(bf16_and_fp8({.name = "fp8", .speed = 1460, .loss_offset = 0.05})),
              ElementsAre("loss at most 1 % higher"));
  EXPECT_THAT(failed_of(bf16_and_fp8({.name = "fp8", .speed = 1460, .loss_offset = -0.05})), ElementsAre());
}
TEST(Checklist, NoGain) {
  EXPECT_THAT(failed_of(bf16_and_fp8({.name = "fp8", .speed = 1000})), ElementsAre("throughput gain"));
}
TEST(Checklist, MemoryNearTheLimit) {
  std::vector<ComparedRun> runs = bf16_and_fp8();
  runs[1].plan->memory_bytes = 99'000;
  EXPECT_THAT(failed_of(runs), ElementsAre()) << "the planner may fill the device up to its limit";
  runs[1].plan->memory_bytes = 101'000;
  EXPECT_THAT(failed_of(runs), ElementsAre("memory"));
  runs[1].plan->memory_bytes = 90'000;
  runs[1].run.records.back().memory_bytes = 91'000;
  EXPECT_THAT(failed_of(runs), ElementsAre("memory")) << "more than was planned";
}
TEST(Checklist, SamplesThatFailOrRepeat) {
  EXPECT_THAT(failed_of(bf16_and_fp8(), {{"fp8", "", "no checkpoint"}}), ElementsAre("samples"));
  EXPECT_THAT(failed_of(bf16_and_fp8(), {{"fp8", "          ", ""}}), ElementsAre("samples"));
  EXPECT_THAT(failed_of(bf16_and_fp8(), {}), ElementsAre("samples"));
}
TEST(Checklist, ALossThatIsNotFiniteFailsTheResumedRun) {
  std::vector<StepRecord> whole(6), resumed;
  for (size_t i = 0; i < whole.size(); ++i) {
    whole[i].step = static_cast<int64_t>(i) + 1;
    whole[i].loss = 2;
  }
  resumed = whole;
  ResumeCheck check{.checkpoint_step = 2};
  check.compare(whole, resumed);
  EXPECT_EQ(check.steps, 4);
  EXPECT_EQ(check.largest_percent, 0);
  // Finite steps after it do not mend it.
  resumed[3].loss = std::numeric_limits<double>::quiet_NaN();
  ResumeCheck broken{.checkpoint_step = 2};
  broken.compare(whole, resumed);
  EXPECT_TRUE(std::isnan(broken.largest_percent));
  EXPECT_THAT(failed_of(bf16_and_fp8(), kSamples, broken), ElementsAre("resume from a checkpoint"));
}
TEST(Checklist, ResumeThatFailsOrDiffers) {
  EXPECT_THAT(failed_of(bf16_and_fp8(), kSamples, {.error = "no checkpoint"}),
              ElementsAre("resume from a checkpoint"));
  EXPECT_THAT(failed_of(bf16_and_fp8(), kSamples, {.checkpoint_step = 50, .steps = 5, .largest_percent = 3}),
              ElementsAre("resume from a checkpoint"));
  EXPECT_THAT(failed_of(bf16_and_fp8(), kSamples, {.checkpoint_step = 50, .steps = 0}),
              ElementsAre("resume from a checkpoint"));
}

}  // namespace
}  // namespace octet::test
