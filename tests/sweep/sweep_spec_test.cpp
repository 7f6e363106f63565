#include "sweep/sweep_spec.h"

#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "support/error_of.h"
#include "support/places.h"

namespace octet {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// The errors of a sweep file.
std::string errors_of(const std::string& text) {
  try {
    parse_sweep(text, "s.yaml");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}
// Of one with this parameter, at line 4.
std::string parameter_errors(const std::string& method, const std::string& parameter) {
  return errors_of("method: " + method + "\nmetric: {name: eval_loss}\nparameters:\n  " + parameter + "\n");
}

TEST(SweepSpec, ReadsEverythingThatWandbHas) {
  const SweepSpec spec = parse_sweep(R"(
program: train.py
project: mine
name: a sweep
method: random
run_cap: 20
metric: {name: eval/loss, goal: minimize, target: 1.5}
early_terminate: {type: hyperband, min_iter: 3, eta: 2}
parameters:
  lr: {distribution: log_uniform_values, min: 1e-5, max: 1e-2}
  warmup_steps: {min: 0, max: 100}
  weight_decay: {min: 0.0, max: 0.5}
  fp8_recipe: {values: [delayed, current], probabilities: [0.25, 0.75]}
  max_grad_norm: {distribution: q_uniform, min: 0.5, max: 2, q: 0.5}
  adam_epsilon: {distribution: log_uniform, min: -20, max: -15}
  lora_dropout: {distribution: beta, a: 1, b: 5}
  per_device_train_batch_size: {distribution: q_log_uniform_values, min: 4, max: 64, q: 4}
  max_steps: {value: 100}
  use_fp8: {values: [true, false]}
)",
                                     "s.yaml");
  EXPECT_EQ(spec.name, "a sweep");
  EXPECT_EQ(spec.run_cap, 20);
  EXPECT_EQ(spec.metric->label(), "eval_loss");
  EXPECT_EQ(spec.metric->target, 1.5);
  EXPECT_THAT(spec.hyperband->rungs, Contains(12));
  ASSERT_EQ(spec.parameters.size(), 10u);
  EXPECT_EQ(spec.parameters[0].name, "lr");
  EXPECT_EQ(spec.parameters[0].key, "learning_rate");
  EXPECT_EQ(spec.parameters[1].distribution.kind, DistributionKind::IntUniform);
  EXPECT_EQ(spec.parameters[2].distribution.kind, DistributionKind::Uniform);
  EXPECT_THAT(spec.parameters[3].distribution.probabilities, ElementsAre(0.25, 0.75));
  EXPECT_NEAR(spec.parameters[5].distribution.min, std::exp(-20), 1e-15);
  EXPECT_TRUE(spec.parameters[7].distribution.writes_integers);
  EXPECT_EQ(spec.parameters[9].key, "mixed_precision");
  EXPECT_THAT(spec.notes, Contains(HasSubstr("program in s.yaml:2 is ignored: the runs are 'octet train'")));
  EXPECT_THAT(spec.notes, Contains(HasSubstr("project in s.yaml is ignored")));
}

TEST(SweepSpec, TheProjectsOwnFilesAreRead) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(test::source_path("/configs"))) {
    if (!entry.path().filename().string().starts_with("sweep_")) continue;
    const std::string path = entry.path().string();
    EXPECT_TRUE(is_sweep_file(path)) << path;
    const SweepSpec spec = read_sweep_file(path);
    EXPECT_TRUE(std::filesystem::exists(test::source_path("/") + spec.base_config)) << path;
    EXPECT_THAT(spec.warnings, IsEmpty()) << path;
    ++files;
  }
  EXPECT_GT(files, 1);
  EXPECT_FALSE(is_sweep_file(test::source_path("/configs/tinyshakespeare.yaml")));
  EXPECT_FALSE(is_sweep_file("nowhere.yaml"));
}

TEST(SweepSpec, CommandsOfOctetGiveTheBase) {
  const std::string rest = "method: grid\nparameters: {seed: {values: [1, 2]}}\n";
  SweepSpec spec = parse_sweep(
      "command: ['${env}', /usr/bin/octet, train, run.yaml, --max_steps, '5', '${args}']\n" + rest, "s.yaml");
  EXPECT_EQ(spec.base_config, "run.yaml");
  EXPECT_THAT(spec.base_flags, ElementsAre("--max_steps", "5"));
  spec = parse_sweep("command: [python, train.py, '${args}']\n" + rest, "s.yaml");
  EXPECT_THAT(spec.warnings, ElementsAre(HasSubstr("command in s.yaml:1 starts 'python': it is ignored")));
  spec = parse_sweep("config: base.yaml\n" + rest, "s.yaml");
  EXPECT_EQ(spec.base_config, "base.yaml");
  EXPECT_THAT(spec.notes, ElementsAre("metric in s.yaml is not set: runs are ranked by eval_loss"));
  EXPECT_THAT(errors_of("command: [octet, launch, -n, '2', train]\n" + rest),
              HasSubstr("octet sweep --ranks N"));
}

