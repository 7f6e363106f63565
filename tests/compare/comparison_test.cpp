#include "compare/comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "compare/example_runs.h"
#include "compare/report.h"
#include "compare/verdict.h"

namespace octet::test {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

TEST(Comparison, SaysTheVerdictInOneSentence) {
  const Comparison comparison = compare_runs(bf16_and_fp8());
  EXPECT_THAT(
      comparison.verdict,
      testing::MatchesRegex(
          "FP8 is 1.4[0-9]x faster than BF16; evaluation loss differs by [+-]0.[0-9]+ % .noise not known: "
          "too few evaluations.; training loss differs by [+-]0.[0-9]+ %, within noise"));
  const VariantComparison& fp8 = comparison.comparisons.front();
  EXPECT_NEAR(fp8.speed, 1.46, 0.02);
  EXPECT_TRUE(fp8.is_good);
  EXPECT_NEAR(*fp8.memory, 0.75, 1e-9);
  EXPECT_THAT(fp8.loss->basis, HasSubstr("20 steps"));
  EXPECT_EQ(fp8.evaluation->basis, "not known: one run each, 5 evaluations; at least 20 are needed");
  EXPECT_THAT(comparison.warnings, IsEmpty());
  EXPECT_THAT(comparison.notes, Contains(HasSubstr("noise is that between steps")));
  EXPECT_THAT(comparison.notes,
              Contains(HasSubstr("There are too few evaluations to judge their difference")));
}

// What a run and its continuation have in common says nothing about either.
TEST(Comparison, OfARunAndItsContinuationTheStepsAfterTheForkCount) {
  std::vector<ComparedRun> runs = bf16_and_fp8({.name = "fp8", .speed = 2000, .loss_offset = 1});
  for (size_t i = 0; i < 90; ++i) runs[1].run.records[i] = runs[0].run.records[i];
  runs[1].lineage = {.parents = {"runs/bf16"}, .fork = 90, .missing = ""};
  const Comparison comparison = compare_runs(runs);
  EXPECT_EQ(comparison.steps.size(), 100u);
  EXPECT_EQ(comparison.last_steps.front(), 91);
  EXPECT_NEAR(comparison.comparisons.front().loss->mean, 1, 0.1);
  EXPECT_NEAR(comparison.comparisons.front().speed, 2, 0.1);
  EXPECT_THAT(comparison.notes, Contains(HasSubstr("fp8 continues runs/bf16 after step 90")));
  EXPECT_THAT(comparison.warnings, IsEmpty());

  runs[0].run.records.resize(90);
  const Comparison ended = compare_runs(runs);
  EXPECT_EQ(ended.steps.size(), 90u);
  EXPECT_THAT(ended.warnings, Contains(HasSubstr("no common step after step 90")));
}

TEST(Comparison, SaysWhenADifferenceInSpeedMayBeNoise) {
  const auto verdict_of = [](int64_t steps, double swing) {
    std::vector<ComparedRun> runs = bf16_and_fp8({.name = "fp8", .speed = 1100, .steps = steps});
    for (ComparedRun& run : runs) {
      int64_t sign = 1;
      for (StepRecord& record : run.run.records)
        record.tokens_per_second *= 1 + swing * static_cast<double>(sign = -sign);
    }
    return compare_runs(std::move(runs)).verdict;
  };
  EXPECT_THAT(verdict_of(100, 0),
              AllOf(HasSubstr("FP8 is 1.10x faster than BF16;"), Not(HasSubstr("certain"))));
  EXPECT_THAT(verdict_of(20, 0.3),
              testing::ContainsRegex("than BF16 .not certain: the speed scatters by ±[0-9]+ %.;"));
  // 4 steps, of which the first is not counted.
  EXPECT_THAT(verdict_of(4, 0), HasSubstr("faster than BF16 (not certain: too few logged steps);"));
}

TEST(Comparison, ATinyDifferenceIsNotWrittenAsZero) {
  const auto text = [](double percent) {
    return difference_text({.mean = percent / 100, .percent = percent, .interval = ConfidenceInterval{1, 2}});
  };
  EXPECT_EQ(text(-0.0049), "differs by -0.0049 %, more than the noise between steps");
  EXPECT_EQ(text(0.00003), "differs by less than 0.0001 %, more than the noise between steps");
  EXPECT_EQ(text(0.0051), "differs by +0.01 %, more than the noise between steps");
}

// Pairing removes the noise of the batches, so that a difference far below it is found.
TEST(Comparison, ASmallRealDifferenceIsMoreThanNoise) {
  const Comparison comparison =
      compare_runs(bf16_and_fp8({.name = "fp8", .speed = 1460, .loss_offset = 0.03}));
  EXPECT_THAT(comparison.verdict, HasSubstr("more than the noise between steps"));
  const Difference& loss = *comparison.comparisons.front().loss;
  EXPECT_NEAR(loss.mean, 0.03, 0.01);
  EXPECT_NEAR(loss.percent, 100 * 0.03 / 2.03, 0.5);
  EXPECT_FALSE(loss.within_noise());
  EXPECT_FALSE(comparison.comparisons.front().is_good);
}

TEST(Comparison, SeveralSeedsDecideByATInterval) {
  std::vector<ComparedRun> runs;
  for (const int64_t seed : {1, 2, 3}) {
    const std::string ending = "-seed" + std::to_string(seed);
    runs.push_back(
        example_run({.name = "bf16" + ending, .precision = "BF16", .seed = seed, .seed_effect = 0.2}));
    runs.push_back(example_run({.name = "fp8" + ending, .speed = 1500, .seed = seed, .seed_effect = 0.2}));
  }
  const Comparison comparison = compare_runs(runs);
  ASSERT_EQ(comparison.variants.size(), 2U);
  EXPECT_EQ(comparison.variants[0].name, "bf16");
  EXPECT_THAT(comparison.variants[1].runs, ElementsAre(1, 3, 5));
  const Difference& loss = *comparison.comparisons.front().loss;
  EXPECT_EQ(loss.basis, "t interval over 3 pairs of runs with the same seed");
  EXPECT_TRUE(loss.over_seeds);
  EXPECT_TRUE(loss.within_noise());
  // The seeds differ by 0.2; the pairs do not.
  EXPECT_LT(loss.interval->high - loss.interval->low, 0.1);
  // Other seeds cannot be paired.
  for (size_t i = 1; i < runs.size(); i += 2) {
    for (auto& [key, value] : runs[i].run.settings) {
      if (key == "seed") value = "9" + value;
    }
  }
  const Comparison unpaired = compare_runs(runs);
  EXPECT_EQ(unpaired.comparisons.front().loss->basis, "t interval over 3 and 3 runs");
  EXPECT_GT(unpaired.comparisons.front().loss->interval->high, 0.2);
}

// Two seeds allow a t interval that any difference hides in. That is no proof of anything.
TEST(Comparison, WideNoiseIsSaidSo) {
  std::vector<ComparedRun> runs;
  for (const int64_t seed : {1, 2}) {
    const std::string ending = "-" + std::to_string(seed);
    runs.push_back(example_run({.name = "bf16" + ending, .precision = "BF16", .seed = seed}));
    runs.push_back(example_run({.name = "fp8" + ending,
                                .speed = 1500,
                                .loss_offset = 0.03 * static_cast<double>(seed),
                                .seed = seed}));
  }
  const Comparison comparison = compare_runs(runs);
  EXPECT_THAT(comparison.verdict,
              testing::ContainsRegex("within noise, but the noise is large \\(±[0-9.]+ %\\)"));
  EXPECT_FALSE(comparison.comparisons.front().is_good);
}

// A spread of training steps says nothing about an evaluation: no interval is better than a wrong one.
TEST(Comparison, FewEvaluationsHaveNoInterval) {
  std::vector<ComparedRun> runs = bf16_and_fp8();
  runs[1].run.records.back().eval_loss = *runs[1].run.records.back().eval_loss + 0.3;
  const Comparison comparison = compare_runs(runs);
  EXPECT_FALSE(comparison.comparisons.front().evaluation->interval);
  EXPECT_FALSE(comparison.comparisons.front().evaluation->within_noise());
  EXPECT_FALSE(comparison.comparisons.front().is_good) << "the evaluation is 3 % worse, noise or not";
  EXPECT_THAT(comparison_text(comparison, false), HasSubstr("not known: too few evaluations"));
}

TEST(Comparison, EnoughEvaluationsHaveAnInterval) {
  std::vector<ComparedRun> runs = {example_run({.name = "bf16", .precision = "BF16", .eval_every = 2}),
                                   example_run({.name = "fp8", .speed = 1460, .eval_every = 2})};
  const Comparison comparison = compare_runs(runs);
  EXPECT_THAT(comparison.comparisons.front().evaluation->basis, HasSubstr("25 evaluations"));
  EXPECT_TRUE(comparison.comparisons.front().evaluation->within_noise());
  EXPECT_THAT(comparison.verdict, testing::EndsWith("%, within noise"));
}

TEST(Comparison, ARunIsPairedOnce) {
  std::vector<ComparedRun> runs;
  for (const char* name : {"a", "b"}) {
    runs.push_back(example_run({.name = std::string("bf16-") + name, .precision = "BF16"}));
    runs.push_back(example_run({.name = std::string("fp8-") + name, .speed = 1460}));
  }
  EXPECT_EQ(compare_runs(runs).comparisons.front().loss->basis,
            "t interval over 2 pairs of runs with the same seed");
  // Two of the three have no partner left.
  runs.push_back(example_run({.name = "bf16-c", .precision = "BF16"}));
  EXPECT_EQ(compare_runs(runs).comparisons.front().loss->basis,
            "t interval over 2 pairs of runs with the same seed");
}

TEST(Comparison, ASkippedStepIsNoDivergence) {
  std::vector<ComparedRun> runs = bf16_and_fp8();
  for (const size_t i : {10, 95}) runs[1].run.records[i].loss = std::numeric_limits<double>::quiet_NaN();
  const Comparison comparison = compare_runs(runs);
  EXPECT_THAT(comparison.verdict, Not(HasSubstr("diverged")));
  ASSERT_TRUE(comparison.comparisons.front().loss);
  EXPECT_TRUE(std::isfinite(comparison.comparisons.front().loss->mean));
  EXPECT_TRUE(std::isfinite(comparison.figures[1].loss));
  EXPECT_EQ(comparison.figures[1].bad_steps, 2);
  EXPECT_EQ(comparison.figures[1].first_bad_step, 11);
  EXPECT_FALSE(comparison.figures[1].diverged_step);
  EXPECT_THAT(comparison.notes,
              Contains(HasSubstr("fp8: the loss of 2 logged steps was not finite (first at step 11)")));
  EXPECT_NO_THROW(html_page(comparison_page(comparison, nullptr)));
}

TEST(Comparison, HowOftenARunLogsOrSavesMakesNoVariant) {
  std::vector<ComparedRun> runs = bf16_and_fp8();
  runs[0].run.settings.emplace_back("save_steps", "10");
  runs[0].run.settings.emplace_back("price_per_hour", "2");
  EXPECT_EQ(compare_runs(runs).settings.size(), 1U) << "mixed_precision";
}

TEST(Comparison, EvaluationsDependOnTheBatch) {
  const auto warnings = [](std::array<const char*, 2> batches, std::array<const char*, 2> rows,
                           const char* strategy) {
    std::vector<ComparedRun> runs = bf16_and_fp8();
    for (size_t i = 0; i < 2; ++i) {
      runs[i].run.settings.emplace_back("eval_batches", batches[i]);
      runs[i].run.settings.emplace_back("per_device_train_batch_size", rows[i]);
      runs[i].run.settings.emplace_back("eval_strategy", strategy);
    }
    return compare_runs(runs).warnings;
  };
  const auto warning = HasSubstr("The evaluations may cover different data");
  EXPECT_THAT(warnings({"20", "20"}, {"4", "16"}, "steps"),
              Contains(AllOf(warning, HasSubstr("at most 80, 320 sequences"))));
  EXPECT_THAT(warnings({"20", "20"}, {"4", "4"}, "steps"), Not(Contains(warning)));
  EXPECT_THAT(warnings({"20", "40"}, {"4", "2"}, "steps"), Not(Contains(warning)));
  EXPECT_THAT(warnings({"20", "20"}, {"4", "16"}, "no"), Not(Contains(warning)));
  EXPECT_THAT(warnings({"0", "0"}, {"4", "16"}, "steps"), Not(Contains(warning))) << "all of the data";
}

// What a key comes to counts where another run sets it.
TEST(Comparison, KeysThatFollowFromOthersAreNoDifference) {
  std::vector<ComparedRun> runs = {example_run({.name = "a", .seed = 1}),
                                   example_run({.name = "b", .seed = 2}),
                                   example_run({.name = "c", .precision = "BF16"})};
  runs[0].run.settings.insert(runs[0].run.settings.end(),
                              {{"per_device_train_batch_size", "8"}, {"max_batch_size", "0"}});
  runs[0].run.decided = {{"max_steps", "100"}};  // nobody sets it, so it is no difference
  for (const size_t i : {1, 2}) {
    runs[i].run.settings.emplace_back("per_device_train_batch_size", "8");
    runs[i].run.decided = {{"max_batch_size", "0"}, {"max_steps", "90"}};
  }
  Comparison comparison = compare_runs(runs);
  ASSERT_EQ(comparison.settings.size(), 2U);
  EXPECT_EQ(comparison.settings[0].key, "mixed_precision");
  EXPECT_EQ(comparison.settings[1].key, "seed");
  EXPECT_EQ(comparison.variants.size(), 2U) << "a and b differ in the seed alone";
  runs[0].run.settings.emplace_back("gradient_accumulation_steps", "2");
  runs[1].run.decided.emplace_back("gradient_accumulation_steps", "4");
  comparison = compare_runs(runs);
  EXPECT_EQ(comparison.variants.size(), 3U);
  ASSERT_EQ(comparison.settings.size(), 3U);
  EXPECT_EQ(comparison.settings[2].key, "gradient_accumulation_steps");
  EXPECT_THAT(comparison.settings[2].values, ElementsAre("2", "4", ""));
}

TEST(Comparison, RunsOfDifferentLengthsAreComparedOverTheirCommonSteps) {
  const Comparison comparison = compare_runs(bf16_and_fp8({.name = "fp8", .speed = 1460, .steps = 60}));
  EXPECT_EQ(comparison.steps.size(), 60U);
  EXPECT_EQ(comparison.figures[0].tokens, 60'000);
  EXPECT_THAT(comparison.notes, Contains(HasSubstr("different lengths (60, 100 steps)")));
  EXPECT_THAT(comparison.notes, Contains(HasSubstr("common steps, 1 to 60")));
}

TEST(Comparison, RunsWithoutACommonStepCannotBeCompared) {
  std::vector<ComparedRun> runs = bf16_and_fp8();
  for (StepRecord& record : runs[1].run.records) record.step += 1000;
  EXPECT_THROW(compare_runs(runs), ConfigError);
}

TEST(Comparison, ACopyOfARunIsIdentical) {
  std::vector<ComparedRun> runs = {example_run({.name = "a"}), example_run({.name = "a"})};
  runs[1].run.name = "b";
  runs[1].variant = "b";
  const Comparison comparison = compare_runs(runs);
  EXPECT_THAT(comparison.verdict, HasSubstr("evaluation loss is identical"));
  EXPECT_EQ(comparison.comparisons.front().loss->largest, 0);
  EXPECT_THAT(comparison_text(comparison, false), Not(HasSubstr("at step 0")));
}

// A variant with one run is compared with the run of its seed, and in percent of that one.
TEST(Comparison, ASingleRunIsComparedWithTheRunOfItsSeed) {
  const std::vector<ComparedRun> runs = {
      example_run({.name = "a-seed1", .precision = "BF16", .seed = 1, .seed_effect = 0.5}),
      example_run({.name = "a-seed2", .precision = "BF16", .seed = 2, .seed_effect = 0.5}),
      example_run({.name = "b", .loss_offset = 0.1, .seed = 2, .seed_effect = 0.5})};
  const Comparison comparison = compare_runs(runs);
  ASSERT_EQ(comparison.variants.size(), 2U);
  const Difference& loss = *comparison.comparisons.front().loss;
  EXPECT_NEAR(loss.mean, 0.1, 0.02);
  EXPECT_NEAR(loss.percent, 100 * loss.mean / comparison.figures[1].loss, 1e-9);
  EXPECT_THAT(loss.basis, HasSubstr("one run each (a-seed2 and b)"));
  // Without a partner: the means, with noise that is not known.
  const Comparison unpaired = compare_runs(
      {runs[0], runs[1], example_run({.name = "b", .loss_offset = 0.1, .seed = 3, .seed_effect = 0.5})});
  const Difference& means = *unpaired.comparisons.front().loss;
  EXPECT_NEAR(means.mean, unpaired.variants[1].mean.loss - unpaired.variants[0].mean.loss, 1e-9);
  EXPECT_FALSE(means.interval);
  EXPECT_THAT(means.basis, HasSubstr("no seed in common"));
}

TEST(Comparison, RunsWithTheSameSettingsAreNothingToCompare) {
  for (const int64_t seed : {1, 2}) {
    const auto compare = [&] {
      compare_runs({example_run({.name = "a", .seed = 1}), example_run({.name = "b", .seed = seed})});
    };
    EXPECT_THAT(compare,
                testing::ThrowsMessage<ConfigError>(HasSubstr("have the same settings, apart from seeds")));
  }
}

TEST(Comparison, ADivergedRunIsSaidSo) {
  std::vector<ComparedRun> runs = bf16_and_fp8();
  for (size_t i = 36; i < 100; ++i) runs[1].run.records[i].loss = std::numeric_limits<double>::quiet_NaN();
  const Comparison comparison = compare_runs(runs);
  EXPECT_THAT(comparison.verdict, HasSubstr("FP8 diverged: its loss is not finite from step 37 on"));
  EXPECT_FALSE(comparison.comparisons.front().is_good);
  EXPECT_FALSE(comparison.comparisons.front().loss);
  // NaN is no JSON.
  EXPECT_NO_THROW(nlohmann::json::parse(comparison_json(comparison).dump()));
}

TEST(Comparison, UnfairComparisonsAreWarnedOf) {
  std::vector<ComparedRun> runs = bf16_and_fp8();
  runs[1].run.settings[1].second = "gpt2-tiny";
  runs[1].run.settings.emplace_back("dataset", "b.txt");
  runs[0].run.settings.emplace_back("dataset", "a.txt");
  runs[0].run.settings.emplace_back("max_steps", "100");
  runs[1].run.settings.emplace_back("max_steps", "200");
  runs[1].run.settings.emplace_back("warmup_ratio", "0");
  runs[1].plan->device = "NVIDIA L4";
  runs[1].plan->sequences_per_step = 16;
  const Comparison comparison = compare_runs(runs);
  EXPECT_THAT(comparison.warnings,
              Contains(HasSubstr("different models (model_preset llama-tiny / gpt2-tiny)")));
  EXPECT_THAT(comparison.warnings, Contains(HasSubstr("different data (dataset a.txt / b.txt)")));
  EXPECT_THAT(comparison.warnings, Contains(AllOf(HasSubstr("different schedules"),
                                                  HasSubstr("max_steps 100 / 200; warmup_ratio - / 0)"))));
  EXPECT_THAT(comparison.warnings, Contains(HasSubstr("different devices")));
  EXPECT_THAT(comparison.warnings, Contains(HasSubstr("1024, 2048 tokens per step")));
  EXPECT_THAT(comparison_text(comparison, false), HasSubstr("warning: The runs train different models"));
}

TEST(Comparison, DifferentSeedsAndMissingSettingsAreWarnedOf) {
  EXPECT_THAT(compare_runs(bf16_and_fp8({.name = "fp8", .seed = 7})).warnings,
              Contains(HasSubstr("different seeds")));
  std::vector<ComparedRun> runs = bf16_and_fp8();
  runs[1].run.settings.clear();
  EXPECT_THAT(compare_runs(runs).warnings, Contains(HasSubstr("fp8 has no config.yaml")));
}

TEST(Comparison, CoverageOfOldRunsIsNotRecorded) {
  std::vector<ComparedRun> runs = bf16_and_fp8();
  runs[1].plan.reset();
  const Comparison comparison = compare_runs(runs);
  EXPECT_FALSE(comparison.comparisons.front().memory);
  EXPECT_THAT(comparison_text(comparison, false), HasSubstr("0.0 % of FLOPs   not recorded"));
}

TEST(Comparison, EnergyAndMoney) {
  std::vector<ComparedRun> runs = bf16_and_fp8({.name = "fp8", .speed = 2000});
  for (size_t i = 0; i < 2; ++i) {
    for (StepRecord& record : runs[i].run.records)
      record.gpu = GpuFigures{.power_watts = 500,
                              .energy_joules = static_cast<double>(record.step) * (i == 0 ? 360 : 180)};
  }
  const Comparison comparison = compare_runs(runs, {.price_per_hour = 3.6});
  EXPECT_NEAR(*comparison.figures[0].energy_joules, 36'000, 1e-6);  // 0.01 kWh
  EXPECT_NEAR(*comparison.figures[0].joules_per_1000_tokens, 360, 1e-6);
  EXPECT_NEAR(*comparison.comparisons[0].energy, 0.5, 1e-9);
  // 100 steps of a second each at 3.6 per hour.
  EXPECT_NEAR(*comparison.figures[0].cost, 0.1, 0.002);
  EXPECT_NEAR(*comparison.figures[0].cost_per_million_tokens, 1.0, 0.02);
  const std::string text = comparison_text(comparison, false);
  EXPECT_THAT(text, HasSubstr("0.01 kWh"));
  EXPECT_THAT(text, HasSubstr("180 (0.50x)"));
  EXPECT_THAT(comparison_text(compare_runs(bf16_and_fp8()), false), Not(HasSubstr("cost")));
  EXPECT_THAT(comparison.notes, Contains(HasSubstr("Costs follow from step times")));
  // The metrics have the sum of all ranks. The price is that of one device.
  for (ComparedRun& run : runs) run.plan->ranks = 4;
  EXPECT_NEAR(*compare_runs(runs).figures[0].energy_joules, 36'000, 1e-6);
  EXPECT_NEAR(*compare_runs(runs, {.price_per_hour = 3.6}).figures[0].cost, 0.4, 0.008);
}

TEST(Comparison, TheCostIsThatOfTheDeviceTime) {
  std::vector<ComparedRun> runs = bf16_and_fp8();
  for (ComparedRun& run : runs) {
    run.run.settings.emplace_back("price_per_hour", "7.2");
    for (StepRecord& record : run.run.records)
      record.device_seconds = 10.0 * static_cast<double>(record.step);
  }
  const Comparison comparison = compare_runs(runs);
  EXPECT_NEAR(*comparison.figures[0].cost, 2, 1e-9) << "1,000 device seconds at the runs' own price";
  EXPECT_NEAR(*comparison.figures[0].cost_per_million_tokens, 20, 1e-9);
  EXPECT_THAT(comparison.notes, Not(Contains(HasSubstr("Costs follow from step times"))));
  EXPECT_NEAR(*compare_runs(runs, {.price_per_hour = 3.6}).figures[0].cost, 1, 1e-9);
  // One run without it: both by their step times.
  for (StepRecord& record : runs[1].run.records) record.device_seconds.reset();
  EXPECT_NEAR(*compare_runs(runs).figures[0].cost, 0.2, 0.004);
}

TEST(Comparison, TheBestOfSeveralVariants) {
  std::vector<ComparedRun> runs = bf16_and_fp8();
  runs.push_back(example_run({.name = "worse", .speed = 3000, .loss_offset = 0.5}));
  runs.back().run.settings.emplace_back("fp8_margin", "9");
  const Comparison comparison = compare_runs(runs);
  EXPECT_THAT(comparison.verdict, testing::StartsWith("best of 3: fp8 is 1.4"));
  EXPECT_THAT(comparison.settings.back().values, ElementsAre("", "", "9"));
  EXPECT_THAT(comparison_text(comparison, false), HasSubstr("worse is "));
}

TEST(Comparison, NoVariantIsTheBestByEmulatedSpeed) {
  std::vector<ComparedRun> runs = bf16_and_fp8({.name = "fp8", .precision = "FP8 (emulated)", .speed = 1460});
  runs.push_back(example_run({.name = "also", .precision = "FP8 (emulated)", .speed = 1300}));
  runs.back().run.settings.emplace_back("fp8_margin", "9");
  const Comparison comparison = compare_runs(runs);
  EXPECT_EQ(comparison.verdict,
            "no variant is called the best, because FP8 is emulated and its speed says nothing");
  EXPECT_THAT(comparison.comparisons[0].verdict, HasSubstr("evaluation loss differs by"));
  // The others can be compared.
  runs.push_back(example_run({.name = "real", .precision = "FP8", .speed = 1400}));
  runs.back().run.settings.emplace_back("fp8_margin", "8");
  EXPECT_THAT(compare_runs(runs).verdict, testing::StartsWith("best of 4: real is 1."));
}

TEST(Comparison, MetricsDecideMemoryWhereTheyHaveIt) {
  std::vector<ComparedRun> runs = bf16_and_fp8();
  for (StepRecord& record : runs[1].run.records) record.memory_bytes = 12'345;
  const Comparison comparison = compare_runs(runs);
  EXPECT_EQ(comparison.figures[1].memory_bytes, 12'345);
  EXPECT_FALSE(comparison.figures[1].memory_is_planned);
  EXPECT_TRUE(comparison.figures[0].memory_is_planned);
}

TEST(Comparison, NamesAreEscapedInThePageAndSafeInTheTerminal) {
  std::vector<ComparedRun> runs = bf16_and_fp8();
  runs[1].run.name = "<script>alert(1)</script>\x1b[31m";
  runs[1].run.records[50].samples = {"</script><script>alert(2)</script>\xff"};
  runs[1].run.settings.emplace_back("dataset", "<img src=x onerror=alert(3)>");
  const Comparison comparison = compare_runs(runs);
  const std::string html = html_page(comparison_page(comparison, nullptr));
  EXPECT_THAT(html, Not(HasSubstr("<script>alert")));
  EXPECT_THAT(html, Not(HasSubstr("<img")));
  EXPECT_EQ(comparison_text(comparison, false).find('\x1b'), std::string::npos);
  EXPECT_NO_THROW(comparison_json(comparison).dump());
}

}  // namespace
}  // namespace octet::test
