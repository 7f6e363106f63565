// octet sweep from the command line, with tiny runs on the CPU.

#include <gmock/gmock.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "ops/device.h"
#include "support/places.h"
#include "support/process.h"

namespace octet::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using Json = nlohmann::json;
namespace fs = std::filesystem;

struct SweepCli : testing::Test {
  SweepCli() {
    std::string text;
    for (int i = 0; i < 300; ++i) text += "line " + std::to_string(i * 7919 % 1000) + " of the text\n";
    folder.write("text.txt", text);
    folder.write(
        "base.yaml",
        "model_preset: llama-tiny\nhidden_size: 32\nnum_hidden_layers: 1\nnum_attention_heads: 2\n"
        "intermediate_size: 64\ndataset: text.txt\ndevice: cpu\nnum_threads: 1\nmax_seq_length: 32\n"
        "per_device_train_batch_size: 1\nmax_steps: 6\nwarmup_steps: 0\neval_steps: 3\neval_batches: 1\n"
        "progress: plain\nsave_steps: 0\n");
    folder.write("grid.yaml",
                 "method: grid\nmetric: {name: eval/loss, goal: minimize}\n"
                 "parameters:\n  lr: {values: [0.0001, 0.02]}\n  seed: {values: [1, 2]}\n");
  }
  ProcessResult sweep(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "sweep");
    return run_process(test::octet_program(), arguments, folder.path());
  }
  pid_t start(std::vector<std::string> arguments, const std::string& output) {
    arguments.insert(arguments.begin(), "sweep");
    return start_process(test::octet_program(), arguments, folder.path(), output);
  }
  std::string path(const std::string& name) const { return folder.path() + "/" + name; }
  Json results(const ProcessResult& result) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return Json::parse(result.out);
  }
  void expect_error(const std::vector<std::string>& arguments, const std::string& text) {
    const ProcessResult result = sweep(arguments);
    EXPECT_EQ(result.exit_code, 2) << result.out;
    EXPECT_THAT(result.err, HasSubstr(text));
    EXPECT_FALSE(fs::exists(path("sweeps")));
  }
  template <class Condition>
  void wait_until(const Condition& condition) {
    for (int i = 0; i < 3000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ASSERT_TRUE(condition());
  }
  // The steps that a run has logged, in the order of the file.
  std::vector<int64_t> steps(const std::string& run) const {
    std::ifstream file(path(run + "/metrics.jsonl"));
    std::vector<int64_t> all;
    for (std::string line; std::getline(file, line);) {
      const Json record = Json::parse(line, nullptr, false);
      if (!record.is_discarded()) all.push_back(record["step"]);
    }
    return all;
  }
  TemporaryFolder folder;
};

TEST_F(SweepCli, AGridIsTrainedAndRanked) {
  ProcessResult result =
      sweep({"grid.yaml", "--config", "base.yaml", "--html", "report.html", "--learning_rate", "3"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err,
              HasSubstr("warning: --learning_rate has no effect: the sweep sets lr in grid.yaml:4"));
  EXPECT_THAT(result.err, HasSubstr("run-0003 of 4 starts: lr 0.02, seed 2"));
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("4 of 4 runs finished"), HasSubstr("run       state     eval_loss")));
  EXPECT_THAT(result.out, HasSubstr("  octet train base.yaml --lr=0.02 --seed="));
  EXPECT_THAT(read_text(path("report.html")),
              AllOf(HasSubstr("<html"), HasSubstr("Sweep grid"), HasSubstr("run-0003")));
  EXPECT_TRUE(fs::exists(path("sweeps/grid/runs/run-0003/metrics.jsonl")));

  // The same again trains nothing, and the results are those of before.
  const Json json = results(sweep({"base.yaml", "grid.yaml", "--json"}));
  EXPECT_EQ(json["finished"], 4);
  EXPECT_EQ(json["best"]["parameters"]["lr"], "0.02");
  EXPECT_EQ(json["runs"][0], json["best"]);
  EXPECT_LT(json["runs"][0]["metric"], json["runs"][3]["metric"]);
  EXPECT_EQ(steps("sweeps/grid/runs/run-0003").size(), 6u);
  EXPECT_EQ(results(sweep({"grid.yaml", "--status", "--json"})), json);
  // Its command gives the same result.
  std::string command = json["best"]["command"];
  ASSERT_THAT(command, StartsWith("octet train "));
  command = test::octet_program() + command.substr(5) + " --run_name again";
  EXPECT_EQ(run_process("bash", {"-c", command}, folder.path()).exit_code, 0);
  EXPECT_EQ(read_text(path("runs/again/metrics.jsonl")).substr(0, 60),
            read_text(path(json["best"]["folder"].get<std::string>() + "/metrics.jsonl")).substr(0, 60));
  // Another sweep in the same folder is refused.
  result = sweep({"grid.yaml", "--config", "base.yaml", "--max_steps", "7"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("holds another sweep"));
}

