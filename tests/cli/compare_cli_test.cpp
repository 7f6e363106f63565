// octet compare from the command line.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/places.h"
#include "support/process.h"

namespace octet::test {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::HasSubstr;
using testing::Not;
namespace fs = std::filesystem;

struct CompareCli : testing::Test {
  ProcessResult run(const std::vector<std::string>& arguments) {
    std::vector<std::string> words = {"compare"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    return run_process(test::octet_program(), words, folder.path());
  }
  // Arguments for training something small.
  std::vector<std::string> training(std::vector<std::string> more) {
    std::string text;
    for (int i = 0; i < 300; ++i) text += "line " + std::to_string(i * 7919 % 1000) + " of the text\n";
    folder.write("text.txt", text);
    more.insert(more.end(),
                {"--model_preset=llama-tiny", "--dataset=text.txt", "--device=cpu", "--max_seq_length=32",
                 "--per_device_train_batch_size=2", "--num_threads=1", "--eval_batches=1"});
    return more;
  }
  // A run that was trained elsewhere, with this loss at its last step.
  void write_run(const std::string& name, const std::string& precision, double speed, int steps = 40,
                 const std::string& settings = "seed: 42\n") {
    std::string metrics;
    for (int step = 1; step <= steps; ++step) {
      nlohmann::json record = {{"step", step},
                               {"loss", 2 + 1.0 / step + 0.01 * (step * 7 % 5)},
                               {"tokens", 100 * step},
                               {"tokens_per_second", speed},
                               {"step_ms", 1e5 / speed},
                               {"precision", precision},
                               {"lr", 1e-3},
                               {"grad_norm", 1}};
      if (step % 10 == 0) record["eval_loss"] = 2 + 1.0 / step;
      metrics += record.dump() + "\n";
    }
    fs::create_directories(folder.path() + "/" + name);
    folder.write(name + "/metrics.jsonl", metrics);
    folder.write(name + "/config.yaml", "mixed_precision: " + precision + "\n" + settings);
  }
  nlohmann::json json(const std::string& name) {
    return nlohmann::json::parse(read_text(folder.path() + "/" + name));
  }
  // What the page shows in a browser. Empty where there is none.
  nlohmann::json open_page(const std::string& name) {
    const ProcessResult result =
        run_process("python3", {test::source_path("/tests/support/open_page.py"), folder.path() + "/" + name});
    if (result.exit_code == 77) return {};
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    return nlohmann::json::parse(result.out, nullptr, false);
  }
  TemporaryFolder folder;
};

TEST_F(CompareCli, ComparesTwoRuns) {
  write_run("bf16", "BF16", 1000);
  write_run("fp8", "FP8", 1460);
  const ProcessResult result = run({"bf16", "fp8", "--json", "out.json", "--html", "out.html"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              HasSubstr("verdict: FP8 is 1.46x faster than BF16; evaluation loss is identical\n"));
  EXPECT_THAT(result.out, HasSubstr("mixed_precision  BF16  FP8"));
  EXPECT_THAT(result.out, HasSubstr("not recorded"));  // no plan.json
  const nlohmann::json comparison = json("out.json");
  EXPECT_EQ(comparison["reference"], "bf16");
  EXPECT_DOUBLE_EQ(comparison["comparisons"][0]["speed"], 1.46);
  EXPECT_EQ(comparison["variants"][1]["runs"][0]["steps"], 40);
  EXPECT_THAT(read_text(folder.path() + "/out.html"), HasSubstr("FP8 is 1.46x faster"));
}

TEST_F(CompareCli, RunsOfDifferentLengthsAndAHalfWrittenLine) {
  write_run("bf16", "BF16", 1000);
  write_run("fp8", "FP8", 1460, 25);
  std::ofstream(folder.path() + "/fp8/metrics.jsonl", std::ios::app) << "{\"step\": 26, \"lo";
  const ProcessResult result = run({"bf16", "fp8/metrics.jsonl"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("metrics.jsonl:26: the last line is incomplete"));
  EXPECT_THAT(
      result.out,
      HasSubstr("different lengths (25, 40 steps). They are compared over their common steps, 1 to 25"));
}

TEST_F(CompareCli, BadInputIsNamed) {
  write_run("bf16", "BF16", 1000);
  write_run("other", "FP8", 1000, 40, "model_preset: gpt2-tiny\nseed: 42\n");
  fs::create_directories(folder.path() + "/empty");
  const auto expect_error = [&](const std::vector<std::string>& words, const std::string& message) {
    const ProcessResult result = run(words);
    EXPECT_EQ(result.exit_code, 2) << message;
    EXPECT_THAT(result.err, HasSubstr(message));
    EXPECT_EQ(result.out, "");
  };
  expect_error({}, "octet compare needs runs, or --variants with a configuration");
  expect_error({"bf16"}, "a comparison needs two different runs with steps, got only bf16");
  expect_error({"bf16", "./bf16/metrics.jsonl"}, "is given twice");
  expect_error({"bf16", "nowhere"}, "[nowhere] is not there");
  expect_error({"bf16", "empty"}, "[empty] is skipped: it has no metrics.jsonl");
  expect_error({"bf16", "other", "--learning_rate", "1"}, "--learning_rate is a key of training");
  expect_error({"bf16", "other", "--steps", "5"}, "--steps has no effect without --variants");
  expect_error({"--variants", "bf16"}, "a comparison needs two or more");
  expect_error(training({"--variants", "bf16,fp9"}),
               "'fp9' is unknown, expected bf16, fp32, fp8, delayed, current, block, mxfp8, or key=value");
  expect_error(training({"--variants", "bf16,fp8", "--html", "no/such/x.html"}),
               "--html: no/such/x.html cannot be written");
  expect_error(training({"a.yaml", "b.yaml", "--variants", "bf16,fp8"}),
               "takes one configuration, got 2 words");
  expect_error(training({"empty", "--variants", "bf16,fp8"}), "is a folder without config.yaml");
  EXPECT_FALSE(fs::exists(folder.path() + "/runs"));
  const ProcessResult unfair = run({"bf16", "other"});
  EXPECT_EQ(unfair.exit_code, 0);
  EXPECT_THAT(unfair.out, HasSubstr("warning: The runs train different models (model_preset - / gpt2-tiny)"));
  folder.write("other/metrics.jsonl", "{\"step\": 1}\nnonsense\n{\"step\": 2}\n");
  const ProcessResult broken = run({"bf16", "other"});
  EXPECT_EQ(broken.exit_code, 1);
  EXPECT_THAT(broken.err, HasSubstr("other/metrics.jsonl:2: not JSON"));
}

TEST_F(CompareCli, TrainsVariantsAndReusesThem) {
  const std::vector<std::string> words = training({"--variants", "bf16,fp8,fp8:fp8_head=true", "--steps=8",
                                                   "--json=out.json", "--html=out.html", "--cuda_graphs=on"});
  const ProcessResult first = run(words);
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.err, HasSubstr("warning: cuda_graphs has no effect: the run is on the CPU\n"));
  EXPECT_THAT(first.err, AllOf(HasSubstr("compare-bf16: training 8 steps"),
                               HasSubstr("compare-fp8-fp8_head-true: training")));
  const nlohmann::json comparison = json("out.json");
  ASSERT_EQ(comparison["variants"].size(), 3U);
  EXPECT_EQ(comparison["variants"][2]["name"], "fp8:fp8_head=true");
  EXPECT_EQ(comparison["common_steps"], 8);
  EXPECT_EQ(comparison["variants"][0]["fp8_share"], 0.0);
  EXPECT_LT(comparison["variants"][1]["fp8_share"], comparison["variants"][2]["fp8_share"]);
  EXPECT_GT(comparison["variants"][1]["memory_bytes"], 1'000'000);
  EXPECT_THAT(first.out, HasSubstr("FP8 is emulated on this device"));

  const std::string before = read_text(folder.path() + "/runs/compare-fp8/metrics.jsonl");
  const ProcessResult second = run(words);
  EXPECT_EQ(second.exit_code, 0);
  EXPECT_THAT(second.err,
              HasSubstr("compare-fp8: already trained with these settings, reused from runs/compare-fp8"));
  EXPECT_EQ(second.out, first.out);

  std::vector<std::string> changed = words;
  changed.emplace_back("--learning_rate=0.5");
  const ProcessResult refused = run(changed);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("runs/compare-bf16 holds a run with other settings"),
                                 HasSubstr("learning_rate: 0.5, which it did not set")));
  EXPECT_EQ(read_text(folder.path() + "/runs/compare-fp8/metrics.jsonl"), before);

