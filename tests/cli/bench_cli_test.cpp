// octet bench from the command line, on the CPU.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "support/model_fixture.h"
#include "support/places.h"
#include "support/process.h"

namespace octet::test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

struct BenchCli : testing::Test {
  // One step of the smallest model after one; `flags` come on top.
  ProcessResult bench(const std::vector<std::string>& flags) {
    std::vector<std::string> arguments = {
        "bench", "--device",      "cpu", "--num_threads",    "1",  "--per_device_train_batch_size",
        "1",     "--bench_steps", "1",   "--max_seq_length", "16", "--bench_warmup",
        "1"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return run_process(test::octet_program(), arguments, folder.path());
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

TEST_F(BenchCli, CommMeasuresCollectives) {
  const ProcessResult result = bench({"--comm", "--json", "comm.json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(
      result.out,
      AllOf(StartsWith("1 rank on 1 node, sharding_mode zero1"), HasSubstr("weights of a layer (gather)"),
            HasSubstr("gradients of a layer (exchange)"), HasSubstr("records of a step (gather)")));
  const auto report = nlohmann::json::parse(read_text(folder.path() + "/comm.json"));
  EXPECT_EQ(report["ranks"], 1);
  EXPECT_EQ(report["collectives"].size(), 3u);
  expect_refused({"--comm", "--variants", "bf16"}, "--variants has no effect with --comm");
}

TEST_F(BenchCli, MeasuresWhatTheConfigurationSays) {
  EXPECT_THAT(measured({}), ElementsAre("BF16", "delayed"));
  EXPECT_THAT(measured({"--fp8_recipe", "current"}), ElementsAre("BF16", "current"));
  EXPECT_THAT(measured({"--mixed_precision", "bf16"}), ElementsAre("BF16"));
  EXPECT_THAT(measured({"--mixed_precision", "fp32"}), ElementsAre("BF16", "FP32"));
  EXPECT_THAT(measured({"--fp8_recipe", "current", "--variants", "block"}), ElementsAre("block"));
  EXPECT_THAT(measured({"--fp8_recipe", "current", "--variants", "fp8"}), ElementsAre("delayed"));
}

TEST_F(BenchCli, SequencesOfRealModelsAreThoseOfADataset) {
  // What is missing in a memory that holds nothing says how long the sequences are.
  const auto shortage = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"bench", "--device", "cpu", "--device_memory_limit_gb", "0.001"});
    return run_process(test::octet_program(), flags, folder.path()).err;
  };
  const auto with_length = [&](const char* preset, const char* length) {
    return shortage({"--model_preset", preset, "--max_seq_length", length});
  };
  EXPECT_EQ(shortage({"--model_preset", "gpt2"}), with_length("gpt2", "1024"));
  EXPECT_EQ(shortage({"--model_preset", "gpt2-tiny"}), with_length("gpt2-tiny", "128"));
  EXPECT_NE(with_length("gpt2", "1024"), with_length("gpt2", "128"));
}

TEST_F(BenchCli, RefusesBeforeItMeasures) {
  expect_refused({"--variants", ""}, "--variants is empty");
  expect_refused({"--variants", "bf16,fp4"}, "'fp4' is unknown, expected bf16");
  expect_refused({"--device_memory_limit_gb", "0.001"}, "the run needs");
  expect_refused({"--model_name_or_path", "/nonexistent"}, "error: [/nonexistent] is not a folder");
  expect_refused({"--json", "nowhere/bench.json"}, "nowhere/bench.json cannot be written: No such file");
  expect_refused({"--json", "."}, ". cannot be written");
  // A refusal for another reason leaves no file.
  expect_refused({"--json", "bench.json", "--profile_steps", "90:99"},
                 "profile_steps is 90:99, but bench runs");
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/bench.json"));
}

// The first variant is not measured for nothing.
TEST_F(BenchCli, RefusesALaterVariantBeforeItMeasuresTheFirst) {
  const ProcessResult result = bench({"--fp8_skip_layers", "*", "--require_fp8", "--fp8_emulation"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, StartsWith("error: variant delayed: [fp8] require_fp8 is set"));
}

// require_fp8 holds on the CPU with fp8_emulation alone.
TEST_F(BenchCli, OnlyANamedMxfp8IsEmulated) {
  expect_refused({"--fp8_recipe", "mxfp8", "--require_fp8"}, "variant mxfp8: [fp8] require_fp8 is set");
  EXPECT_EQ(bench({"--variants", "mxfp8", "--require_fp8"}).exit_code, 0);
}

// The rules of the keys.
TEST_F(BenchCli, ReadsItsOwnFlagsAsKeys) {
  const auto run = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"bench", "--device", "cpu"});
    const ProcessResult result = run_process(test::octet_program(), flags, folder.path());
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(result.out, "");
    return result.err;
  };
  EXPECT_EQ(run({"--bench_step", "3"}),
            "error: unknown flag '--bench_step'; did you mean '--bench_steps'?\n");
  EXPECT_EQ(run({"--bench_steps", "0"}), "error: --bench_steps is '0'; expected an integer of at least 1\n");
  EXPECT_EQ(run({"--bench-warmup=0"}), "error: --bench_warmup is '0'; expected an integer of at least 1\n");
  EXPECT_EQ(run({"--bench_steps", "3", "--bench-steps", "4"}), "error: --bench_steps is given twice\n");
  EXPECT_EQ(run({"--variants", "bf16", "--variants", "fp32"}), "error: --variants is given twice\n");
  EXPECT_EQ(run({"--json="}), "error: --json is empty; expected a value\n");
  EXPECT_EQ(run({"--json"}), "error: --json needs a value. Also write the results to this file.\n");
  EXPECT_EQ(run({"--profile=maybe"}), "error: --profile is 'maybe'; expected true or false\n");
  EXPECT_EQ(run({"a.yaml", "b.yaml"}),
            "error: octet bench takes one configuration file, got 'a.yaml' and 'b.yaml'\n");
  // No result where nothing was measured.
  EXPECT_THAT(run({"--model_preset", "foo"}), StartsWith("error: [model] no preset is called 'foo'"));
}