TEST_F(SweepCli, WarnsOnceOfValuesThatMayCostAccuracy) {
  folder.write("costly.yaml",
               "method: grid\nparameters:\n  master_weights: {values: [compact, stochastic]}\n"
               "  fp8_format: {values: [hybrid, e5m2]}\n  adam_beta2: {values: [0.95, 0.995, 0.999]}\n");
  // The first run fails, and the sweep ends. What the configuration has to say is said once, too.
  const std::string said =
      sweep({"costly.yaml", "--config", "base.yaml", "--optimizer_state", "fp8", "--max_steps", "6",
             "--num_train_epochs", "1", "--dataset", "missing.txt", "--max_failures", "1"})
          .err;
  for (const std::string text :
       {"warning: master_weights stochastic may cost accuracy", "warning: fp8_format e5m2 may cost accuracy",
        "warning: optimizer_state fp8 may cost accuracy with adam_beta2 0.995", "num_train_epochs"}) {
    EXPECT_NE(said.find(text), std::string::npos) << said;
    EXPECT_EQ(said.find(text), said.rfind(text)) << text << " once in: " << said;
  }
  EXPECT_THAT(said, Not(HasSubstr("with adam_beta2 0.999")));
}

// With bayes, only the first values are known before the runs.
TEST_F(SweepCli, WarnsOfNoValuesThatAreNotDrawnYet) {
  const auto said = [&](const std::string& method) {
    folder.write(method + ".yaml",
                 "method: " + method +
                     "\nrun_cap: 100\nmetric: {name: loss, goal: minimize}\nparameters:\n"
                     "  lr: {min: 0.001, max: 0.01}\n"
                     "  master_weights: {values: [compact, stochastic], probabilities: [0.95, 0.05]}\n");
    return sweep({method + ".yaml", "--config", "base.yaml", "--dataset", "missing.txt", "--max_failures",
                  "1", "--sweep_seed", "1"})
        .err;
  };
  EXPECT_THAT(said("random"), HasSubstr("master_weights stochastic may cost accuracy"));
  EXPECT_THAT(said("bayes"), Not(HasSubstr("master_weights stochastic may cost accuracy")));
}

// Whoever runs a part of a sweep gets no error for what the other runs vary.
TEST_F(SweepCli, AParameterWithoutEffectInTheFirstRunsIsNoError) {
  folder.write(
      "types.yaml",
      "parameters: {penalty_type: {values: [none, z_loss]}, penalty_weight: {values: [0.005, 0.01]}}\n");
  const ProcessResult part =
      sweep({"types.yaml", "--config", "base.yaml", "--runs", "1", "--max_steps", "1"});
  EXPECT_EQ(part.exit_code, 0) << part.err;
  EXPECT_THAT(part.err, HasSubstr("penalty_weight has no effect: penalty_type is none"));
}

TEST_F(SweepCli, CtrlCIsPassedOnAndTheSweepContinues) {
  folder.write("long.yaml", "method: grid\nparameters: {seed: {values: [1, 2, 3]}}\nconfig: base.yaml\n");
  const pid_t agent = start({"long.yaml", "--max_steps", "100000", "--parallel", "2"}, "out.txt");
  wait_until([&] {
    return steps("sweeps/long/runs/run-0001").size() > 3 && steps("sweeps/long/runs/run-0000").size() > 3;
  });
  kill(agent, SIGINT);
  EXPECT_EQ(wait_for_process(agent), 75);
  EXPECT_THAT(read_text(path("out.txt")),
              AllOf(HasSubstr("stopping: 2 runs will save and end"),
                    HasSubstr("the same command continues it"), HasSubstr("3 open")));
  const std::vector<int64_t> before = steps("sweeps/long/runs/run-0000");
  // It continues where it was: with an end at the next step.
  folder.write("sweeps/long/sweep.json", [&] {
    std::string text = read_text(path("sweeps/long/sweep.json"));
    return text.replace(text.find("100000"), 6, std::to_string(before.size() + 300));
  }());
  const Json json =
      results(sweep({"long.yaml", "--max_steps", std::to_string(before.size() + 300), "--json"}));
  EXPECT_EQ(json["finished"], 3);
  const std::vector<int64_t> after = steps("sweeps/long/runs/run-0000");
  ASSERT_EQ(after.size(), before.size() + 300);
  for (size_t i = 0; i < after.size(); ++i) EXPECT_EQ(after[i], static_cast<int64_t>(i) + 1);
}

