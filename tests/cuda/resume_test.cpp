// A run on the GPU that is resumed ends with the bits of one that was not, in every recipe.

#include <gtest/gtest.h>

#include <filesystem>

#include "ops/device.h"
#include "support/places.h"
#include "support/process.h"

namespace octet::test {
namespace {

using Words = std::vector<std::string>;

struct Recipe {
  const char* name;
  bool fp8;
  Words arguments;
};

class CudaResume : public testing::TestWithParam<Recipe> {
 protected:
  void train(const std::string& name, const Words& more) {
    Words arguments = {
        "train",    "--model_preset", "llama-tiny", "--device",     "cuda",  "--dataset",
        "text.txt", "--max_steps",    "12",         "--save_steps", "6",     "--max_seq_length",
        "64",       "--run_name",     name,         "--progress",   "quiet", "--deterministic",
        "true",     "--eval_batches", "1"};
    for (const Words* words : {&more, &GetParam().arguments})
      arguments.insert(arguments.end(), words->begin(), words->end());
    const ProcessResult result = run_process(test::octet_program(), arguments, folder.path());
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }
  std::filesystem::path checkpoint(const std::string& name, int step) const {
    const char* checkpoints = GetParam().fp8 ? "checkpoints_fp8" : "checkpoints";
    return std::filesystem::path(folder.path()) / "runs" / name / checkpoints / fmt::format("step_{}", step);
  }

  TemporaryFolder folder;
};

TEST_P(CudaResume, TwoHalvesAreTheWhole) {
  if (!probe_cuda().usable) GTEST_SKIP() << probe_cuda().reason;
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "number " + std::to_string(i * 7919 % 1000) + " follows\n";
  folder.write("text.txt", text);
  ASSERT_NO_FATAL_FAILURE(train("whole", {}));
  ASSERT_NO_FATAL_FAILURE(train("halves", {"--resume", checkpoint("whole", 6).string()}));
  Words files = {"model.safetensors", "optimizer.safetensors", "state.json"};
  if (GetParam().fp8) files.push_back("fp8_state.bin");
  for (const std::string& file : files) {
    const std::filesystem::path one = checkpoint("whole", 12) / file, other = checkpoint("halves", 12) / file;
    ASSERT_TRUE(std::filesystem::exists(one)) << one;
    ASSERT_TRUE(std::filesystem::exists(other)) << other;
    EXPECT_TRUE(read_text(one.string()) == read_text(other.string())) << file << " differs";
  }
}

INSTANTIATE_TEST_SUITE_P(
    , CudaResume,
    testing::Values(
        Recipe{"Bf16", false, {"--mixed_precision", "bf16"}},
        Recipe{"Delayed", true, {"--fp8_recipe", "delayed", "--gradient_accumulation_steps", "2"}},
        Recipe{"Current", true, {"--fp8_recipe", "current", "--gradient_checkpointing", "block"}},
        Recipe{"Block", true, {"--fp8_recipe", "block"}},
        Recipe{"SmallStates", true, {"--optimizer_state", "fp8", "--master_weights", "stochastic"}},
        Recipe{"CompactWeights", true, {"--optimizer_state", "fp8", "--master_weights", "compact"}}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace octet::test
