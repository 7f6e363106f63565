#include "base/nvml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <thread>

#include "support/places.h"
#include "support/process.h"

namespace octet {
namespace {

// Lets Nvml::open() find the fake library, with these values.
class FakeNvml {
 public:
  explicit FakeNvml(const std::string& values, const std::string& library = test::fake_nvml_library()) {
    setenv("FAKE_NVML_STATE", folder_.write("state", values).c_str(), 1);
    setenv("OCTET_NVML_LIBRARY", library.c_str(), 1);
  }
  ~FakeNvml() {
    unsetenv("FAKE_NVML_STATE");
    unsetenv("OCTET_NVML_LIBRARY");
  }
  void set(const std::string& values) { folder_.write("state", values); }

 private:
  test::TemporaryFolder folder_;
};

TEST(Nvml, ReadsTheStateOfAGpu) {
  FakeNvml fake(
      "name NVIDIA H200\npower_mw 512300\npower_limit_mw 600000\ndefault_power_limit_mw 700000\nenergy_mj 5000\n"
      "utilization 97\nsm_clock 1755\nmax_sm_clock 1980\nmemory_clock 3201\nmax_memory_clock 3201\ntemperature 61\n"
      "memory 150754820096\nmemory_used 1048576\nprocesses 2\npersistence 1\nthrottle 5\nmajor 9\nminor 0\n");
  std::string reason;
  const auto nvml = Nvml::open(reason);
  ASSERT_TRUE(nvml) << reason;
  EXPECT_EQ(nvml->driver_version(), "580.95.05");
  EXPECT_EQ(nvml->cuda_version(), "13.0");
  EXPECT_EQ(nvml->gpus(), 1);
  const auto state = nvml->state(0);
  ASSERT_TRUE(state);
  EXPECT_EQ(state->name, "NVIDIA H200");
  EXPECT_EQ(state->major, 9);
  EXPECT_EQ(state->uuid, "GPU-00112233-4455-6677-8899-aabbccddeeff");
  EXPECT_DOUBLE_EQ(*state->power_watts, 512.3);
  EXPECT_DOUBLE_EQ(*state->power_limit_watts, 600);
  EXPECT_DOUBLE_EQ(*state->default_power_limit_watts, 700);
  EXPECT_GE(*state->energy_joules, 5);
  EXPECT_DOUBLE_EQ(*state->utilization, 0.97);
  EXPECT_DOUBLE_EQ(*state->sm_clock_mhz, 1755);
  EXPECT_DOUBLE_EQ(*state->max_sm_clock_mhz, 1980);
  EXPECT_DOUBLE_EQ(*state->temperature_c, 61);
  EXPECT_EQ(*state->memory_bytes, 150754820096);
  EXPECT_EQ(*state->memory_used_bytes, 1048576);
  EXPECT_EQ(*state->compute_processes, 2);
  EXPECT_EQ(*state->persistence_mode, true);
  EXPECT_FALSE(state->ecc) << "the fake library has no such function";
  EXPECT_EQ(state->throttled(), "power cap") << "bit 0 is an idle GPU, which is no loss";
  EXPECT_FALSE(nvml->state(1));
}

TEST(Nvml, FindsAGpuByItsUuidAndLeavesUnknownValuesEmpty) {
  FakeNvml fake("power_mw 1000\n");
  std::string reason;
  const auto nvml = Nvml::open(reason);
  ASSERT_TRUE(nvml) << reason;
  const auto state = nvml->state("00112233445566778899aabbccddeeff");
  ASSERT_TRUE(state);
  EXPECT_DOUBLE_EQ(*state->power_watts, 1);
  EXPECT_FALSE(state->energy_joules);
  EXPECT_FALSE(state->utilization);
  EXPECT_EQ(state->throttled(), "");
  EXPECT_FALSE(nvml->state("ffffffffffffffffffffffffffffffff"));
  EXPECT_FALSE(nvml->state("short"));
}

TEST(Nvml, SaysWhyItIsNotThere) {
  std::string reason;
  {
    FakeNvml fake("", "/nowhere/libnvidia-ml.so.1");
    EXPECT_FALSE(Nvml::open(reason));
    EXPECT_THAT(reason, testing::HasSubstr("driver is not installed"));
  }
  FakeNvml fake("init_fails 1\n");
  EXPECT_FALSE(Nvml::open(reason));
  EXPECT_EQ(reason, "NVML does not start: Driver Not Loaded");
}

}  // namespace
}  // namespace octet