TEST_F(BenchCli, ComparesLikeWithLikeAndSaysWhatThatIs) {
  // Every thread needs memory of its own, so their number is fixed.
  const std::vector<std::string> common = {
      "bench",           "--device",         "cpu",    "--bench-steps", "1",
      "--num_threads=2", "--bench-warmup=1", "--json", "bench.json"};
  const auto compare = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), common.begin(), common.end());
    const ProcessResult result = run_process(test::octet_program(), flags, folder.path());
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result;
  };
  const auto both = [&](const char* field) {
    const auto runs = nlohmann::json::parse(read_text(folder.path() + "/bench.json"));
    EXPECT_EQ(runs.size(), 2u);
    EXPECT_EQ(runs[0].at(field), runs[1].at(field)) << field;
    return runs[0].at(field);
  };
  // Both variants have the setting, which is said once.
  const std::string warned = compare({"--master_weights", "stochastic", "--model_preset", "gpt2-tiny"}).err;
  const std::string text = "master_weights stochastic may cost accuracy";
  EXPECT_THAT(warned, HasSubstr(text));
  EXPECT_EQ(warned.find(text), warned.rfind(text)) << warned;
  // In this memory BF16 alone would run without recomputation, or with more rows.
  const ProcessResult levels = compare({"--device_memory_limit_gb", "0.039"});
  EXPECT_EQ(both("gradient_checkpointing"), "act");
  EXPECT_THAT(levels.out, AllOf(ContainsRegex("precision +recompute +graph replays +ms/step"),
                                ContainsRegex("BF16 +act "), ContainsRegex("delayed +act ")));
  EXPECT_THAT(
      levels.err,
      HasSubstr(
          "bf16 uses the same settings as the other variants: batch size 8, gradient_checkpointing act"));
  const ProcessResult rows = compare({"--device_memory_limit_gb", "0.05", "--auto_batch_size"});
  const std::string count = both("rows").dump();
  EXPECT_EQ(both("gradient_checkpointing"), "none");
  EXPECT_THAT(rows.out, StartsWith("llama-tiny, " + count +
                                   " x 128 tokens x 1 micro-batch, 1 step after 1 warm-up step\n"));
  EXPECT_THAT(rows.err, HasSubstr("bf16 uses the same settings as the other variants: batch size " + count));
}

