// A run on the GPU that is resumed ends with the bits of one that was not, in every recipe.

#include <gtest/gtest.h>

#include <filesystem>

#include "ops/device.h"
#include "support/process.h"

namespace octet::test {
namespace {

class CudaResume : public testing::TestWithParam<std::vector<std::string>> {};

TEST_P(CudaResume, TwoHalvesAreTheWhole) {
  if (!probe_cuda().usable) GTEST_SKIP() << probe_cuda().reason;
  TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "number " + std::to_string(i * 7919 % 1000) + " follows\n";
  folder.write("text.txt", text);
  const auto train = [&](const std::string& name, std::vector<std::string> more) {
    std::vector<std::string> arguments = {"train",    "--device",         "cuda",  "--dataset",
                                          "text.txt", "--max_steps",      "12",    "--save_steps",
                                          "6",        "--max_seq_length", "64",    "--run_name",
                                          name,       "--progress",       "quiet", "--deterministic",
                                          "true",     "--eval_batches",   "1"};
    more.insert(more.end(), GetParam().begin(), GetParam().end());
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProcessResult result = run_process(OCTET_PROGRAM, arguments, folder.path());
    ASSERT_EQ(result.exit_code, 0) << result.err;
  };
  const auto state = [&](const std::string& name, int step) {
    std::string path = folder.path() + "/runs/" + name + "/checkpoints_fp8";
    if (!std::filesystem::exists(path)) path = folder.path() + "/runs/" + name + "/checkpoints";
    return path + "/step_" + std::to_string(step);
  };
  train("whole", {});
  train("halves", {"--resume", state("whole", 6)});
  for (const char* file : {"model.safetensors", "optimizer.safetensors", "fp8_state.bin", "state.json"}) {
    if (!std::filesystem::exists(state("whole", 12) + "/" + file)) continue;
    EXPECT_TRUE(read_text(state("whole", 12) + "/" + file) == read_text(state("halves", 12) + "/" + file))
        << file;
  }
}

INSTANTIATE_TEST_SUITE_P(
    , CudaResume,
    testing::Values(std::vector<std::string>{"--mixed_precision", "bf16"},
                    std::vector<std::string>{"--fp8_recipe", "delayed", "--gradient_accumulation_steps", "2"},
                    std::vector<std::string>{"--fp8_recipe", "current", "--gradient_checkpointing", "block"},
                    std::vector<std::string>{"--fp8_recipe", "block"},
                    std::vector<std::string>{"--optimizer_state", "fp8", "--master_weights", "stochastic"}));

}  // namespace
}  // namespace octet::test