TEST(SweepSpec, WithoutAMethodItIsAGrid) {
  const SweepSpec spec = parse_sweep("parameters:\n  seed: {values: [1, 2]}\n  lr: {value: 0.1}\n", "s.yaml");
  EXPECT_EQ(spec.grid_size(), 2);
  EXPECT_THAT(spec.notes, Contains("method in s.yaml is not set: grid, every combination is a run"));
}

TEST(SweepSpec, AGridHasEveryValueOnce) {
  EXPECT_THAT(parameter_errors("grid", "lr: {values: [0.1, 0.2, 0.1]}"),
              HasSubstr("lr in s.yaml:4 has 0.1 twice; a grid trains every value once"));
  EXPECT_EQ(parameter_errors("random", "lr: {values: [0.1, 0.2, 0.1]}"), "");
}

TEST(SweepSpec, NestedParametersAreFlatKeys) {
  const SweepSpec spec = parse_sweep(
      "method: grid\nparameters:\n  optimizer:\n    parameters:\n      lr: {values: [0.1]}\n      weight_decay: {value: 0}\n"
      "  seed: {value: 1}\n",
      "s.yaml");
  ASSERT_EQ(spec.parameters.size(), 3u);
  EXPECT_EQ(spec.parameters[0].name, "lr");
  EXPECT_EQ(spec.parameters[2].name, "seed");
  EXPECT_THAT(spec.notes, Contains("optimizer.lr is read as the key lr"));
}

TEST(SweepSpec, HyperbandRungs) {
  const std::string head =
      "method: grid\nmetric: {name: loss}\nparameters: {seed: {values: [1]}}\nearly_terminate: ";
  EXPECT_THAT(parse_sweep(head + "{type: hyperband, max_iter: 27, s: 2}", "s").hyperband->rungs,
              ElementsAre(3, 9));
  EXPECT_EQ(parse_sweep(head + "{type: hyperband, min_iter: 4, eta: 2}", "s").hyperband->rungs[2], 16);
  EXPECT_THAT(errors_of(head + "{type: hyperband, max_iter: 27}"), HasSubstr("max_iter needs s"));
  EXPECT_THAT(errors_of(head + "{type: hyperband}"), HasSubstr("neither min_iter nor max_iter"));
  EXPECT_THAT(errors_of(head + "{type: hyperband, min_iter: 3, eta: 1}"), HasSubstr("eta in s.yaml is 1"));
  EXPECT_THAT(errors_of(head + "{type: median}"),
              HasSubstr("early_terminate.type in s.yaml:4 is median; expected hyperband"));
  EXPECT_THAT(errors_of(head + "{type: hyperband, min_iter: 3, fast: 1}"),
              HasSubstr("unknown key 'early_terminate.fast'"));
  EXPECT_THAT(
      errors_of(
          "method: grid\nparameters: {seed: {values: [1]}}\nearly_terminate: {type: hyperband, min_iter: 1}"),
      HasSubstr("metric in s.yaml is missing: early_terminate compares runs by it"));
}

TEST(SweepSpec, MetricNames) {
  for (const char* name : {"eval/loss", "eval_loss", "val_loss", "validation/loss", "Eval-Loss"})
    EXPECT_EQ(metric_called(name)->label(), "eval_loss") << name;
  for (const char* name : {"loss", "train/loss", "train_loss"})
    EXPECT_EQ(metric_called(name)->label(), "loss") << name;
  EXPECT_EQ(metric_called("eval/hellaswag/acc_norm")->label(), "hellaswag/acc_norm");
  EXPECT_EQ(metric_called("tasks/piqa/acc")->label(), "piqa/acc");
  EXPECT_TRUE(metric_called("hellaswag/acc")->maximize);
  EXPECT_EQ(metric_called("eval_loss/gsm8k")->label(), "eval_loss/gsm8k");
  EXPECT_FALSE(metric_called("accuracy"));
}

