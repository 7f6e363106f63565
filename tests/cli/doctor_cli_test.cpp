#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

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
  const ProcessResult result = run_process(OCTET_PROGRAM, {"doctor", "--device", "cpu"}, folder.path());
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
      "env", {"NVTE_FLASH_ATTN=1", "CUDA_LAUNCH_BLOCKING=1", OCTET_PROGRAM, "doctor", config, "--json"},
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
      OCTET_PROGRAM, {"doctor", "--model_preset", "llama-tiny", "--dataset", "missing.txt"}, folder.path());
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, AllOf(HasSubstr("failure  files"), HasSubstr("missing.txt")));
  const ProcessResult unknown =
      run_process(OCTET_PROGRAM, {"doctor", "--model_preset", "nope"}, folder.path());
  EXPECT_NE(unknown.exit_code, 0);
  EXPECT_THAT(unknown.out + unknown.err, HasSubstr("nope"));
}

TEST(DoctorCommand, AFakeGpuIsReportedButNotUsed) {
  const TemporaryFolder folder;
  const std::string state = folder.write(
      "state",
      "name NVIDIA H200\npower_mw 90000\npower_limit_mw 450000\ndefault_power_limit_mw 700000\npersistence 0\n");
  const ProcessResult result = run_process("env",
                                           {"OCTET_NVML_LIBRARY=" OCTET_FAKE_NVML, "FAKE_NVML_STATE=" + state,
                                            OCTET_PROGRAM, "doctor", "--device", "cpu"},
                                           folder.path());
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("580.95.05, supports CUDA 13.0; 1 GPU"),
                                HasSubstr("450 W, 700 W by default"), HasSubstr("nvidia-smi -pm 1")));
}

TEST(DoctorCommand, AGpuThatTheRunInsistsOnIsAFailure) {
  const TemporaryFolder folder;
  const ProcessResult result =
      run_process("env", {"CUDA_VISIBLE_DEVICES=", OCTET_PROGRAM, "doctor", "--require_fp8"}, folder.path());
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, AllOf(HasSubstr("FP8 needs an NVIDIA GPU"), HasSubstr("no usable GPU")));
}

}  // namespace
}  // namespace octet::test
