#include "bench/known_gpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/gpu_rates.h"
#include "support/error_of.h"

namespace octet::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(KnownGpus, AreFoundByEverySpelling) {
  const std::pair<const char*, const char*> spellings[] = {{"h100", "h100"},
                                                           {"H100", "h100"},
                                                           {"NVIDIA H100 80GB HBM3", "h100"},
                                                           {"h100-nvl", "h100-nvl"},
                                                           {"H100_NVL", "h100-nvl"},
                                                           {"h100 pcie", "h100"},
                                                           {"NVIDIA H200", "h200"},
                                                           {"gh200", "gh200"},
                                                           {"NVIDIA GH200 480GB", "gh200"},
                                                           {"NVIDIA GH200 144G HBM3e", "gh200-144gb"},
                                                           {"GB200", "gb200"},
                                                           {"gb100", "b200"},
                                                           {"b200", "b200"},
                                                           {"NVIDIA A100-SXM4-80GB", "a100"},
                                                           {"a100-40gb", "a100-40gb"},
                                                           {"NVIDIA A100-SXM4-40GB", "a100-40gb"},
                                                           {"L40S", "l40s"},
                                                           {"rtx4090", "rtx4090"},
                                                           {"NVIDIA GeForce RTX 4090", "rtx4090"},
                                                           {"RTX-5090", "rtx5090"},
                                                           {"5090", "rtx5090"}};
  for (const auto& [text, key] : spellings) EXPECT_EQ(known_gpu(text).key, key) << text;
}

TEST(KnownGpus, OthersAreRefusedWithTheNames) {
  for (const char* text : {"h20", "h2000", "b100", "v100", "x", "h100h200"})
    EXPECT_THAT(error_of([&] { known_gpu(text); }),
                AllOf(HasSubstr("is not known"),
                      HasSubstr("h100, h100-nvl, h200, gh200, gh200-144gb, b200, gb200, a100")))
        << text;
  for (const char* text : {"80", "80GB", "141 GiB", "24g"})
    EXPECT_THAT(error_of([&] { known_gpu(text); }), HasSubstr("device_memory_limit_gb")) << text;
}

// The H200 was measured, and both tables have it.
TEST(KnownGpus, AgreeWithTheMeasuredOne) {
  const KnownGpu gpu = known_gpu("h200");
  const GpuRates rates = *gpu_rates(gpu.name);
  EXPECT_EQ(gpu.memory(), rates.memory);
  EXPECT_EQ(gpu.multiprocessors, rates.multiprocessors);
  EXPECT_EQ(gpu.name, rates.gpu);
}

TEST(KnownGpus, FormatsFollowTheGpu) {
  const auto kind = [](const char* name, Granularity a, Granularity b) {
    const KnownGpu gpu = known_gpu(name);
    return make_planned_gpu("", gpu.memory(), gpu.multiprocessors, gpu.fp8)
        ->gemm_fp8_kind(1024, 1024, 1024, a, b, DType::E4M3, DType::E4M3, DType::BF16);
  };
  for (const char* name : {"h100", "h100-nvl", "h200", "b200", "l40s", "rtx4090", "rtx5090"})
    EXPECT_EQ(kind(name, Granularity::Tensor, Granularity::Tensor), "native") << name;
  EXPECT_EQ(kind("a100", Granularity::Tensor, Granularity::Tensor), "emulated");
  EXPECT_EQ(kind("h100", Granularity::Row128, Granularity::Block128), "native");
  for (const char* name : {"b200", "a100", "l40s", "rtx4090", "rtx5090"})
    EXPECT_EQ(kind(name, Granularity::Row128, Granularity::Block128), "emulated") << name;
  for (const char* name : {"h200", "b200", "rtx5090"})
    EXPECT_EQ(kind(name, Granularity::Row32, Granularity::Row32), "emulated") << name;
}

}  // namespace
}  // namespace octet::test
