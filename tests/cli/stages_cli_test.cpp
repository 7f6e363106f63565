// One configuration, four commands: plan, train --dry_run, bench and train stop at different stages of the same way.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>

#include "report/text.h"
#include "support/model_fixture.h"
#include "support/places.h"
#include "support/process.h"

namespace octet::test {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

struct StagesCli : testing::Test {
  StagesCli() {
    std::string text;
    for (int i = 0; i < 4000; ++i) text += "the quick brown fox number " + std::to_string(i) + " jumps\n";
    folder.write("text.txt", text);
  }
  ProcessResult run(const char* command, const std::vector<std::string>& flags) {
    std::vector<std::string> arguments = {command, "--dataset",     "text.txt", "--device",
                                          "cpu",   "--num_threads", "1"};
    if (std::ranges::find(flags, "--model_name_or_path") == flags.end())
      arguments.insert(arguments.end(), {"--model_preset", "llama-tiny"});
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return run_process(test::octet_program(), arguments, folder.path());
  }
  // A dry run and the run are refused for the same reason, and neither leaves anything.
  std::string refusal(std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--max_steps", "1", "--max_seq_length", "16"});
    const ProcessResult trained = run("train", flags);
    flags.emplace_back("--dry_run");
    const ProcessResult dry = run("train", flags);
    EXPECT_EQ(trained.exit_code, 2);
    EXPECT_EQ(dry.exit_code, trained.exit_code);
    EXPECT_EQ(dry.err, trained.err);
    EXPECT_EQ(dry.out, "");
    return dry.err;
  }
  TemporaryFolder folder;
};

std::string match(const std::string& text, const char* pattern) {
  std::smatch found;
  EXPECT_TRUE(std::regex_search(text, found, std::regex(pattern))) << pattern << " in\n" << text;
  return found.size() > 1 ? found[1].str() : "";
}

struct Found {
  std::string rows, level, memory;
  bool operator==(const Found&) const = default;
};
void PrintTo(const Found& found, std::ostream* out) {
  *out << found.rows << " rows, " << found.level << ", " << found.memory;
}

TEST_F(StagesCli, AllCommandsFindTheSameBatchLevelAndMemory) {
  struct Case {
    std::vector<std::string> flags;
    const char* level;
  };
  const std::vector<Case> cases = {
      {{"--auto_batch_size", "--device_memory_limit_gb", "0.03"}, "none"},
      {{"--per_device_train_batch_size", "16", "--device_memory_limit_gb", "0.03"}, "mlp"}};
  for (size_t i = 0; i < cases.size(); ++i) {
    std::vector<std::string> flags = {"--mixed_precision", "bf16", "--max_seq_length", "64"};
    flags.insert(flags.end(), cases[i].flags.begin(), cases[i].flags.end());
    const auto with = [&](const std::vector<std::string>& more) {
      std::vector<std::string> all = flags;
      all.insert(all.end(), more.begin(), more.end());
      return all;
    };
    const ProcessResult plan = run("plan", flags), dry = run("train", with({"--dry_run"}));
    const std::string name = "run" + std::to_string(i);
    const ProcessResult train =
        run("train", with({"--max_steps", "1", "--run_name", name, "--eval_batches", "1"}));
    const ProcessResult bench =
        run("bench", with({"--bench_steps", "1", "--bench_warmup", "1", "--json", "bench.json"}));
    for (const ProcessResult* result : {&plan, &dry, &train, &bench})
      ASSERT_EQ(result->exit_code, 0) << result->err;

    const Found planned{match(plan.out, "; (\\d+) x 64 tokens"),
                        match(plan.out, "recomputed in backward: .*?(nothing|\\(\\w+\\))"),
                        match(plan.out, "peak +([0-9.]+ \\w+)")};
    EXPECT_EQ(planned.level, cases[i].level == std::string("none") ? "nothing" : "(mlp)");
    const auto of_overview = [](const std::string& text) {
      return Found{match(text, "batch +(\\d+) x 64 tokens"),
                   match(text, "recompute +.*?(nothing|\\(\\w+\\))"), match(text, "peak +([0-9.]+ \\w+)")};
    };
    EXPECT_EQ(of_overview(dry.out), planned);
    EXPECT_EQ(of_overview(train.out), planned);
    EXPECT_EQ(match(train.out, "memory +([0-9.]+ \\w+) *\\n *precision"), planned.memory)
        << "what was allocated";

    const auto measured = nlohmann::json::parse(read_text(folder.path() + "/bench.json")).at(0);
    EXPECT_EQ(std::to_string(measured["rows"].get<int64_t>()), planned.rows);
    EXPECT_EQ(measured["gradient_checkpointing"], cases[i].level);
    EXPECT_EQ(human_bytes(measured["memory_bytes"].get<double>()), planned.memory);

    // What the dry run prints is what the run writes, but for its length and name.
    const std::string written = read_text(folder.path() + "/runs/" + name + "/config.yaml");
    for (const char* key : {"per_device_train_batch_size: (\\d+)", "\ngradient_checkpointing: (\\w+)"})
      EXPECT_EQ(match(dry.out, key), match(written, key));
    EXPECT_EQ(match(written, "\ngradient_checkpointing: (\\w+)"), cases[i].level);
  }
}

TEST_F(StagesCli, ADryRunLooksForTheWeights) {
  const std::string path = folder.path() + "/model";
  fs::create_directories(path);
  RandomModel(two_layers("llama-tiny"), DType::F32).write_folder(path);
  const std::vector<std::string> flags = {"--model_name_or_path", "model"};
  EXPECT_EQ(run("train", {"--model_name_or_path", "model", "--max_seq_length", "16", "--dry_run"}).exit_code,
            0);
  fs::resize_file(path + "/model.safetensors", 1000);
  EXPECT_THAT(refusal(flags), HasSubstr("model.safetensors"));
  // Weights that an index lists and that are not there.
  fs::remove(path + "/model.safetensors");
  folder.write("model/model.safetensors.index.json",
               R"({"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}})");
  EXPECT_THAT(refusal(flags), HasSubstr("model-00001-of-00002.safetensors"));
  // A plan needs no weights.
  EXPECT_EQ(run("plan", flags).exit_code, 0);
  EXPECT_FALSE(fs::exists(folder.path() + "/runs"));
}

