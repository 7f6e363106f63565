#include "sweep/sampler.h"

#include <gmock/gmock.h>

#include <cmath>
#include <set>

#include "sweep/hyperband.h"

namespace octet {
namespace {

using testing::ElementsAre;

const std::string kMetric = "metric: {name: eval_loss}\n";

TEST(Sampler, AGridHasEveryCombinationOnce) {
  const SweepSpec spec = parse_sweep(
      "method: grid\n" + kMetric +
          "parameters:\n  lr: {values: [0.1, 0.2]}\n  seed: {min: 1, max: 3}\n  max_steps: {value: 5}\n",
      "s.yaml");
  EXPECT_EQ(spec.grid_size(), 6);
  EXPECT_THAT(propose(spec, 1, 0, {}).value(), ElementsAre("0.1", "1", "5"));
  EXPECT_THAT(propose(spec, 2, 1, {}).value(), ElementsAre("0.1", "2", "5"));
  EXPECT_THAT(propose(spec, 3, 5, {}).value(), ElementsAre("0.2", "3", "5"));
  EXPECT_FALSE(propose(spec, 1, 6, {}));
}

TEST(Sampler, RandomDrawsDependOnSeedAndIndexAlone) {
  const SweepSpec spec = parse_sweep(
      "method: random\nparameters:\n  lr: {distribution: log_uniform_values, min: 1e-5, max: 1e-2}\n"
      "  warmup_steps: {min: 0, max: 100}\n",
      "s.yaml");
  std::set<SweepValues> seen;
  for (int64_t i = 0; i < 100; ++i) {
    const SweepValues values = propose(spec, 7, i, {}).value();
    EXPECT_EQ(propose(spec, 7, i, {}), values);
    EXPECT_NE(propose(spec, 8, i, {}), values);
    EXPECT_GE(std::stod(values[0]), 1e-5);
    EXPECT_LE(std::stod(values[0]), 1e-2);
    seen.insert(values);
  }
  EXPECT_EQ(seen.size(), 100u);
}

// Loss with one best learning rate and a word that matters.
double loss(const SweepValues& values) {
  const double lr = std::log10(std::stod(values[0]));
  return (lr + 3) * (lr + 3) + (values[1] == "block" ? 0 : 0.5);
}

std::vector<KnownRun> search(const SweepSpec& spec, uint64_t seed, int64_t runs) {
  std::vector<KnownRun> known;
  for (int64_t i = 0; i < runs; ++i) {
    KnownRun run{.values = propose(spec, seed, i, known).value(), .is_over = true};
    run.result = (spec.metric->maximize ? -1 : 1) * loss(run.values);
    known.push_back(run);
  }
  return known;
}

TEST(Sampler, BayesFindsTheMinimumAndIsReproducible) {
  for (const char* goal : {"minimize", "maximize"}) {
    const SweepSpec spec =
        parse_sweep(std::string("method: bayes\nmetric: {name: eval_loss, goal: ") + goal +
                        "}\nparameters:\n  lr: {distribution: log_uniform_values, min: 1e-6, max: 1}\n"
                        "  fp8_recipe: {values: [delayed, current, block]}\n  seed: {value: 3}\n",
                    "s.yaml");
    EXPECT_EQ(random_runs_first(spec), 5);
    int found = 0;
    for (const uint64_t seed : {1u, 2u, 3u, 4u}) {
      const std::vector<KnownRun> runs = search(spec, seed, 18);
      double best = INFINITY;
      for (const KnownRun& run : runs) best = std::min(best, loss(run.values));
      found += best < 0.05 ? 1 : 0;
      // Given the same results, the same proposals.
      const std::vector<KnownRun> again = search(spec, seed, 18);
      for (size_t i = 0; i < runs.size(); ++i) EXPECT_EQ(runs[i].values, again[i].values);
    }
    EXPECT_GE(found, 3) << goal;
  }
}

TEST(Sampler, BayesAvoidsRunsThatGoOnAndCountsFailuresAsTheWorst) {
  const SweepSpec spec = parse_sweep(
      "method: bayes\n" + kMetric + "parameters:\n  seed: {values: [1, 2, 3, 4, 5, 6]}\n", "s.yaml");
  std::vector<KnownRun> known;
  for (const char* value : {"1", "2", "3", "4"})
    known.push_back({.values = {value}, .result = 6 - std::stod(value), .is_over = true});
  known.push_back({.values = {"6"}, .result = {}, .is_over = false});
  EXPECT_THAT(propose(spec, 1, 5, known).value(), ElementsAre("5"));
  known.back().is_over = true;  // it failed
  EXPECT_THAT(propose(spec, 1, 5, known).value(), ElementsAre("5"));
}

// As in W&B's own example: b is not among the best half at its first rung, c at its second.
TEST(Hyperband, StopsWhatIsNotAmongTheBest) {
  const Hyperband hyperband{.rungs = {2, 3}, .eta = 2, .strict = true};
  const std::vector<double> a = {10, 9}, b = {10, 10}, c = {10, 8, 8}, d = {10, 7, 7}, e = {10, 6, 6};
  const std::vector<std::vector<double>> all = {a, b, c, d, e};
  EXPECT_TRUE(judge_run(hyperband, false, b, all));
  const auto verdict = judge_run(hyperband, false, c, all);
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->rung, 3);
  EXPECT_EQ(verdict->value, 8);
  EXPECT_EQ(verdict->threshold, 7);
  EXPECT_FALSE(judge_run(hyperband, false, d, all));
  EXPECT_FALSE(judge_run(hyperband, false, e, all));
  EXPECT_FALSE(judge_run(hyperband, false, {1}, all));  // no rung yet
  EXPECT_FALSE(judge_run(hyperband, false, {}, all));
}

TEST(Hyperband, AloneNothingIsStoppedAndBestSoFarCountsUnlessStrict) {
  Hyperband hyperband{.rungs = {2}, .eta = 3, .strict = false};
  EXPECT_FALSE(judge_run(hyperband, false, {5, 6}, {{5, 6}}));
  // Best so far 1, at the rung 9.
  const std::vector<double> spiky = {1, 9};
  const std::vector<std::vector<double>> all = {spiky, {4, 4}, {5, 5}};
  EXPECT_FALSE(judge_run(hyperband, false, spiky, all));
  hyperband.strict = true;
  EXPECT_TRUE(judge_run(hyperband, false, spiky, all));
  // Larger is better.
  EXPECT_FALSE(judge_run(hyperband, true, {1, 9}, all));
  EXPECT_TRUE(judge_run(hyperband, true, {5, 2}, {{5, 2}, {5, 9}, {5, 8}}));
}

}  // namespace
}  // namespace octet
