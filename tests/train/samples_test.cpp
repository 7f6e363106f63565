#include "train/samples.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/resolve.h"
#include "resume_support.h"
#include "support/captured_log.h"

namespace octet::test {
namespace {

using SamplesOfARun = Resume;

// A model without memory stands for a device that has none left.
TEST_F(SamplesOfARun, ThoseThatCannotBeMadeEndARunOnlyIfTheyWereAskedFor) {
  for (const char* steps : {"-1", "2"}) {
    const CapturedLog log;
    const ResolvedRun stages = resolve(config("run", {{"sample_steps", steps}}), Wanted::by_train());
    Transformer model(stages.model.config, stages.plan.shape, stages.plan.numerics, *stages.device);
    Samples samples(stages, model);
    if (stages.samples.at_evaluations) {
      EXPECT_TRUE(samples.is_due(3, true));
      samples.reserve();
      EXPECT_THAT(log.messages, testing::Contains(testing::HasSubstr("no samples from here on")));
      EXPECT_FALSE(samples.is_due(3, true));
    } else {
      EXPECT_THROW(samples.reserve(), Error);
    }
  }
}

}  // namespace
}  // namespace octet::test
