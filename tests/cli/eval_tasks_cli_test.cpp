// octet eval --task, and eval_tasks during training, from the command line.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "io/env.h"
#include "rank_runs.h"
#include "support/places.h"
#include "support/process.h"

namespace octet::test {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

const std::string kGolden = test::source_path("/tests/golden/eval_tasks/");

struct EvalTasksCli : testing::Test {
  ProcessResult eval(std::vector<std::string> arguments, const std::string& model = kGolden + "model") {
    std::vector<std::string> words = {"eval", model, "--device", "cpu", "--num_threads", "1"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    return run_process(test::octet_program(), words, folder.path());
  }
  std::vector<nlohmann::json> lines(const std::string& name) const {
    std::vector<nlohmann::json> result;
    std::istringstream stream(read_text(join_path(folder.path(), name)));
    for (std::string line; std::getline(stream, line);) result.push_back(nlohmann::json::parse(line));
    return result;
  }
  static std::string source(const std::string& task) { return task + "=" + kGolden + task + ".jsonl"; }
  TemporaryFolder folder;
};

TEST_F(EvalTasksCli, ATableShowsEveryTask) {
  const ProcessResult result = eval({"--task", source("hellaswag") + "," + source("mmlu")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, ContainsRegex("task +questions +examples +acc +acc_norm"));
  EXPECT_THAT(result.out, ContainsRegex("hellaswag +8 +0 +[0-9.]+ % \\+- [0-9.]+ +[0-9.]+ % \\+- [0-9.]+"));
  EXPECT_THAT(result.out, ContainsRegex("mmlu +6 +0 +[0-9.]+ % \\+- [0-9.]+ +-\n"));
  EXPECT_THAT(result.out, ContainsRegex("  anatomy +3 "));
  EXPECT_THAT(result.out, ContainsRegex("56 texts, [0-9]+ tokens in [0-9.]+ s, fp32"));
}

TEST_F(EvalTasksCli, JsonAndOutputAgree) {
  const ProcessResult result = eval({"--task", "hellaswag", "--dataset", kGolden + "hellaswag.jsonl",
                                     "--json", "--output", "answers.jsonl"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json report = nlohmann::json::parse(result.out), score = report["results"]["hellaswag"];
  const std::vector<nlohmann::json> answers = lines("answers.jsonl");
  ASSERT_EQ(answers.size(), 8);
  int correct = 0, correct_norm = 0;
  for (const nlohmann::json& answer : answers) {
    correct += answer["correct"].get<bool>();
    correct_norm += answer["correct_norm"].get<bool>();
    EXPECT_EQ(answer["log_likelihoods"].size(), 4);
  }
  EXPECT_EQ(score["acc"], correct / 8.0);
  EXPECT_EQ(score["acc_norm"], correct_norm / 8.0);
  EXPECT_GT(score["acc_norm_stderr"], 0);
  EXPECT_EQ(score["questions"], 8);
  EXPECT_EQ(score["num_fewshot"], 0);
  EXPECT_EQ(report["texts"], 32);
}

TEST_F(EvalTasksCli, ExamplesAndLimitsAreUsed) {
  const ProcessResult result = eval({"--task", kGolden + "piqa.jsonl", "--max_samples", "3", "--num_fewshot",
                                     "1", "--json", "--batch_size", "2"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json score = nlohmann::json::parse(result.out)["results"]["piqa"];
  EXPECT_EQ(score["questions"], 3);
  EXPECT_EQ(score["num_fewshot"], 1);
}

TEST_F(EvalTasksCli, Bf16GivesAboutTheSame) {
  std::vector<nlohmann::json> answers[2];
  for (const int i : {0, 1}) {
    ASSERT_EQ(
        eval({"--task", source("piqa"), "--mixed_precision", i == 0 ? "fp32" : "bf16", "--output", "a.jsonl"})
            .exit_code,
        0);
    answers[i] = lines("a.jsonl");
  }
  for (size_t i = 0; i < answers[0].size(); ++i) {
    const double a = answers[0][i]["log_likelihoods"][0], b = answers[1][i]["log_likelihoods"][0];
    EXPECT_NEAR(b, a, 0.02 * std::abs(a));
    EXPECT_NE(b, a);
  }
}

TEST_F(EvalTasksCli, BadInputIsNamed) {
  const auto error = [&](std::vector<std::string> arguments) {
    const ProcessResult result = eval(std::move(arguments));
    EXPECT_EQ(result.exit_code, 2) << result.out;
    return result.err;
  };
  folder.write("bad.jsonl",
               "{\"context\": \"c\", \"endings\": [\"a\", \"b\"], \"label\": 1}\n{\"context\": \"c\"}\n");
  EXPECT_THAT(error({"--task", "bad.jsonl"}), HasSubstr("[bad.jsonl] line 2: no column 'endings'"));
  EXPECT_THAT(error({"--task", "hellaswog"}), HasSubstr("did you mean 'hellaswag'?"));
  EXPECT_THAT(error({"--task", "nothing.jsonl"}), HasSubstr("nothing.jsonl: no such file"));
  EXPECT_THAT(error({"--task", "piqa,hellaswag", "--dataset", "bad.jsonl"}),
              HasSubstr("1 datasets for 2 tasks, expected one per task"));
  EXPECT_THAT(error({"--task", source("piqa") + "," + source("piqa")}),
              HasSubstr("task 'piqa' is given twice"));
  EXPECT_THAT(error({"--task", source("piqa"), "--num_fewshot", "1", "--fewshot_dataset", "nothing.jsonl"}),
              HasSubstr("nothing.jsonl: no such file"));
  folder.write("arc.jsonl", "{\"question\": \"q\"}\n");
  EXPECT_THAT(error({"--task", "arc_challenge=arc.jsonl"}), HasSubstr("a row of arc_challenge has"));
  EXPECT_THAT(error({"--num_fewshot", "2"}), HasSubstr("--num_fewshot has no meaning without --task"));
  EXPECT_THAT(error({"--task", source("piqa"), "--batches", "2"}),
              HasSubstr("--batches has no meaning with --task"));
  EXPECT_THAT(error({"--task", source("piqa"), "--max_seq_length", "3"}),
              HasSubstr("the model reads at most 3"));
  EXPECT_THAT(error({"--task", source("piqa"), "--tokenizer", "nothing.json"}), HasSubstr("nothing.json"));
}

// Without a file and without a hub, the message says what to do.
TEST_F(EvalTasksCli, WithoutDataItSaysHowToGetIt) {
  const ProcessResult result =
      run_process("/usr/bin/env",
                  {"HF_HUB_OFFLINE=1", "HF_HOME=" + folder.path(), test::octet_program(), "eval", kGolden + "model",
                   "--task", "hellaswag", "--device", "cpu"},
                  folder.path());
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err,
              HasSubstr("task hellaswag: its questions (validation of Rowan/hellaswag on the hub) could "
                        "not be read"));
  EXPECT_THAT(result.err, HasSubstr("write hellaswag=FILE"));
}

TEST_F(EvalTasksCli, AFileNextToTheUserIsFound) {
  std::filesystem::create_directory(join_path(folder.path(), "data"));
  folder.write("data/piqa.jsonl", read_text(kGolden + "piqa.jsonl"));
  std::filesystem::create_directory(join_path(folder.path(), "piqa"));  // of something else
  folder.write("piqa/notes.md", "no questions");
  const ProcessResult result = eval({"--task", "piqa"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, ContainsRegex("piqa +5 "));
  EXPECT_THAT(result.out, HasSubstr("questions of piqa: data/piqa.jsonl\n"));
}

struct EvalTaskRuns : RankRuns {
  // Short questions, because the runs read sequences of 32 bytes.
  EvalTaskRuns() {
    std::string text;
    for (int i = 0; i < 7; ++i)
      text += fmt::format(
          "{{\"context\": \"line {}\", \"endings\": [\"of the text\", \"zq\"], \"label\": 0}}\n", i);
    folder.write("lines.jsonl", text);
  }
  std::vector<nlohmann::json> scores(const std::string& name) const {
    std::vector<nlohmann::json> result;
    for (const nlohmann::json& record : metrics(name)) {
      if (record.contains("tasks")) result.push_back({{"step", record["step"]}, {"tasks", record["tasks"]}});
    }
    return result;
  }
  static Flags flags() {
    return {{"eval_tasks", "lines.jsonl"},
            {"eval_task_steps", "2"},
            {"max_steps", "5"},
            {"mixed_precision", "fp32"},
            {"gradient_reduce_dtype", "fp32"}};
  }
};

TEST_F(EvalTaskRuns, ScoresAreInTheMetricsOfARun) {
  const ProcessResult result = run_process(test::octet_program(), train("run", flags()), folder.path());
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, ContainsRegex("step 2/5 .* \\| lines/acc_norm: [01]\\.[0-9]+"));
  const std::vector<nlohmann::json> found = scores("run");
  ASSERT_EQ(found.size(), 3);
  EXPECT_EQ(found[0]["step"], 2);
  EXPECT_EQ(found[1]["step"], 4);
  EXPECT_EQ(found[2]["step"], 5);
  EXPECT_TRUE(found[0]["tasks"].contains("lines/acc"));
  // The last scores are those of the model that was saved.
  const ProcessResult eval = run_process(
      test::octet_program(),
      {"eval", "runs/run", "--task", "lines.jsonl", "--device", "cpu", "--json", "--num_threads", "1"},
      folder.path());
  ASSERT_EQ(eval.exit_code, 0) << eval.err;
  const nlohmann::json score = nlohmann::json::parse(eval.out)["results"]["lines"];
  EXPECT_EQ(score["acc"], found[2]["tasks"]["lines/acc"]);
  EXPECT_EQ(score["acc_norm"], found[2]["tasks"]["lines/acc_norm"]);
}

// Ranks share the questions, also if they share the weights.
TEST_F(EvalTaskRuns, RanksGetTheSameScoresAsOne) {
  Flags alone = flags();
  alone["per_device_train_batch_size"] = "2";
  ASSERT_EQ(run_process(test::octet_program(), train("one", alone), folder.path()).exit_code, 0);
  ASSERT_EQ(scores("one").size(), 3);
  for (const char* mode : {"zero1", "fsdp_full"}) {
    Flags shared = flags();
    shared["sharding_mode"] = mode;
    const ProcessResult result = launch(2, mode, shared);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(scores(mode), scores("one")) << mode;
  }
}

TEST_F(EvalTaskRuns, ABadTaskStopsTheRunBeforeItStarts) {
  folder.write("bad.jsonl", "{\"context\": \"c\", \"endings\": [\"a\", \"b\"], \"label\": 5}\n");
  const auto error = [&](const std::string& tasks, const std::string& name) {
    const ProcessResult result =
        run_process(test::octet_program(), train(name, {{"eval_tasks", tasks}}), folder.path());
    EXPECT_EQ(result.exit_code, 2) << result.out;
    EXPECT_FALSE(std::filesystem::exists(run_file(name, "")));
    return result.err;
  };
  EXPECT_THAT(error("bad.jsonl", "a"),
              HasSubstr("[bad.jsonl] line 1: 'label' is 5, expected a number from 0 to 1"));
  EXPECT_THAT(error("helaswag", "b"), HasSubstr("did you mean 'hellaswag'?"));
}

}  // namespace
}  // namespace octet::test