TEST(SweepSpec, ResultsOfAMetric) {
  std::vector<StepRecord> records(20);
  for (size_t i = 0; i < 20; ++i) {
    records[i].step = static_cast<int64_t>(i) + 1;
    records[i].loss = 20 - static_cast<double>(i);
    records[i].tokens_per_second = static_cast<double>(i);
  }
  records[4].eval_loss = 3;
  records[9].eval_loss = 2;
  records[14].eval_loss = NAN;
  records[19].eval_loss = 2.5;
  records[19].task_scores = {{"hellaswag/acc", 0.25}};
  EXPECT_THAT(metric_history(*metric_called("eval_loss"), records), ElementsAre(3, 2, 2.5));
  EXPECT_EQ(metric_result(*metric_called("eval_loss"), records), 2);
  EXPECT_EQ(metric_result(*metric_called("loss"), records), 1.5);
  EXPECT_EQ(metric_result(*metric_called("throughput"), records), 10);
  EXPECT_EQ(metric_result(*metric_called("hellaswag/acc"), records), 0.25);
  EXPECT_NEAR(*metric_result(*metric_called("perplexity"), records), std::exp(2), 1e-12);
  EXPECT_FALSE(metric_result(*metric_called("piqa/acc"), records));
}

TEST(SweepSpec, BadFiles) {
  EXPECT_THAT(errors_of("method: {name: grid}\nparameters: {seed: {value: 1}}\n"),
              HasSubstr("method in s.yaml is a map; expected grid, random or bayes"));
  EXPECT_THAT(errors_of("method: gird\nparameters: {seed: {value: 1}}\n"),
              HasSubstr("method in s.yaml:1 is gird"));
  EXPECT_THAT(errors_of("method: grid\n"), HasSubstr("parameters in s.yaml is missing"));
  EXPECT_THAT(errors_of("method: grid\nparameters: {}\n"), HasSubstr("parameters in s.yaml is empty"));
  EXPECT_THAT(errors_of("method: bayes\nparameters: {seed: {min: 1, max: 2}}\n"),
              HasSubstr("metric in s.yaml is missing: method bayes needs metric"));
  EXPECT_THAT(errors_of("method: grid\nmetric: {name: accuracy}\nparameters: {seed: {value: 1}}\n"),
              AllOf(HasSubstr("metric.name in s.yaml:2 is accuracy, which octet does not log"),
                    HasSubstr("eval_loss")));
  EXPECT_THAT(errors_of("method: grid\nmetric: {goal: minimize}\nparameters: {seed: {value: 1}}\n"),
              HasSubstr("metric.name in s.yaml is missing"));
  EXPECT_THAT(errors_of("method: grid\nmetric: {name: loss, goal: min}\nparameters: {seed: {value: 1}}\n"),
              HasSubstr("metric.goal in s.yaml:2 is min; expected minimize or maximize"));
  EXPECT_THAT(errors_of("metod: grid\nmethod: grid\nparameters: {seed: {value: 1}}\n"),
              HasSubstr("unknown key 'metod' in s.yaml:1; did you mean 'method'?"));
  EXPECT_THAT(errors_of("method: grid\nrun_cap: 0\nparameters: {seed: {value: 1}}\n"),
              HasSubstr("run_cap in s.yaml:2 is 0"));
}

