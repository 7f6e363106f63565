#include "report/plan_facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "support/error_of.h"
#include "support/process.h"

namespace octet::test {
namespace {

using testing::HasSubstr;

TEST(PlanFacts, ReadsWhatItWrites) {
  const PlanFacts facts{.model = "llama \"tiny\" \xff",
                        .parameters = 820'480,
                        .device = "NVIDIA H200",
                        .precision = "BF16 (fallback)",
                        .fallback = "no FP8",
                        .fp8_share = 0.845,
                        .memory_bytes = int64_t{1} << 40,
                        .memory_limit = int64_t{1} << 41,
                        .sequences_per_step = 16,
                        .sequence_length = 1024,
                        .ranks = 8,
                        .work = {{"head", 0.1, 0.5}}};
  TemporaryFolder folder;
  folder.write("plan.json", plan_facts_json(facts));
  const std::optional<PlanFacts> read = read_plan_facts(folder.path());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->model, "llama \"tiny\" \xEF\xBF\xBD");
  EXPECT_EQ(read->parameters, facts.parameters);
  EXPECT_EQ(read->device, facts.device);
  EXPECT_EQ(read->precision, facts.precision);
  EXPECT_EQ(read->fallback, facts.fallback);
  EXPECT_EQ(read->fp8_share, facts.fp8_share);
  EXPECT_EQ(read->memory_bytes, facts.memory_bytes);
  EXPECT_EQ(read->memory_limit, facts.memory_limit);
  EXPECT_EQ(read->sequences_per_step, 16);
  EXPECT_EQ(read->sequence_length, 1024);
  EXPECT_EQ(read->ranks, 8);
  ASSERT_EQ(read->work.size(), 1U);
  EXPECT_EQ(read->work[0].kind, "head");
  EXPECT_EQ(read->work[0].in_fp8, 0.5);
}

TEST(PlanFacts, OlderRunsHaveNone) {
  TemporaryFolder folder;
  EXPECT_FALSE(read_plan_facts(folder.path()));
}

TEST(PlanFacts, BrokenFilesAreNamed) {
  TemporaryFolder folder;
  for (const auto& [text, expected] : {std::pair("{", "plan.json"),
                                       {"[]", "expected an object"},
                                       {"{}", "no field 'model'"},
                                       {"{\"model\": 3}", "'model' is number"}}) {
    folder.write("plan.json", text);
    EXPECT_THAT(error_of([&] { read_plan_facts(folder.path()); }), HasSubstr(expected));
  }
}

}  // namespace
}  // namespace octet::test