  const nlohmann::json page = open_page("out.html");
  if (page.is_null()) GTEST_SKIP() << "no chromium (package chromium)";
  EXPECT_EQ(page["charts"], 6);
  EXPECT_EQ(page["bars"], 6);
  EXPECT_GE(page["lines"], 15);
  EXPECT_THAT(page["names"].get<std::vector<std::string>>(), Contains("fp8:fp8_head=true"));
}

TEST_F(CompareCli, MaxStepsAsAFlagIsTheLength) {
  const ProcessResult result = run(training({"--variants", "bf16,fp8", "--max_steps=3"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("compare-fp8: training 3 steps"));
  EXPECT_THAT(run(training({"--variants", "bf16,fp8", "--max_steps=0"})).err,
              HasSubstr("expected at least 1"));
  EXPECT_THAT(run(training({"--variants", "bf16,fp8", "--max_steps=3", "--steps=4"})).err,
              HasSubstr("--steps and --max_steps are both given"));
}

TEST_F(CompareCli, AStoppedComparisonContinues) {
  std::vector<std::string> words =
      training({"compare", "--variants=bf16,fp8", "--steps=150", "--save_steps=5"});
  const pid_t child = start_process(test::octet_program(), words, folder.path());
  const std::string metrics = folder.path() + "/runs/compare-bf16/metrics.jsonl";
  for (int i = 0; i < 600 && !(fs::exists(metrics) && fs::file_size(metrics) > 3000); ++i) usleep(50'000);
  kill(child, SIGTERM);
  EXPECT_EQ(wait_for_process(child), 75);
  EXPECT_THAT(read_text(folder.path() + "/out.txt"), HasSubstr("stopped; the same command continues"));
  EXPECT_FALSE(fs::exists(folder.path() + "/runs/compare-fp8"));
  words.erase(words.begin());
  const ProcessResult again = run(words);
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.err, AllOf(HasSubstr("compare-bf16: training 150 steps, continued where it was stopped"),
                               HasSubstr("compare-fp8: training 150 steps\n")));
  EXPECT_THAT(again.out, HasSubstr("of 150 common logged steps"));
}

TEST_F(CompareCli, FailuresOfTrainingAreShown) {
  const ProcessResult result = run({"--variants=bf16,fp8", "--dataset=nowhere.txt", "--device=cpu"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr("[compare-bf16] cannot be trained:"), HasSubstr("nowhere.txt"),
                                Not(HasSubstr("error: error:"))));
}

// Really trains, samples and resumes. On a CPU FP8 is emulated, so that the machine itself is not ready.
TEST_F(CompareCli, TheChecklistGoesThroughEverything) {
  const ProcessResult result =
      run(training({"--checklist", "--steps=100", "--json=out.json", "--html=out.html"}));
  EXPECT_EQ(result.exit_code, 1);
  std::map<std::string, nlohmann::json> items;
  const nlohmann::json list = json("out.json")["checklist"];
  EXPECT_EQ(list["ready"], false);
  for (const nlohmann::json& item : list["items"]) items[item["name"]] = item;
  ASSERT_EQ(items.size(), 8U) << result.out << result.err;
  EXPECT_EQ(items["hardware"]["passed"], false);
  for (const char* name :
       {"100 steps in both precisions", "no NaN", "memory", "samples", "resume from a checkpoint"})
    EXPECT_EQ(items[name]["passed"], true) << items[name];
  EXPECT_THAT(
      items["resume from a checkpoint"]["text"].get<std::string>(),
      AllOf(HasSubstr("continued from step 50 for"), HasSubstr("are those of the run that was not stopped")));
  EXPECT_THAT(result.out, AllOf(HasSubstr("FAILED  hardware"), HasSubstr("\nnot ready: ")));
  EXPECT_TRUE(fs::exists(folder.path() + "/runs/checklist-fp8-resumed/metrics.jsonl"));
  EXPECT_THAT(read_text(folder.path() + "/out.html"), HasSubstr("Not ready for a long run"));

  // A checkpoint that is gone is found out.
  fs::remove_all(folder.path() + "/runs/checklist-fp8/checkpoints_fp8");
  const ProcessResult broken = run(training({"--checklist", "--steps=100"}));
  EXPECT_EQ(broken.exit_code, 1);
  EXPECT_THAT(broken.out, AllOf(HasSubstr("FAILED  samples"), HasSubstr("FAILED  resume from a checkpoint")));
}

TEST_F(CompareCli, ABrowserShowsWhatRunsAreCalledAndRunsNothing) {
  // Two runs of one name are called by their paths, so that a name can hold a slash.
  write_run("a/script>", "BF16", 1000);
  write_run(
      "<script>alert(1)<"
      "/script>",
      "FP8", 1460);
  std::ofstream(folder.path() +
                    "/<script>alert(1)<"
                    "/script>/metrics.jsonl",
                std::ios::app)
      << R"({"step": 41, "loss": 2, "precision": "FP8", "samples": ["</script><script>alert(2)</script>\u0000 \u001b[31m <!--"]})"
      << "\n";
  ASSERT_EQ(run({"a/script>", "<script>alert(1)</script>", "--html", "out.html"}).exit_code, 0);
  EXPECT_THAT(read_text(folder.path() + "/out.html"), Not(HasSubstr("<script>alert")));
  const nlohmann::json page = open_page("out.html");
  if (page.is_null()) GTEST_SKIP() << "no chromium (package chromium)";
  EXPECT_EQ(page["title"], "a/script> / <script>alert(1)</script>");
  EXPECT_THAT(page["samples"].dump(), HasSubstr("</script><script>alert(2)</script>"));
  EXPECT_EQ(page["charts"], 6);
}

}  // namespace
}  // namespace octet::test
