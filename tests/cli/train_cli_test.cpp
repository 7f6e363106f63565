// octet train from the command line: what a run prints, writes and leaves behind.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>

#include "support/places.h"
#include "support/process.h"

namespace octet::test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
namespace fs = std::filesystem;

using Flags = std::map<std::string, std::string>;

// A run of a few steps on text.txt; `changes` replace or add flags, an empty value takes one away.
std::vector<std::string> small_run(const std::string& name, const Flags& changes = {}) {
  Flags flags = {{"--dataset", "text.txt"}, {"--device", "cpu"},     {"--max_seq_length", "32"},
                 {"--max_steps", "4"},      {"--eval_batches", "1"}, {"--eval_split", "0.2"},
                 {"--progress", "plain"},   {"--run_name", name},    {"--per_device_train_batch_size", "2"}};
  if (!changes.contains("--model_name_or_path")) flags["--model_preset"] = "llama-tiny";
  for (const auto& [flag, value] : changes) flags[flag] = value;
  std::vector<std::string> arguments = {"train"};
  for (const auto& [flag, value] : flags) {
    if (!value.empty()) arguments.push_back(flag + "=" + value);
  }
  return arguments;
}

struct TrainCli : testing::Test {
  TrainCli() {
    std::string text;
    for (int i = 0; i < 300; ++i)
      text += "the quick brown fox number " + std::to_string(i * 7919 % 1000) + " jumps\n";
    folder.write("text.txt", text);
  }
  ProcessResult run(const std::vector<std::string>& arguments) {
    return run_process(test::octet_program(), arguments, folder.path());
  }
  std::vector<nlohmann::json> metrics(const std::string& name) {
    std::vector<nlohmann::json> lines;
    std::ifstream file(folder.path() + "/runs/" + name + "/metrics.jsonl");
    for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }
  TemporaryFolder folder;
};

