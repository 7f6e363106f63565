// FP8 as a user of the command line meets it: labels, statistics, fallback, refusals and the plan.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "ops/backend.h"
#include "support/process.h"

namespace octet::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

// A folder with a small text, in which short runs are started.
class Fp8Cli : public testing::Test {
 protected:
  Fp8Cli() {
    std::string text;
    for (int i = 0; i < 400; ++i) text += "line " + std::to_string(i * 7919 % 1000) + " of a text\n";
    folder_.write("text.txt", text);
  }

  // octet train for two steps; `flags` come on top.
  ProcessResult train(const std::vector<std::string>& flags, const char* steps = "2") {
    std::vector<std::string> arguments = {
        "train", "--dataset",        "text.txt", "--run_name",
        "r",     "--progress",       "plain",    "--max_steps",
        steps,   "--sample_steps",   "0",        "--eval_batches",
        "1",     "--max_seq_length", "32",       "--per_device_train_batch_size",
        "2"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return run_process(OCTET_PROGRAM, arguments, folder_.path());
  }

  ProcessResult train_on_cpu(std::vector<std::string> flags, const char* steps = "2") {
    flags.insert(flags.end(), {"--device", "cpu"});
    return train(flags, steps);
  }

  std::vector<nlohmann::json> metrics() {
    std::vector<nlohmann::json> records;
    std::istringstream lines(read_text(folder_.path() + "/runs/r/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) records.push_back(nlohmann::json::parse(line));
    return records;
  }

  bool anything_written() const { return std::filesystem::exists(folder_.path() + "/runs"); }

  TemporaryFolder folder_;
};

ProcessResult plan(std::vector<std::string> flags) {
  flags.insert(flags.begin(), {"plan", "--device", "cpu"});
  return run_process(OCTET_PROGRAM, flags);
}

TEST_F(Fp8Cli, TheCpuSaysThatItEmulates) {
  const ProcessResult result = train_on_cpu({});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(result.out,
              HasSubstr("precision  FP8 (emulated), recipe delayed, format hybrid; 90 % of all FLOPs"));
  EXPECT_THAT(result.out, MatchesRegex("(.|\n)*\nstep 2 [^\n]* \\| FP8 \\(emulated\\)(.|\n)*"));
  ASSERT_EQ(metrics().size(), 2u);
  for (const nlohmann::json& record : metrics()) EXPECT_EQ(record.at("precision"), "FP8 (emulated)");
}

TEST_F(Fp8Cli, StatisticsOfEveryQuantisedTensorWhenDue) {
  for (const char* head : {"no", "yes"}) {
    std::filesystem::remove_all(folder_.path() + "/runs");
    // Nothing is due on the console in step 2, the statistics are all the same.
    const ProcessResult result =
        train_on_cpu({"--fp8_stats_steps", "2", "--fp8_head", head, "--logging_steps", "3"}, "4");
    ASSERT_EQ(result.exit_code, 0) << result.err;
    int records = 0;
    for (const nlohmann::json& record : metrics()) {
      const bool due = record.at("step").get<int>() % 2 == 0;
      ASSERT_EQ(record.contains("fp8"), due) << record;
      if (!due) continue;
      ++records;
      const nlohmann::json& fp8 = record.at("fp8");
      EXPECT_EQ(fp8.size(), head == std::string("yes") ? 51u : 48u);  // 3 for each Linear
      for (const auto& [name, entry] : fp8.items()) {
        for (const char* field : {"amax", "scale", "saturated", "flushed", "sqnr_db"}) {
          EXPECT_TRUE(entry.at(field).is_number()) << name << " " << field;
        }
      }
      for (const char* role : {"input", "weight", "gradient"}) {
        EXPECT_TRUE(fp8.contains(std::string("layers.3.mlp.down.") + role));
      }
    }
    EXPECT_EQ(records, 2);
  }
}

TEST_F(Fp8Cli, ARunThatCannotUseFp8GoesOnInBf16AndSaysSo) {
  const ProcessResult result = train_on_cpu({"--fp8_skip_layers", "*", "--fp8_stats_steps", "1"});
  ASSERT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err,
            "warning: FP8 cannot run: no layer can run in FP8 (for layers.0.attention.qkv: fp8_skip_layers: "
            "'*'); the "
            "run goes on in BF16\n");
  EXPECT_THAT(result.out, HasSubstr("precision  BF16 (fallback)\n"));
  EXPECT_THAT(result.out, MatchesRegex("(.|\n)*\nstep 1 [^\n]* \\| BF16 \\(fallback\\)(.|\n)*"));
  EXPECT_THAT(result.out, Not(HasSubstr("emulated")));
  ASSERT_EQ(metrics().size(), 2u);
  for (const nlohmann::json& record : metrics()) {
    EXPECT_EQ(record.at("precision"), "BF16 (fallback)");
    EXPECT_FALSE(record.contains("fp8"));
  }
}

TEST_F(Fp8Cli, RequireFp8MakesTheFallbackAnError) {
  const ProcessResult result = train_on_cpu({"--fp8_skip_layers", "*", "--require_fp8"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err,
            "error: [fp8] require_fp8 is set, but no layer can run in FP8 (for layers.0.attention.qkv: "
            "fp8_skip_layers: '*')\n");
  EXPECT_FALSE(anything_written());
  EXPECT_EQ(train_on_cpu({"--require_fp8"}).exit_code, 0);
}

TEST_F(Fp8Cli, ASkippedPartIsNoFallback) {
  const ProcessResult result = train_on_cpu({"--fp8_skip_layers", "first:1,*.mlp.down", "--require_fp8"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("FP8 (emulated)"));
}

TEST_F(Fp8Cli, BadValuesAreRefusedBeforeAnythingIsWritten) {
  const struct {
    const char *key, *value, *error;
  } cases[] = {
      {"--fp8_recipe", "tensor",
       "error: --fp8_recipe is 'tensor'; expected one of delayed, current, block, mxfp8\n"},
      {"--fp8_format", "e3m4", "error: --fp8_format is 'e3m4'; expected one of hybrid, e4m3, e5m2\n"},
      {"--fp8_margin", "17", "error: --fp8_margin is '17'; expected an integer from 0 to 16\n"},
      {"--fp8_margin", "-1", "error: --fp8_margin is '-1'; expected an integer from 0 to 16\n"},
      {"--fp8_amax_history_len", "0",
       "error: --fp8_amax_history_len is '0'; expected an integer from 1 to 65536\n"},
      {"--fp8_interval", "0", "error: --fp8_interval is '0'; expected an integer from 1 to 1000000000000\n"},
      {"--fp8_amax_compute", "mean",
       "error: --fp8_amax_compute is 'mean'; expected one of max, most_recent\n"},
      {"--fp8_block_scales", "e8m0", "error: --fp8_block_scales is 'e8m0'; expected one of pow2, exact\n"},
      {"--fp8_stats_steps", "-1",
       "error: --fp8_stats_steps is '-1'; expected an integer from 0 to 1000000000000\n"},
      {"--fp8_skip_layers", "*.mlp.dwon",
       "error: [fp8] fp8_skip_layers: '*.mlp.dwon' matches no layer; names look like "
       "'layers.0.attention.qkv' or "
       "'head'\n"},
      {"--fp8_skip_layers", "head,layers.4.*",
       "error: [fp8] fp8_skip_layers: 'layers.4.*' matches no layer; names look like "
       "'layers.0.attention.qkv' or "
       "'head'\n"},
      {"--fp8_skip_layers", "first:two",
       "error: [fp8] fp8_skip_layers: 'first:two' is not of the form first:N with N a whole number\n"},
  };
  for (const auto& c : cases) {
    const ProcessResult result = train_on_cpu({c.key, c.value});
    EXPECT_EQ(result.exit_code, 2) << c.key;
    EXPECT_EQ(result.out, "") << c.key;
    EXPECT_EQ(result.err, c.error);
    EXPECT_FALSE(anything_written()) << c.key;
  }
}

TEST_F(Fp8Cli, E5M2SaysWhatRunsInstead) {
  const ProcessResult run = train_on_cpu({"--fp8_format", "e5m2"});
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_THAT(run.err, HasSubstr("no GPU multiplies e5m2 by e5m2"));
}

TEST_F(Fp8Cli, CudaWhereThereIsNoneIsRefused) {
  if (probe_cuda().usable) GTEST_SKIP() << "this machine has a GPU";
  const ProcessResult result = train({"--device", "cuda"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err,
              MatchesRegex("error: device: cuda was asked for, but .+; use device: cpu or auto\n"));
  EXPECT_FALSE(anything_written());
}

TEST(PlanCli, ShowsLayersReasonsSharesMemoryAndRatio) {
  const ProcessResult result = plan({"--gpu", "h200", "--fp8_skip_layers", "first:1,*.mlp.down"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(
      result.out,
      HasSubstr(
          "llama-tiny: 820K parameters, 4 layers, width 128; 8 x 128 tokens; FP8 on NVIDIA H200 (planned)"));
  const auto row = [&](const std::string& pattern) {
    EXPECT_THAT(result.out, MatchesRegex("(.|\n)*\n" + pattern + " *\n(.|\n)*"));
  };
  row("layers\\.0\\.attention\\.qkv +256 x 128 +3\\.5 % +BF16 +fp8_skip_layers: 'first:1'");
  row("layers\\.1-3\\.attention\\.qkv +256 x 128 +10\\.6 % +FP8");
  row("layers\\.1-3\\.mlp\\.down +128 x 384 +15\\.9 % +BF16 +fp8_skip_layers: '\\*\\.mlp\\.down'");
  row("head +272 x 128 +3\\.7 % +BF16 +the head stays in BF16 unless fp8_head is set");
  row("base matrices +84\\.6 % +56 %");
  row("head +3\\.7 % +0 %");
  row("attention +8\\.2 % +0 %");
  row("other +3\\.4 % +0 %");
  row("all +100\\.0 % +47\\.6 %");
  for (const char* category : {"weights", "gradients", "optimizer", "activations", "workspace", "peak"}) {
    row(std::string(category) + " +[0-9.]+ [KM]iB");
  }
  row("expected FP8/BF16 ratio of the matrix work on NVIDIA H200: 1\\.31x");
}

TEST(PlanCli, TheRatioFollowsTheCoverage) {
  const auto last_line = [](const std::string& text) {
    return text.substr(text.rfind('\n', text.size() - 2) + 1);
  };
  const std::string text = "expected FP8/BF16 ratio of the matrix work on NVIDIA H200: ";
  EXPECT_EQ(last_line(plan({"--gpu", "h200", "--mixed_precision", "bf16"}).out), text + "1.00x\n");
  // All products in FP8: (1/774 + 1/720 + 1/707) / (1/1396 + 1/1324 + 1/1220) = 1.79.
  EXPECT_EQ(last_line(plan({"--gpu=NVIDIA H200", "--fp8_head"}).out), text + "1.79x\n");
  EXPECT_THAT(plan({}).out, Not(HasSubstr("ratio")));  // nothing was measured on a CPU
}

TEST(PlanCli, ASingleProductThatCannotHasItsReason) {
  // 3 x 8 tokens: wgrad reduces over 24, which is no multiple of 16.
  const ProcessResult result = plan({"--batch_size", "3", "--max_seq_length", "8"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("FP8/FP8/BF16"), HasSubstr("wgrad: 24 tokens in a micro-batch")));
}

TEST(PlanCli, Refusals) {
  const ProcessResult unknown = plan({"--gpu", "x"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_EQ(unknown.out, "");
  EXPECT_EQ(unknown.err, "error: no rates were measured on a GPU called 'x'; known: h200\n");
  const ProcessResult none = plan({"--gpu"});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_EQ(none.err, "error: --gpu needs the name of a GPU\n");
  const ProcessResult glob = plan({"--fp8_skip_layers", "nowhere"});
  EXPECT_EQ(glob.exit_code, 2);
  EXPECT_THAT(glob.err, HasSubstr("'nowhere' matches no layer"));
}

}  // namespace
}  // namespace octet::test
