#include <fmt/format.h>
#include <gmock/gmock.h>
#include <yaml-cpp/yaml.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "support/places.h"
#include "support/process.h"

// Every file of configs/ passes --dry_run as it is. The hub is a cache on disk: the real names, with tiny models and a few
// records behind them.

namespace octet::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const fs::path kConfigs = test::source_path("/configs");

class ReadyConfigurations : public testing::Test {
 protected:
  ReadyConfigurations() {
    setenv("HF_HUB_CACHE", (folder_.path() + "/hub").c_str(), 1);
    setenv("HF_HUB_OFFLINE", "1", 1);
    setenv("XDG_CACHE_HOME", (folder_.path() + "/cache").c_str(), 1);
  }
  ~ReadyConfigurations() override {
    for (const char* name : {"HF_HUB_CACHE", "HF_HUB_OFFLINE", "XDG_CACHE_HOME"}) unsetenv(name);
  }

  ProcessResult octet(const std::vector<std::string>& arguments) {
    return run_process(test::octet_program(), arguments, folder_.path());
  }

  // A tiny model of the family as the snapshot of these hub ids.
  void add_models(const std::string& preset, const std::vector<std::string>& ids) {
    ASSERT_EQ(
        octet({"train", "--device", "cpu", "--model_preset", preset, "--max_steps", "1", "--run_name", preset,
               "--eval_strategy", "no", "--sample_steps", "0", "--max_position_embeddings", "4096"})
            .exit_code,
        0);
    const std::string commit(40, 'a');
    for (std::string id : ids) {
      id.replace(id.find('/'), 1, "--");
      const fs::path repository = fs::path(folder_.path()) / "hub" / ("models--" + id);
      fs::create_directories(repository / "refs");
      fs::create_directories(repository / "snapshots");
      std::ofstream(repository / "refs/main") << commit;
      const ProcessResult exported =
          octet({"export", "runs/" + preset, "--output", (repository / "snapshots" / commit).string()});
      ASSERT_EQ(exported.exit_code, 0) << exported.err;
    }
  }

  // Files of a dataset preset, in its own columns.
  void add_records(const std::string& preset, const std::string& file, const std::string& record) {
    fs::create_directories(folder_.path() + "/records/" + preset);
    std::string lines;
    for (int i = 0; i < 400; ++i) lines += record + "\n";
    folder_.write("records/" + preset + "/" + file, lines);
  }

  void add_hub() {
    add_models("llama-tiny",
               {"meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.2-3B"});
    add_models("qwen2.5-tiny", {"Qwen/Qwen2.5-14B"});
    add_models("gpt2-tiny", {"openai-community/gpt2"});
    add_records("alpaca", "train.jsonl", R"({"instruction": "Add 2 and 3.", "input": "", "output": "5"})");
    add_records("openmathinstruct-2", "train_1M-00000-of-00001.jsonl",
                R"({"problem": "2 + 3?", "generated_solution": "It is 5.", "expected_answer": "5"})");
    for (const char* name : {"fineweb-edu", "openwebtext", "tinyshakespeare"})
      add_records(name, "train.jsonl", fmt::format(R"({{"text": "{}"}})", std::string(300, 'a')));
  }

  // The flags that a machine without a GPU and without downloads needs.
  std::vector<std::string> dry_run(const fs::path& file) {
    const YAML::Node config = YAML::LoadFile(file.string());
    std::vector<std::string> words = {"train",
                                      file.string(),
                                      "--dry_run",
                                      "--device",
                                      "cpu",
                                      "--dataset_dir",
                                      folder_.path() + "/records/" + config["dataset"].as<std::string>()};
    if (config["model_preset"].IsDefined() && config["model_preset"].as<std::string>() == "gpt2")
      words.insert(words.end(), {"--model_preset", "gpt2-tiny"});
    return words;
  }

  TemporaryFolder folder_;
};

std::vector<fs::path> files_in(const fs::path& folder, bool sweeps = false) {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const bool is_sweep = entry.path().filename().string().starts_with("sweep_");
    if (entry.path().extension() == ".yaml" && is_sweep == sweeps) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

TEST_F(ReadyConfigurations, PassADryRunAndAreDescribed) {
  ASSERT_NO_FATAL_FAILURE(add_hub());
  const std::string page = read_text((kConfigs / "README.md").string());
  std::vector<fs::path> files = files_in(kConfigs);
  for (const fs::path& file : files_in(kConfigs / "openmath")) files.push_back(file);
  ASSERT_EQ(files.size(), 22u);
  for (const fs::path& file : files) {
    const ProcessResult result = octet(dry_run(file));
    EXPECT_EQ(result.exit_code, 0) << file << "\n" << result.err;
    // A setting without effect has no place in an example.
    EXPECT_EQ(result.err.find("has no effect"), std::string::npos) << file << "\n" << result.err;
    EXPECT_THAT(page, HasSubstr("(" + fs::relative(file, kConfigs).string() + ")"));
  }
}

// The flags of every run of a grid: --key value for each combination.
std::vector<std::vector<std::string>> combinations(const YAML::Node& parameters) {
  std::vector<std::vector<std::string>> runs = {{}};
  for (const auto& parameter : parameters) {
    std::vector<std::string> values;
    for (const auto& value : parameter.second["values"]) values.push_back(value.as<std::string>());
    if (parameter.second["value"].IsDefined()) values = {parameter.second["value"].as<std::string>()};
    std::vector<std::vector<std::string>> longer;
    for (const std::vector<std::string>& run : runs) {
      for (const std::string& value : values) {
        longer.push_back(run);
        longer.back().push_back(fmt::format("--{}={}", parameter.first.as<std::string>(), value));
      }
    }
    runs = std::move(longer);
  }
  return runs;
}

TEST_F(ReadyConfigurations, EveryRunOfASweepPassesADryRun) {
  ASSERT_NO_FATAL_FAILURE(add_models("gpt2-tiny", {"openai-community/gpt2"}));
  for (const char* name : {"fineweb-edu", "openwebtext", "tinyshakespeare"})
    add_records(name, "train.jsonl", fmt::format(R"({{"text": "{}"}})", std::string(300, 'a')));
  const std::string page = read_text((kConfigs / "README.md").string());
  const std::vector<fs::path> sweeps = files_in(kConfigs, true);
  ASSERT_EQ(sweeps.size(), 5u);
  for (const fs::path& file : sweeps) {
    const YAML::Node sweep = YAML::LoadFile(file.string());
    const auto base = sweep["command"][2].as<std::string>();
    EXPECT_THAT(page, HasSubstr("(" + file.filename().string() + ")"));
    const auto runs = combinations(sweep["parameters"]);
    EXPECT_GE(runs.size(), 5u) << file;
    for (const std::vector<std::string>& flags : runs) {
      std::vector<std::string> words = dry_run(fs::path(test::source_path("")) / base);
      words.insert(words.end(), flags.begin(), flags.end());
      const ProcessResult result = octet(words);
      EXPECT_EQ(result.exit_code, 0) << file << "\n" << result.err;
    }
  }
}

}  // namespace
}  // namespace octet::test
