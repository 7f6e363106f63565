#include "train/gpu_sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "base/clock.h"
#include "support/fake_nvml.h"
#include "train/cost_meter.h"

namespace octet {
namespace {

using test::FakeNvml;
using namespace std::chrono_literals;

constexpr const char* kUuid = "00112233445566778899aabbccddeeff";
constexpr const char* kHealthy =
    "power_mw 500000\nenergy_mj 7000000\nutilization 95\nsm_clock 1700\nmax_sm_clock 1980\ntemperature 60\n";

NvmlGpu fake_gpu() {
  std::string reason;
  return NvmlGpu::find(Nvml::open(reason), kUuid).value();
}

bool comes_true(const std::function<bool()>& what) {
  for (const auto start = Clock::now(); seconds_since(start) < 10;) {
    if (what()) return true;
    std::this_thread::sleep_for(2ms);
  }
  return false;
}

TEST(GpuSampler, AddsUpSamplesOfStepsAndEnergyOfAllTime) {
  const FakeNvml fake(kHealthy);
  GpuSampler sampler(fake_gpu(), 2ms);
  ASSERT_TRUE(comes_true([&] { return sampler.totals().energy_joules > 1; }));
  EXPECT_EQ(sampler.totals().samples, 0) << "no step is running";
  sampler.set_in_step(true);
  ASSERT_TRUE(comes_true([&] { return sampler.totals().samples >= 5; }));
  sampler.set_in_step(false);
  const GpuTotals totals = sampler.totals();
  EXPECT_DOUBLE_EQ(totals.mean(totals.power_watts), 500);
  EXPECT_NEAR(totals.mean(totals.utilization), 0.95, 1e-9);
  EXPECT_DOUBLE_EQ(totals.mean(totals.sm_clock_mhz), 1700);
  EXPECT_EQ(totals.slowed, 0);
  EXPECT_LT(totals.energy_joules, 7000) << "what the counter showed before does not count";
}

TEST(GpuSampler, EnergyIsThatOfTheCounter) {
  const FakeNvml fake("power_mw 1000000\nenergy_mj 500\n");
  GpuSampler sampler(fake_gpu(), 1h);  // samples on request alone
  const auto start = Clock::now();
  std::this_thread::sleep_for(50ms);
  sampler.sample();
  const double seconds = seconds_since(start);
  EXPECT_GE(sampler.totals().energy_joules, 49);
  EXPECT_LE(sampler.totals().energy_joules, 1000 * (seconds + 0.05));
}

TEST(GpuSampler, WithoutACounterPowerIsIntegrated) {
  const FakeNvml fake("power_mw 1000000\n");
  GpuSampler sampler(fake_gpu(), 1h);
  std::this_thread::sleep_for(50ms);
  sampler.sample();
  EXPECT_GE(sampler.totals().energy_joules, 49);
  EXPECT_LT(sampler.totals().energy_joules, 5000);
}

TEST(GpuSampler, WithoutPowerEnergyIsUnknown) {
  const FakeNvml fake("utilization 50\n");
  GpuSampler sampler(fake_gpu(), 1h);
  sampler.sample();
  EXPECT_TRUE(std::isnan(sampler.totals().energy_joules));
}

TEST(GpuSampler, NamesWhyTheClockWasLoweredSinceTheLastRecord) {
  FakeNvml fake(std::string(kHealthy) + "throttle 4\n");
  GpuSampler sampler(fake_gpu(), 1h);
  sampler.set_in_step(true);
  sampler.sample();
  const GpuTotals first = sampler.totals();
  EXPECT_EQ(gpu_figures(first, sampler.state(), 0).throttled, "power cap");
  fake.set(std::string(kHealthy) + "throttle 64\n");
  sampler.sample();
  const GpuTotals second = sampler.totals();
  const GpuFigures figures = gpu_figures(second.since(first), sampler.state(), 12);
  EXPECT_EQ(figures.throttled, "hardware thermal slowdown") << "the power cap was before";
  EXPECT_EQ(figures.energy_joules, 12);
  EXPECT_EQ(figures.temperature_c, 60);
  fake.set(kHealthy);
  sampler.sample();
  EXPECT_EQ(gpu_figures(sampler.totals().since(second), sampler.state(), 0).throttled, "");
}

TEST(GpuSampler, IsNotStartedWithoutADriverOrAGpu) {
  EXPECT_FALSE(GpuSampler::start(""));
  {
    const FakeNvml fake("init_fails 1\n");
    EXPECT_FALSE(GpuSampler::start(kUuid));
  }
  const FakeNvml fake(kHealthy);
  EXPECT_FALSE(GpuSampler::start("ffffffffffffffffffffffffffffffff"));
  EXPECT_FALSE(GpuSampler::start("")) << "a run on the CPU";
  EXPECT_TRUE(GpuSampler::start(kUuid));
  setenv("OCTET_NVML_GPU", "0", 1);
  EXPECT_TRUE(GpuSampler::start(""));
  setenv("OCTET_NVML_GPU", "7", 1);
  EXPECT_FALSE(GpuSampler::start(kUuid));
  unsetenv("OCTET_NVML_GPU");
}

TEST(CostMeter, CountsOverRestarts) {
  const FakeNvml fake("power_mw 1000000\nenergy_mj 1\n");
  CostMeter meter;
  meter.restore(100, 5000.0);
  meter.begin(std::make_unique<GpuSampler>(fake_gpu(), 1ms), 1);
  StepNote note;
  meter.begin_step(note);
  std::this_thread::sleep_for(30ms);
  meter.end_step({});
  meter.finish();
  EXPECT_GT(meter.device_seconds(), 100.03);
  ASSERT_TRUE(meter.energy_joules());
  EXPECT_GT(*meter.energy_joules(), 5000);
  const auto figures = meter.take_figures();
  ASSERT_TRUE(figures);
  EXPECT_EQ(figures->energy_joules, *meter.energy_joules());
}

TEST(CostMeter, AddsWhatAllRanksSay) {
  CostMeter meter;
  meter.begin(nullptr, 2);
  StepNote note;
  meter.begin_step(note);
  EXPECT_TRUE(std::isnan(note.energy_joules)) << "this rank knows nothing";
  StepResult result;
  result.ranks.resize(2);
  result.ranks[0].note.energy_joules = 30;
  result.ranks[1].note.energy_joules = 40;
  meter.end_step(result);
  EXPECT_EQ(meter.energy_joules(), 70.0);
  EXPECT_FALSE(meter.take_figures());
  result.ranks[1].note.energy_joules = std::nanf("");
  meter.end_step(result);
  EXPECT_FALSE(meter.energy_joules()) << "the sum of some GPUs would look like that of all";
}

TEST(GpuSampler, SamplesThatAreTakenAtOnceCountOnce) {
  const FakeNvml fake("power_mw 1000000\nenergy_mj 500\n");
  GpuSampler sampler(fake_gpu(), 1ms);
  const auto start = Clock::now();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) sampler.sample();
    });
  }
  for (std::thread& thread : threads) thread.join();
  // A sample that was read earlier but added later would count a piece twice.
  EXPECT_LE(sampler.totals().energy_joules, 1000 * (seconds_since(start) + 0.2));
}

