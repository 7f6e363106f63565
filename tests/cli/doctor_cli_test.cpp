#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "ops/device.h"
#include "support/places.h"
#include "support/process.h"

namespace octet::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const nlohmann::json* find(const nlohmann::json& report, const std::string& name) {
  for (const auto& check : report["checks"]) {
    if (check["name"] == name) return &check;
  }
  return nullptr;
}

TEST(DoctorCommand, ChecksTheMachineWithoutAConfiguration) {
  const TemporaryFolder folder;
  const ProcessResult result = run_process(test::octet_program(), {"doctor", "--device", "cpu"}, folder.path());
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("CPU threads"), HasSubstr("host memory"), HasSubstr("hub cache"),
                                HasSubstr("mlp.up"), HasSubstr("0 failures")));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "it leaves nothing behind";
}

TEST(DoctorCommand, ReportsOnARunAsJson) {
  const TemporaryFolder folder;
  const std::string config =
      folder.write("run.yaml", "model_preset: llama-tiny\nfp8_recipe: block\noutput_dir: out\n");
  const ProcessResult result = run_process(
      "env", {"NVTE_FLASH_ATTN=1", "CUDA_LAUNCH_BLOCKING=1", test::octet_program(), "doctor", config, "--json"},
      folder.path());
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto report = nlohmann::json::parse(result.out);
  ASSERT_TRUE(find(report, "precision"));
  EXPECT_GT((*find(report, "precision"))["figures"]["fp8_share"], 0.3);
  ASSERT_TRUE(find(report, "mlp.down"));
  EXPECT_LT((*find(report, "mlp.down"))["figures"]["error_fp8"], 0.005);
  EXPECT_GT((*find(report, "output_dir"))["figures"]["write_mb_per_second"], 0);
  EXPECT_EQ((*find(report, "NVTE_FLASH_ATTN"))["health"], "ok") << "it does nothing here";
  EXPECT_EQ((*find(report, "CUDA_LAUNCH_BLOCKING"))["health"], "warning");
}

TEST(DoctorCommand, FailsForARunThatCannotStart) {
  const TemporaryFolder folder;
  const ProcessResult result = run_process(
      test::octet_program(), {"doctor", "--model_preset", "llama-tiny", "--dataset", "missing.txt"}, folder.path());
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, AllOf(HasSubstr("failure  files"), HasSubstr("missing.txt")));
  const ProcessResult unknown =
      run_process(test::octet_program(), {"doctor", "--model_preset", "nope"}, folder.path());
  EXPECT_NE(unknown.exit_code, 0);
  EXPECT_THAT(unknown.out + unknown.err, HasSubstr("nope"));
}

TEST(DoctorCommand, SaysWhetherARunWouldBeSentToWandb) {
  const TemporaryFolder folder;
  const std::vector<std::string> command = {test::octet_program(), "doctor",      "--device",
                                            "cpu",         "--use_wandb", "--json"};
  const auto check = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), command.begin(), command.end());
    const ProcessResult result = run_process("env", arguments, folder.path());
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return *find(nlohmann::json::parse(result.out), "Weights & Biases");
  };
  const std::string home = "HOME=" + folder.path();
  const auto no_python = check({home, "OCTET_PYTHON=/nowhere/python"});
  EXPECT_EQ(no_python["health"], "warning");
  EXPECT_THAT(no_python["remedy"].get<std::string>(), HasSubstr("pip install wandb"));
  const std::string fake = folder.write("fake python", "#!/bin/sh\nprintf 0.99.1\n");
  ASSERT_EQ(run_process("chmod", {"+x", fake}).exit_code, 0);
  const auto no_key = check({"-u", "WANDB_API_KEY", "-u", "NETRC", home, "OCTET_PYTHON=" + fake});
  EXPECT_THAT(no_key["text"].get<std::string>(), HasSubstr("wandb 0.99.1; no key"));
  EXPECT_EQ(no_key["health"], "warning");
  EXPECT_EQ(check({home, "OCTET_PYTHON=" + fake, "WANDB_API_KEY=secret"})["health"], "ok");
}

TEST(DoctorCommand, AFakeGpuIsReportedButNotUsed) {
  const TemporaryFolder folder;
  const std::string state = folder.write(
      "state",
      "name NVIDIA H200\npower_mw 90000\npower_limit_mw 450000\ndefault_power_limit_mw 700000\npersistence 0\n");
  const ProcessResult result = run_process("env",
                                           {"OCTET_NVML_LIBRARY=" + test::fake_nvml_library(), "FAKE_NVML_STATE=" + state,
                                            test::octet_program(), "doctor", "--device", "cpu"},
                                           folder.path());
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("580.95.05, supports CUDA 13.0; 1 GPU"),
                                HasSubstr("450 W, 700 W by default"), HasSubstr("nvidia-smi -pm 1")));
}

// The remedy must not be a build that leaves the GPU idle again.
TEST(DoctorCommand, RemediesFitTheGpu) {
  const auto said = [](const std::string& state, std::vector<std::string> command) {
    const TemporaryFolder folder;
    std::vector<std::string> words = {"OCTET_NVML_LIBRARY=" + test::fake_nvml_library(),
                                      "FAKE_NVML_STATE=" + folder.write("state", state), test::octet_program()};
    words.insert(words.end(), command.begin(), command.end());
    const ProcessResult result = run_process("env", words, folder.path());
    return result.out + result.err;
  };
  if (probe_cuda().usable || cuda_backend_built()) GTEST_SKIP() << "this program looks at real GPUs";
  const std::string ampere = "name NVIDIA A100\nmajor 8\nminor 0\n", hopper = "major 9\nminor 0\n",
                    blackwell = "major 10\nminor 0\n";
  EXPECT_THAT(said(ampere, {"doctor", "--device", "cpu"}),
              AllOf(HasSubstr("no kernels for NVIDIA A100 (compute capability 8.0)"),
                    Not(HasSubstr("make build CUDA=ON"))));
  EXPECT_THAT(said(hopper, {"doctor", "--device", "cpu"}), HasSubstr("'make build CUDA=ON'"));
  EXPECT_THAT(said(blackwell, {"doctor", "--device", "cpu"}), HasSubstr("-DOCTET_CUDA_BLACKWELL=ON"));
  // A run says that it leaves the GPU idle, unless that was asked for.
  const std::vector<std::string> train = {"train", "--dry_run", "--max_steps", "1"};
  const std::vector<std::string> on_cpu = {"train", "--dry_run", "--max_steps", "1", "--device", "cpu"};
  EXPECT_THAT(said(hopper, train),
              AllOf(HasSubstr("warning: the GPU is not used"), HasSubstr("'make build CUDA=ON'")));
  EXPECT_THAT(said(hopper, on_cpu), Not(HasSubstr("the GPU is not used")));
}

TEST(DoctorCommand, AGpuThatTheRunInsistsOnIsAFailure) {
  const TemporaryFolder folder;
  const ProcessResult result =
      run_process("env", {"CUDA_VISIBLE_DEVICES=", test::octet_program(), "doctor", "--require_fp8"}, folder.path());
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, AllOf(HasSubstr("FP8 needs an NVIDIA GPU"), HasSubstr("no usable GPU")));
}

}  // namespace
}  // namespace octet::test
