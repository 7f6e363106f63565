// octet bench from the command line, on the CPU.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "support/process.h"

namespace octet::test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

struct BenchCli : testing::Test {
  // One step of the smallest model after one; `flags` come on top.
  ProcessResult bench(const std::vector<std::string>& flags) {
    std::vector<std::string> arguments = {
        "bench", "--device",      "cpu", "--num_threads",    "1",  "--per_device_train_batch_size",
        "1",     "--bench_steps", "1",   "--max_seq_length", "16", "--bench_warmup",
        "1"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return run_process(OCTET_PROGRAM, arguments, folder.path());
  }
  // "bf16", "delayed", ...: what a run with these flags measures.
  std::vector<std::string> measured(std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--json", "bench.json"});
    const ProcessResult result = bench(flags);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    std::vector<std::string> variants;
    for (const auto& run : nlohmann::json::parse(read_text(folder.path() + "/bench.json"))) {
      const std::string recipe = run["recipe"];
      variants.push_back(recipe.empty() ? run["precision"].get<std::string>() : recipe);
    }
    return variants;
  }
  // Refused as wrong usage, with nothing measured before.
  void expect_refused(const std::vector<std::string>& flags, const std::string& why) {
    const ProcessResult result = bench(flags);
    EXPECT_EQ(result.exit_code, 2) << result.out;
    EXPECT_THAT(result.err, AllOf(HasSubstr(why), Not(HasSubstr("first step"))));
  }
  TemporaryFolder folder;
};

TEST_F(BenchCli, MeasuresWhatTheConfigurationSays) {
  EXPECT_THAT(measured({}), ElementsAre("BF16", "delayed"));
  EXPECT_THAT(measured({"--fp8_recipe", "current"}), ElementsAre("BF16", "current"));
  EXPECT_THAT(measured({"--mixed_precision", "bf16"}), ElementsAre("BF16"));
  EXPECT_THAT(measured({"--mixed_precision", "fp32"}), ElementsAre("BF16", "FP32"));
  EXPECT_THAT(measured({"--fp8_recipe", "current", "--variants", "block"}), ElementsAre("block"));
}

TEST_F(BenchCli, SequencesOfRealModelsAreThoseOfADataset) {
  const auto first_line = [&](const char* preset) {
    return run_process(
               OCTET_PROGRAM,
               {"bench", "--device", "cpu", "--device_memory_limit_gb", "0.001", "--model_preset", preset},
               folder.path())
        .out;
  };
  EXPECT_THAT(first_line("gpt2"), HasSubstr("gpt2, 8 x 1024 tokens"));
  EXPECT_THAT(first_line("gpt2-tiny"), HasSubstr("gpt2-tiny, 8 x 128 tokens"));
}

TEST_F(BenchCli, RefusesBeforeItMeasures) {
  expect_refused({"--variants", ""}, "--variants is empty");
  expect_refused({"--variants", "bf16,fp4"}, "'fp4' is none of bf16");
  expect_refused({"--profile"}, "--profile needs a GPU");
  expect_refused({"--json", "nowhere/bench.json"}, "nowhere/bench.json cannot be written: No such file");
  expect_refused({"--json", "."}, ". cannot be written");
  // A refusal for another reason leaves no file.
  expect_refused({"--json", "bench.json", "--profile"}, "--profile needs a GPU");
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/bench.json"));
}

TEST_F(BenchCli, WritesEveryFigureAndWhatItWasMeasuredWith) {
  const ProcessResult result =
      bench({"--json", "bench.json", "--gradient_accumulation_steps", "2", "--optimizer_state", "bf16",
             "--master_weights", "stochastic", "--variants", "bf16,current"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, ContainsRegex("TFLOP/s +GEMM ceiling +memory"));
  // No GEMM ceiling of a CPU, nor are algorithms timed on it; its rate is not rounded to nothing.
  EXPECT_THAT(result.out, ContainsRegex("BF16 +[0-9.]+ +[0-9]+ +0\\.[0-9]*[1-9][0-9]* +- +"));
  EXPECT_THAT(result.err, AllOf(HasSubstr("first step"), Not(HasSubstr("algorithms"))));

  const auto runs = nlohmann::json::parse(read_text(folder.path() + "/bench.json"));
  ASSERT_EQ(runs.size(), 2u);
  for (const auto& run : runs) {
    EXPECT_EQ(run["model"], "llama-tiny");
    EXPECT_THAT(run["device"].get<std::string>(), HasSubstr("1 thread"));
    EXPECT_EQ(run["rows"], 1);
    EXPECT_EQ(run["length"], 16);
    EXPECT_EQ(run["gradient_accumulation_steps"], 2);
    EXPECT_EQ(run["steps"], 1);
    EXPECT_EQ(run["optimizer_state"], "bf16");
    EXPECT_EQ(run["master_weights"], "stochastic");
    EXPECT_TRUE(run.at("gemm_ceiling_share").is_null());
    const double rate = run["tokens_per_second"];
    EXPECT_NEAR(rate, 2 * 16 / run["step_ms"].get<double>() * 1e3, 1e-6 * rate);
    EXPECT_NEAR(run["ratio"], rate / runs[0]["tokens_per_second"].get<double>(), 1e-9);
  }
}

TEST_F(BenchCli, HelpSaysWhatDecides) {
  const ProcessResult result = run_process(OCTET_PROGRAM, {"bench", "--help"}, folder.path());
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, AllOf(HasSubstr("mixed_precision and fp8_recipe"), HasSubstr("GEMM ceiling")));
}

}  // namespace
}  // namespace octet::test