TEST_F(BenchCli, NamesTheModelByItsFolder) {
  write_golden_folder("gpt2", folder.path() + "/model");
  const ProcessResult result =
      bench({"--model_name_or_path", "model", "--json", "bench.json", "--variants", "bf16"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, StartsWith("model, 1 x 16 tokens"));
  EXPECT_EQ(nlohmann::json::parse(read_text(folder.path() + "/bench.json"))[0]["model"], "model");
}

TEST_F(BenchCli, SettingsWithoutEffectInAnyVariantAreNamed) {
  EXPECT_THAT(bench({"--mixed_precision", "bf16", "--fp8_recipe", "block", "--cuda_graphs", "on"}).err,
              AllOf(HasSubstr("warning: fp8_recipe has no effect: mixed_precision is bf16\n"),
                    HasSubstr("warning: cuda_graphs has no effect: the run is on the CPU\n")));
  EXPECT_THAT(bench({"--fp8_head"}).err, Not(HasSubstr("no effect")));
}

TEST_F(BenchCli, WritesEveryFigureAndWhatItWasMeasuredWith) {
  const ProcessResult result =
      bench({"--json", "bench.json", "--gradient_accumulation_steps", "2", "--optimizer_state", "bf16",
             "--master_weights", "stochastic", "--variants", "bf16,current", "--fp8_head",
             "--gradient_checkpointing", "mlp", "--deterministic", "--cuda_graphs", "on"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, ContainsRegex("TFLOP/s +GEMM ceiling +memory"));
  // No GEMM ceiling of a CPU, nor are algorithms timed on it; its rate is not rounded to nothing.
  EXPECT_THAT(result.out, ContainsRegex("BF16 +mlp +off +[0-9.]+ +[0-9]+ +0\\.[0-9]*[1-9][0-9]* +- +"));
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
    EXPECT_EQ(run["warmup_steps"], 1);
    EXPECT_EQ(run["gradient_checkpointing"], "mlp");
    EXPECT_EQ(run["deterministic"], true);
    EXPECT_EQ(run["cuda_graphs"], false);  // whatever was asked for: there are none on a CPU
    EXPECT_EQ(run["optimizer_state"], "bf16");
    EXPECT_EQ(run["master_weights"], "stochastic");
    EXPECT_TRUE(run.at("gemm_ceiling_share").is_null());
    const double rate = run["tokens_per_second"];
    EXPECT_NEAR(rate, 2 * 16 / run["step_ms"].get<double>() * 1e3, 1e-6 * rate);
    EXPECT_NEAR(run["ratio"], rate / runs[0]["tokens_per_second"].get<double>(), 1e-9);
  }
  EXPECT_EQ(runs[0]["fp8_head"], false);
  EXPECT_EQ(runs[0]["fp8_format"], "");
  EXPECT_EQ(runs[1]["fp8_head"], true);
  EXPECT_EQ(runs[1]["fp8_format"], "hybrid");
}

TEST_F(BenchCli, HelpSaysWhatDecides) {
  const ProcessResult result = run_process(test::octet_program(), {"bench", "--help"}, folder.path());
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, AllOf(HasSubstr("mixed_precision and fp8_recipe"), HasSubstr("GEMM ceiling")));
}

}  // namespace
}  // namespace octet::test