TEST_F(TrainCli, WritesItsFilesAndTheDocumentedLine) {
  const ProcessResult result = run(small_run("first", {{"--mixed_precision", "bf16"}}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(
      result.out,
      ContainsRegex("step 4/4 \\| epoch 0\\.[0-9]+ \\| loss: [0-9]+\\.[0-9]{6} \\| lr: [0-9.]+e-0[0-9] \\| "
                    "norm: [0-9]+\\.[0-9]{4} \\| dt: [0-9]+\\.[0-9]{2}ms \\| "
                    "tok/sec: [0-9]+\\.[0-9]{2} \\| BF16"));
  const auto lines = metrics("first");
  ASSERT_EQ(lines.size(), 4u);
  for (const char* key :
       {"step", "epoch", "loss", "lr", "grad_norm", "step_ms", "tokens_per_second", "tokens", "precision"}) {
    EXPECT_TRUE(lines[3].contains(key)) << key;
  }
  EXPECT_EQ(lines[3]["tokens"], 4 * 64);
  EXPECT_TRUE(lines[3].contains("eval_loss"));
  // The resolved configuration runs the same run again, to the bit.
  const std::string config = folder.path() + "/runs/first/config.yaml";
  ASSERT_TRUE(fs::exists(config));
  ASSERT_EQ(run({"train", config, "--run_name", "again", "--num_threads", "1"}).exit_code, 0);
  EXPECT_EQ(metrics("again")[3]["loss"], lines[3]["loss"]);
  EXPECT_EQ(metrics("again")[3]["grad_norm"], lines[3]["grad_norm"]);
}

TEST_F(TrainCli, EvaluationsOfPretrainingComeWithASampleThatChangesNothing) {
  const Flags flags = {{"--eval_steps", "2"}, {"--num_threads", "1"}};
  Flags without = flags;
  without["--sample_steps"] = "0";
  ASSERT_EQ(run(small_run("samples", flags)).exit_code, 0);
  ASSERT_EQ(run(small_run("none", without)).exit_code, 0);
  const auto lines = metrics("samples"), other = metrics("none");
  ASSERT_EQ(lines.size(), 4u);
  ASSERT_EQ(other.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(lines[i].contains("samples"), i % 2 == 1) << lines[i];
    EXPECT_FALSE(other[i].contains("samples"));
    EXPECT_EQ(lines[i]["loss"], other[i]["loss"]);
    EXPECT_EQ(lines[i]["grad_norm"], other[i]["grad_norm"]);
  }
  folder.write("chats.jsonl", [] {
    std::string text;
    for (int i = 0; i < 200; ++i)
      text += R"({"prompt": "one", "completion": " two"})"
              "\n";
    return text;
  }());
  ASSERT_EQ(run(small_run("chats", {{"--dataset", "chats.jsonl"}, {"--eval_steps", "2"}})).exit_code, 0);
  for (const nlohmann::json& line : metrics("chats")) EXPECT_FALSE(line.contains("samples")) << line;
}

TEST_F(TrainCli, ANameThatOctetMakesHasThePrecision) {
  ASSERT_EQ(run(small_run("", {{"--mixed_precision", "bf16"}, {"--max_steps", "1"}})).exit_code, 0);
  const fs::path made = fs::directory_iterator(folder.path() + "/runs")->path();
  EXPECT_THAT(made.filename().string(), testing::EndsWith("-llama-tiny-bf16"));
}

TEST_F(TrainCli, AFolderWithARunIsRefused) {
  ASSERT_EQ(run(small_run("twice")).exit_code, 0);
  const ProcessResult again = run(small_run("twice"));
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_THAT(again.err, HasSubstr("runs/twice already holds a run"));
  EXPECT_EQ(metrics("twice").size(), 4u);
}

TEST_F(TrainCli, DryRunPrintsConfigurationPlanAndScheduleAndWritesNothing) {
  const ProcessResult result = run(small_run("dry", {{"--dry_run", "true"}, {"--warmup_steps", "2"}}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* part : {"learning_rate: 0.0006", "# weights", "# optimizer", "# peak", "learning rate",
                           "# layers.0-3.mlp.down"}) {
    EXPECT_THAT(result.out, HasSubstr(part));
  }
  EXPECT_FALSE(fs::exists(folder.path() + "/runs"));
}

TEST_F(TrainCli, BadInputIsNamed) {
  const auto error = [&](const Flags& changes) {
    const ProcessResult result = run(small_run("bad", changes));
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_FALSE(fs::exists(folder.path() + "/runs/bad")) << "a run that did not start leaves nothing";
    return result.err;
  };
  EXPECT_THAT(error({{"--dataset", "missing.txt"}}), HasSubstr("missing.txt"));
  EXPECT_THAT(error({{"--model_preset", "lama-tiny"}}), HasSubstr("did you mean 'llama-tiny'"));
  EXPECT_THAT(error({{"--model_preset", "gpt2-tiny"}, {"--max_seq_length", "2048"}}),
              HasSubstr("1024 positions"));
  EXPECT_THAT(error({{"--max_seq_length", "100000"}}),
              HasSubstr("max_seq_length 100000 is more than the 1024 positions"));
  EXPECT_EQ(run(small_run("bad", {{"--max_seq_length", "100000"}})).exit_code, 2);
  EXPECT_THAT(error({{"--max_seq_length", "100000"}, {"--max_position_embeddings", "100000"}}),
              HasSubstr("fewer than max_seq_length 100000"));
  EXPECT_THAT(error({{"--model_preset", "llama"}, {"--hidden_size", "64"}}),
              HasSubstr("give num_hidden_layers, num_attention_heads, vocab_size"));
  EXPECT_THAT(error({{"--vocab_size", "200"}}),
              HasSubstr("has 257 ids, but model llama-tiny has a vocabulary of 200; set --vocab_size 257"));
  EXPECT_THAT(error({{"--device_memory_limit_gb", "0.001"}}),
              AllOf(HasSubstr("the limit is 1.02 MiB"), HasSubstr("no setting makes it fit")));
  EXPECT_THAT(error({{"--target_effective_batch_size", "5"}}), HasSubstr("target_effective_batch_size 5"));
  EXPECT_THAT(error({{"--model_name_or_path", "no_such_model"}}),
              HasSubstr("[no_such_model] is not a folder"));
  EXPECT_EQ(run(small_run("bad", {{"--model_name_or_path", "no_such_model"}})).exit_code, 2);
  EXPECT_THAT(error({{"--tokenizer", "nowhere.json"}}), HasSubstr("nowhere.json"));
}

// Sizes over a family, from the first step to a resumed one.
TEST_F(TrainCli, AModelOfAnySizeIsTrainedAndResumed) {
  const Flags sizes = {{"--model_preset", "qwen3"},    {"--hidden_size", "32"}, {"--num_hidden_layers", "2"},
                       {"--num_attention_heads", "4"}, {"--vocab_size", "257"}, {"--head_dim", "16"},
                       {"--num_key_value_heads", "2"}};
  ASSERT_EQ(run(small_run("sized", sizes)).exit_code, 0);
  const std::string yaml = read_text(folder.path() + "/runs/sized/config.yaml");
  for (const char* line :
       {"hidden_size: 32", "head_dim: 16", "intermediate_size: 128", "max_position_embeddings: 40960"})
    EXPECT_THAT(yaml, HasSubstr(line));
  const ProcessResult more = run({"train", "--resume", folder.path() + "/runs/sized", "--max_steps", "6"});
  ASSERT_EQ(more.exit_code, 0) << more.err;
  EXPECT_EQ(metrics("sized").size(), 6u);
  EXPECT_THAT(more.out, testing::Not(HasSubstr("changed setting: hidden_size")));
  const ProcessResult other =
      run({"train", "--resume", folder.path() + "/runs/sized", "--hidden_size", "64"});
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.err, AllOf(HasSubstr("hidden_size is 64, but the model of"), HasSubstr("has 32")));
}

TEST_F(TrainCli, AutomaticBatchSizeFollowsTheMemoryLimit) {
  const ProcessResult result = run(small_run("auto", {{"--per_device_train_batch_size", ""},
                                                      {"--auto_batch_size", "true"},
                                                      {"--device_memory_limit_gb", "0.05"},
                                                      {"--dry_run", "true"}}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  // The text has 300 lines of 35 to 38 bytes, a fifth held out: some 270 sequences of 32, fewer than fit the memory.
  std::smatch rows;
  ASSERT_TRUE(std::regex_search(result.out, rows, std::regex("# batch +([0-9]+) x 32 tokens")));
  EXPECT_GT(std::stoi(rows[1]), 2);
  EXPECT_LE(std::stoi(rows[1]), 290);
}

TEST_F(TrainCli, ARunByEpochsReadsBackFromItsConfiguration) {
  ASSERT_EQ(run(small_run("epochs", {{"--max_steps", ""}, {"--max_seq_length", "128"}})).exit_code, 0);
  const ProcessResult again =
      run({"train", folder.path() + "/runs/epochs/config.yaml", "--run_name", "epochs2"});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(metrics("epochs2").size(), metrics("epochs").size());
}

TEST_F(TrainCli, CtrlCEndsTheRunWithItsFilesWhole) {
  const pid_t child =
      start_process(test::octet_program(), small_run("stopped", {{"--max_steps", "1000000"}, {"--eval_steps", "0"}}),
                    folder.path());
  for (int i = 0; i < 600 && metrics("stopped").size() < 3; ++i) usleep(50'000);
  kill(child, SIGINT);
  EXPECT_EQ(wait_for_process(child), 75);
  EXPECT_GE(metrics("stopped").size(), 3u);  // each line parsed
  EXPECT_THAT(read_text(folder.path() + "/out.txt"), HasSubstr("stopped on request"));
}

}  // namespace
}  // namespace octet::test