TEST(GpuSampler, KeepsTheLimitsOfTheStart) {
  FakeNvml fake(std::string(kHealthy) + "power_limit_mw 600000\ndefault_power_limit_mw 700000\n");
  GpuSampler sampler(fake_gpu(), 1h);
  fake.set("power_mw 300000\nsm_clock 900\n");
  sampler.sample();
  const GpuState state = sampler.state();
  EXPECT_EQ(state.power_watts, 300.0);
  EXPECT_EQ(state.sm_clock_mhz, 900.0);
  EXPECT_FALSE(state.temperature_c);
  EXPECT_EQ(state.max_sm_clock_mhz, 1980.0);
  EXPECT_EQ(state.power_limit_watts, 600.0);
  EXPECT_EQ(state.default_power_limit_watts, 700.0);
}

// Two ranks whose second one says that it used 40 J in the last step.
struct TwoRanks : HostChannel {
  int rank() const override { return 0; }
  int size() const override { return 2; }
  std::vector<std::string> all_gather(const std::string&, const std::string& mine, std::chrono::milliseconds,
                                      std::span<const int>) override {
    said = mine;
    return {mine, "40"};
  }
  std::string said;
};

TEST(CostMeter, TheLastStepOfAllRanksCounts) {
  const FakeNvml fake("power_mw 1000000\nenergy_mj 1\n");
  CostMeter meter;
  meter.begin(std::make_unique<GpuSampler>(fake_gpu(), 1h), 2);
  StepNote note;
  meter.begin_step(note);
  std::this_thread::sleep_for(20ms);
  StepResult result;
  result.ranks.resize(2);
  result.ranks[0].note.energy_joules = note.energy_joules;
  result.ranks[1].note.energy_joules = 0;
  meter.end_step(result);
  TwoRanks host;
  meter.finish(&host);
  ASSERT_TRUE(meter.energy_joules());
  EXPECT_GT(std::strtod(host.said.c_str(), nullptr), 15);
  EXPECT_DOUBLE_EQ(*meter.energy_joules(), std::strtod(host.said.c_str(), nullptr) + 40);
}

TEST(CostMeter, WithoutAGpuThereIsOnlyTime) {
  CostMeter meter;
  meter.restore(10, std::nullopt);
  meter.begin(nullptr, 1);
  StepNote note;
  meter.begin_step(note);
  meter.end_step({});
  meter.finish();
  EXPECT_GE(meter.device_seconds(), 10);
  EXPECT_FALSE(meter.energy_joules());
  EXPECT_FALSE(meter.take_figures());
}

}  // namespace
}  // namespace octet
