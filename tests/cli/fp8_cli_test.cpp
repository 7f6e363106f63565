// FP8 as a user of the command line meets it: labels, statistics, fallback and refusals.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "ops/device.h"
#include "support/places.h"
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
        "train", "--dataset",        "text.txt",  "--run_name",
        "r",     "--progress",       "plain",     "--max_steps",
        steps,   "--sample_steps",   "0",         "--eval_batches",
        "1",     "--max_seq_length", "32",        "--per_device_train_batch_size",
        "2",     "--model_preset",   "llama-tiny"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return run_process(test::octet_program(), arguments, folder_.path());
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

TEST_F(Fp8Cli, TheCpuSaysThatItEmulates) {
  const ProcessResult result = train_on_cpu({});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(result.out,
              HasSubstr("precision  FP8 (emulated), recipe delayed, format hybrid; 90 % of all FLOPs"));
  EXPECT_THAT(result.out, MatchesRegex("(.|\n)*\nstep 2/2 [^\n]* \\| FP8 \\(emulated\\)(.|\n)*"));
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
            "warning: FP8 cannot run: no layer can run in FP8 (for example layers.0.attention.qkv: "
            "fp8_skip_layers: '*'); the run continues in BF16\n");
  EXPECT_THAT(result.out, HasSubstr("precision  BF16 (fallback)\n"));
  EXPECT_THAT(result.out, MatchesRegex("(.|\n)*\nstep 1/2 [^\n]* \\| BF16 \\(fallback\\)(.|\n)*"));
  EXPECT_THAT(result.out, Not(HasSubstr("emulated")));
  ASSERT_EQ(metrics().size(), 2u);
  for (const nlohmann::json& record : metrics()) {
    EXPECT_EQ(record.at("precision"), "BF16 (fallback)");
    EXPECT_FALSE(record.contains("fp8"));
  }
}

TEST_F(Fp8Cli, TheNameThatARunGetsSaysItsPrecision) {
  const ProcessResult result =
      run_process(test::octet_program(),
                  {"train", "--device", "cpu", "--max_steps", "1", "--sample_steps", "0", "--eval_strategy",
                   "no", "--save_strategy", "no", "--fp8_skip_layers", "*"},
                  folder_.path());
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path() + "/runs"))
    EXPECT_TRUE(entry.path().filename().string().ends_with("-llama-tiny-bf16")) << entry.path();
}

TEST_F(Fp8Cli, RequireFp8MakesTheFallbackAnError) {
  const ProcessResult result = train_on_cpu({"--fp8_skip_layers", "*", "--require_fp8", "--fp8_emulation"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err,
            "error: [fp8] require_fp8 is set, but no layer can run in FP8 (for example "
            "layers.0.attention.qkv: fp8_skip_layers: '*')\n");
  EXPECT_FALSE(anything_written());
  const ProcessResult emulated = train_on_cpu({"--require_fp8"});
  EXPECT_EQ(emulated.exit_code, 2);
  EXPECT_THAT(emulated.err, HasSubstr("set fp8_emulation to true"));
  EXPECT_FALSE(anything_written());
  EXPECT_EQ(train_on_cpu({"--require_fp8", "--fp8_emulation"}).exit_code, 0);
}

TEST_F(Fp8Cli, ASkippedPartIsNoFallback) {
  const ProcessResult result =
      train_on_cpu({"--fp8_skip_layers", "first:1,*.mlp.down", "--require_fp8", "--fp8_emulation"});
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
  EXPECT_THAT(result.err, MatchesRegex("error: device is cuda, but .+; use device cpu or auto\n"));
  EXPECT_FALSE(anything_written());
}

}  // namespace
}  // namespace octet::test