TEST_F(StagesCli, ADryRunLooksAtTheOutputFolder) {
  EXPECT_THAT(refusal({"--output_dir", "text.txt/runs"}),
              HasSubstr("output_dir is text.txt/runs, which cannot be written: " + folder.path() +
                        "/text.txt is not a folder"));
  EXPECT_THAT(refusal({"--run_name", "a", "--checkpoint_dir", "text.txt/x"}),
              HasSubstr("checkpoint_dir is text.txt/x, which cannot be written"));
  EXPECT_FALSE(fs::exists(folder.path() + "/runs"));
  // Nobody can make files there, not even root.
  EXPECT_THAT(refusal({"--output_dir", "/proc/runs"}),
              HasSubstr("output_dir is /proc/runs, which cannot be written: /proc: "));
  if (geteuid() != 0) {  // who may write everywhere
    fs::create_directory(folder.path() + "/mine");
    fs::permissions(folder.path() + "/mine", fs::perms::owner_read | fs::perms::owner_exec);
    EXPECT_THAT(refusal({"--output_dir", "mine/runs"}), HasSubstr("Permission denied"));
    EXPECT_THAT(refusal({"--output_dir", "mine", "--run_name", "a"}),
                HasSubstr("output_dir/run_name is mine/a"));
  }
  fs::create_directories(folder.path() + "/runs/taken");
  folder.write("runs/taken/metrics.jsonl", "{\"step\": 1}\n");
  EXPECT_THAT(refusal({"--run_name", "taken"}),
              HasSubstr("runs/taken already holds a run; continue it with --resume latest"));
}

}  // namespace
}  // namespace octet::test