TEST_F(SweepCli, TheRunOfAKilledAgentIsTakenUp) {
  folder.write(
      "two.yaml",
      "method: random\nrun_cap: 3\nparameters: {lr: {distribution: log_uniform_values, min: 1e-4, max: 1e-2}}\n");
  const std::vector<std::string> call = {"two.yaml", "--config", "base.yaml", "--max_steps", "400"};
  const pid_t first = start(call, "first.txt");
  wait_until([&] { return steps("sweeps/two/runs/run-0000").size() > 3; });
  // It must not come to the next run before the second agent is there, however slow this machine is.
  kill(first, SIGSTOP);
  const pid_t second = start(call, "second.txt");
  wait_until([&] { return steps("sweeps/two/runs/run-0001").size() > 3; });
  kill(first, SIGKILL);
  EXPECT_EQ(wait_for_process(first), 128 + SIGKILL);
  EXPECT_EQ(wait_for_process(second), 0);
  const std::string text = read_text(path("second.txt"));
  EXPECT_THAT(text, AllOf(HasSubstr("run-0000 of 3 is taken up"), HasSubstr("3 of 3 runs finished")));
  EXPECT_THAT(read_text(path("first.txt")), Not(HasSubstr("run-0001 of 3 starts")));
  for (const char* run : {"run-0000", "run-0001", "run-0002"}) {
    const std::vector<int64_t> all = steps(std::string("sweeps/two/runs/") + run);
    ASSERT_EQ(all.size(), 400u) << run;
    EXPECT_EQ(all.back(), 400);
  }
  EXPECT_EQ(results(sweep({"two.yaml", "base.yaml", "--max_steps", "400", "--status", "--json"}))["finished"],
            3);
}

TEST_F(SweepCli, HyperbandStopsWhatIsClearlyWorse) {
  folder.write(
      "band.yaml",
      "method: grid\nmetric: {name: eval/loss}\nearly_terminate: {type: hyperband, min_iter: 2, eta: 3}\n"
      "parameters: {lr: {values: [0.02, 1e-6]}}\n");
  const Json json = results(sweep({"band.yaml", "--config", "base.yaml", "--max_steps", "6000", "--json"}));
  EXPECT_EQ(json["finished"], 1);
  EXPECT_EQ(json["stopped_early"], 1);
  EXPECT_EQ(json["runs"][1]["state"], "stopped early");
  EXPECT_LT(json["runs"][1]["steps"], 6000);
  EXPECT_THAT(json["runs"][1].value("reason", ""), HasSubstr("eval_loss was"));
}

TEST_F(SweepCli, FailedRunsAreMarkedAndManyInARowEndTheSweep) {
  folder.write("mixed.yaml",
               "method: grid\nparameters: {dataset: {values: [nowhere.txt, text.txt]}, seed: {value: 1}}\n");
  ProcessResult result = sweep({"mixed.yaml", "--config", "base.yaml"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("warning: run-0000 failed: exit code 2: "));
  EXPECT_THAT(result.out, AllOf(HasSubstr("1 of 2 runs finished, 1 failed"),
                                HasSubstr("run-0000 failed: exit code 2"), HasSubstr("best: run-0001")));
  result = sweep({"mixed.yaml", "--config", "base.yaml", "--retry_failed"});
  EXPECT_THAT(result.err, HasSubstr("1 run that failed will be repeated"));
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("run-0000 of 2 is taken up"), Not(HasSubstr("run-0001 of 2 starts"))));

  folder.write("bad.yaml", "method: grid\nparameters: {seed: {min: 1, max: 9}}\n");
  result = sweep({"bad.yaml", "--config", "base.yaml", "--dataset", "nowhere.txt", "--max_failures", "2"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("2 runs failed in a row, so the sweep stops. The last one: exit code 2"));
  EXPECT_THAT(result.out, HasSubstr("0 of 9 runs finished, 2 failed, 7 open"));
}