TEST(SweepSpec, BadParameters) {
  EXPECT_THAT(
      parameter_errors("random", "learning_rat: {value: 1}"),
      AllOf(HasSubstr("learning_rat"), HasSubstr("s.yaml:4"), HasSubstr("did you mean 'learning_rate'?")));
  EXPECT_THAT(parameter_errors("random", "lr: {distribution: gamma, min: 0, max: 1}"),
              AllOf(HasSubstr("lr.distribution in s.yaml:4 is gamma; expected one of constant, categorical"),
                    HasSubstr("q_beta")));
  EXPECT_THAT(parameter_errors("random", "lr: {min: 0.1, max: 0.01}"),
              HasSubstr("lr in s.yaml:4 has min 0.1 and max 0.01"));
  EXPECT_THAT(parameter_errors("random", "lr: {min: 0.1}"), HasSubstr("neither value, values, min and max"));
  EXPECT_THAT(parameter_errors("random", "lr: {distribution: uniform, min: 0.1}"),
              HasSubstr("lr in s.yaml:4 has no max"));
  EXPECT_THAT(parameter_errors("random", "lr: {min: a, max: 1}"),
              HasSubstr("lr.min in s.yaml:4 is a; expected a number"));
  EXPECT_THAT(parameter_errors("random", "lr: {values: [1e-3, 1e-4], probabilities: [0.5, 0.6]}"),
              HasSubstr("adds up to 1.1; expected 1"));
  EXPECT_THAT(parameter_errors("random", "lr: {values: [1e-3, 1e-4], probabilities: [1]}"),
              HasSubstr("has 1 numbers for 2 values"));
  EXPECT_THAT(parameter_errors("random", "lr: {values: []}"), HasSubstr("lr in s.yaml:4 has no values"));
  EXPECT_THAT(parameter_errors("random", "lr: 0.1"),
              HasSubstr("lr in s.yaml:4 is 0.1; expected value, values, or min and max"));
  EXPECT_THAT(parameter_errors("random", "lr: {}"),
              HasSubstr("is empty; expected value, values, or min and max"));
  EXPECT_THAT(parameter_errors("random", "lr: {valeus: [1]}"),
              HasSubstr("unknown key 'valeus' of parameters.lr.valeus in s.yaml:4; did you mean 'values'?"));
  EXPECT_THAT(parameter_errors("random", "lr: {distribution: log_uniform_values, min: 0, max: 1}"),
              HasSubstr("log_uniform_values needs numbers above 0"));
  EXPECT_THAT(parameter_errors("grid", "lr: {min: 0.0, max: 1.0}"),
              HasSubstr("lr in s.yaml:4 is uniform, which has no end of values; a grid needs"));
  EXPECT_THAT(parameter_errors("random", "warmup_steps: {min: 0.0, max: 10.0}"),
              HasSubstr("warmup_steps in s.yaml:4 is an integer, but uniform gives fractions"));
  EXPECT_THAT(parameter_errors("random", "lr: {min: -1, max: 1}"),
              HasSubstr("lr in s.yaml:4 (alias of learning_rate) is '-1'"));
  EXPECT_THAT(parameter_errors("grid", "fp8_recipe: {values: [delayed, sometimes]}"),
              HasSubstr("fp8_recipe in s.yaml:4 is 'sometimes'"));
  EXPECT_THAT(parameter_errors("grid", "run_name: {values: [a, b]}"),
              HasSubstr("the sweep sets run_name for every run itself"));
  EXPECT_THAT(parameter_errors("grid", "lr: {value: 1}\n  learning_rate: {value: 1}"),
              HasSubstr("are the same key"));
  EXPECT_THAT(parameter_errors("random", "lr: {distribution: q_uniform, min: 0, max: 1, q: 0}"),
              HasSubstr("q of lr in s.yaml:4 is 0"));
  // Several faults are all said.
  EXPECT_THAT(parameter_errors("random", "lr: {min: 1, max: 0}\n  seed: {values: []}"),
              AllOf(HasSubstr("lr in"), HasSubstr("seed in")));
}

TEST(SweepSpec, LogarithmsThatLookLikeValuesAreWarnedOf) {
  const SweepSpec spec = parse_sweep(
      "method: random\nparameters:\n  learning_rate: {distribution: log_uniform, min: 0.0001, max: 0.1}\n",
      "s.yaml");
  EXPECT_THAT(spec.warnings, ElementsAre(HasSubstr("did you mean log_uniform_values?")));
}

TEST(SweepSpec, RungsAreFewAndRise) {
  const std::string head =
      "method: random\nmetric: {name: eval_loss}\nparameters: {lr: {value: 1}}\nearly_terminate: ";
  const auto rungs = parse_sweep(head + "{type: hyperband, min_iter: 1, eta: 1.1}", "s").hyperband->rungs;
  EXPECT_LT(rungs.size(), 300u);
  for (size_t i = 1; i < rungs.size(); ++i) EXPECT_LT(rungs[i - 1], rungs[i]);
  // Without a limit these would fill the memory.
  EXPECT_THAT(errors_of(head + "{type: hyperband, min_iter: 1, eta: 1.0000000001}"),
              HasSubstr("eta in s.yaml is 1.0000000001; expected a number of at least 1.01"));
  EXPECT_THAT(errors_of(head + "{type: hyperband, max_iter: 1e300, s: 2}"),
              HasSubstr("max_iter in s.yaml is 1e+300; expected at most 1e+12"));
  EXPECT_THAT(parse_sweep(head + "{type: hyperband, max_iter: 9, s: 1e300}", "s").hyperband->rungs,
              ElementsAre(1, 3));
}

TEST(SweepSpec, NumbersBeyondIntegersAreRefused) {
  EXPECT_THAT(parameter_errors("random", "max_steps: {distribution: int_uniform, min: 0, max: 1e300}"),
              HasSubstr("max_steps in s.yaml:4 is"));
  EXPECT_THAT(parameter_errors("grid", "weight_decay: {distribution: q_uniform, min: 0, max: 1, q: 1e-300}"),
              HasSubstr("weight_decay"));
}

}  // namespace
}  // namespace octet