TEST_F(SweepCli, BayesIsReproducible) {
  folder.write("bayes.yaml",
               "method: bayes\nmetric: {name: eval_loss}\nrun_cap: 6\n"
               "parameters: {lr: {distribution: log_uniform_values, min: 1e-5, max: 0.1}}\n");
  const auto run = [&](const std::string& name) {
    return results(sweep(
        {"bayes.yaml", "--config", "base.yaml", "--max_steps", "3", "--folder", name, "--json"}))["runs"];
  };
  const Json one = run("one"), two = run("two");
  ASSERT_EQ(one.size(), 6u);
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(one[i]["parameters"], two[i]["parameters"]);
    EXPECT_EQ(one[i]["metric"], two[i]["metric"]);
  }
}

TEST_F(SweepCli, NamesAreEscapedInThePage) {
  folder.write("odd.yaml",
               "method: grid\nname: '<script>alert(1)</script>'\nparameters: {seed: {values: [1]}}\n");
  EXPECT_EQ(sweep({"odd.yaml", "--config", "base.yaml", "--max_steps", "1", "--html", "odd.html"}).exit_code,
            0);
  EXPECT_THAT(read_text(path("odd.html")),
              AllOf(Not(HasSubstr("<script>alert")), HasSubstr("&lt;script&gt;alert")));
}

TEST_F(SweepCli, BadInput) {
  expect_error({"nowhere.yaml"}, "nowhere.yaml");
  folder.write("r.yaml", "method: random\nparameters: {seed: {min: 1, max: 9}}\n");
  expect_error({"r.yaml", "--config", "base.yaml"},
               "method random has no end: set run_cap in r.yaml, or --runs N");
  expect_error({"grid.yaml", "--config", "nothere.yaml"}, "nothere.yaml");
  expect_error({"grid.yaml", "--config", "base.yaml", "--max_stepz", "1"}, "did you mean '--max_steps'?");
  expect_error({"grid.yaml", "--config", "base.yaml", "--run_name", "x"}, "--run_name cannot be set");
  expect_error({"grid.yaml", "--config", "base.yaml", "--eval_strategy", "no"}, "but eval_strategy is no");
  expect_error({"grid.yaml", "--config", "base.yaml", "--status"}, "there is no sweep yet");
  // Nothing else says that the runs would be on the CPU.
  expect_error({"grid.yaml", "--config", "base.yaml", "--gpus", "99"}, "--gpus ");
  if (!probe_cuda().usable)
    expect_error({"grid.yaml", "--config", "base.yaml", "--device", "cuda"}, "device is cuda, but ");
  expect_error({"grid.yaml", "--config", "base.yaml", "--html", "nowhere/report.html"},
               "nowhere/report.html");
  folder.write("idle.yaml", "parameters: {decay_ratio: {values: [0.1, 0.5]}, seed: {values: [1, 2]}}\n");
  expect_error(
      {"idle.yaml", "--config", "base.yaml"},
      "decay_ratio has no effect: lr_scheduler_type is not wsd, so the sweep would train equal runs");
  // A weight of 0 is the default, but does not make the others count.
  folder.write("none.yaml",
               "parameters: {penalty_type: {value: none}, penalty_weight: {values: [0.0, 0.005, 0.01]}}\n");
  expect_error({"none.yaml", "--config", "base.yaml"},
               "penalty_weight has no effect: penalty_type is none, so the sweep would train equal runs");
  expect_error({"grid.yaml", "a.yaml", "b.yaml"}, "at most one configuration, got 3 files");
  expect_error({"base.yaml"}, "unknown key 'model_preset' in base.yaml:1");
  expect_error({}, "octet sweep needs SWEEP.yaml");
  folder.write(
      "many.yaml",
      "method: bayes\nparameters:\n  lr: {distribution: gamma}\n  seed: {min: 5, max: 1}\n  max_step: {value: 1}\n");
  const ProcessResult result = sweep({"many.yaml"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(
      result.err,
      AllOf(HasSubstr("metric in many.yaml is missing"), HasSubstr("is gamma; expected one of"),
            HasSubstr("seed in many.yaml:4 has min 5 and max 1"), HasSubstr("did you mean 'max_steps'?")));
}

}  // namespace
}  // namespace octet::test
