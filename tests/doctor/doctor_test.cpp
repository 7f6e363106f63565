#include "doctor/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "doctor/checks.h"
#include "support/process.h"

namespace octet {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;

auto has(Health health, const std::string& name) {
  return Contains(AllOf(Field(&CheckResult::health, health), Field(&CheckResult::name, name)));
}

class EveryRecipe : public testing::TestWithParam<Fp8Recipe> {};

// The reference reads codes and scales itself, so these products are right only if the device's layout of both is.
TEST_P(EveryRecipe, ProductsAgreeWithTheReference) {
  const std::unique_ptr<Device> device = make_cpu_device(1);
  ProductOptions options{.timed = false};
  options.fp8.recipe = GetParam();
  const ProductShape shape{.layer = "mlp.up", .tokens = 160, .out = 384, .in = 256};
  const std::vector<ProductTrial> trials = try_products(*device, shape, options);
  ASSERT_EQ(trials.size(), 3u);
  for (const ProductTrial& trial : trials) {
    SCOPED_TRACE(name_of(trial.product));
    EXPECT_LT(trial.bf16.error, 0.004) << "BF16 results have 8 bits";
    EXPECT_LT(trial.fp8.error, 0.004) << "the rounding to FP8 is in both sides";
    EXPECT_EQ(trial.fp8_kind, "emulated");
  }
  EXPECT_EQ(trials[0].m, 160);
  EXPECT_EQ(trials[0].n, 384);
  EXPECT_EQ(trials[0].k, 256);
  EXPECT_EQ(trials[2].k, 160);
}
INSTANTIATE_TEST_SUITE_P(Recipes, EveryRecipe,
                         testing::Values(Fp8Recipe::Delayed, Fp8Recipe::Current, Fp8Recipe::Block,
                                         Fp8Recipe::Mxfp8),
                         [](const auto& recipe) { return std::string(name_of(recipe.param)); });

std::vector<ProductTrial> trials(double bf16_ms, double fp8_ms, double error, const std::string& kind) {
  ProductTrial one{.m = 4096,
                   .n = 4096,
                   .k = 4096,
                   .fp8_kind = kind,
                   .bf16 = {.ms = bf16_ms, .error = 0.0017},
                   .fp8 = {.ms = fp8_ms, .error = error}};
  std::vector<ProductTrial> result;
  for (const Product product : kProducts) {
    one.product = product;
    result.push_back(one);
  }
  return result;
}

TEST(Products, AreJudged) {
  const ProductShape shape{.layer = "mlp.up", .tokens = 4096, .out = 4096, .in = 4096};
  const CheckResult good = judge_products(shape, trials(0.2, 0.125, 0.002, "native"), true);
  EXPECT_EQ(good.health, Health::Ok);
  // 3 * 2 * 4096^3 flops in 0.6 and 0.375 ms.
  EXPECT_THAT(good.text, AllOf(HasSubstr("(687 TFLOP/s)"), HasSubstr("(1100 TFLOP/s)"), HasSubstr("1.60x")));
  EXPECT_EQ(judge_products(shape, trials(0.2, 0.3, 0.002, "native"), true).health, Health::Warning)
      << "FP8 is slower";
  const CheckResult emulated = judge_products(shape, trials(0.2, 0.1, 0.002, "emulated"), true);
  EXPECT_EQ(emulated.health, Health::Warning);
  EXPECT_THAT(emulated.text, HasSubstr("emulated: forward, dgrad, wgrad"));
  EXPECT_EQ(judge_products(shape, trials(0.2, 0.1, 0.02, "native"), true).health, Health::Failure)
      << "wrong results";
  EXPECT_EQ(judge_products(shape, trials(0, 0, INFINITY, "emulated"), false).health, Health::Failure);
  EXPECT_EQ(judge_products(shape, trials(0, 0, 0.002, "emulated"), false).health, Health::Ok)
      << "on a CPU everything is emulated";
}

TEST(Products, OfARunInBf16AreTestedInBothPrecisions) {
  const std::shared_ptr<Device> device = make_cpu_device(1);
  DoctorRun run{.is_given = true};
  run.resolved.keys =
      load_plan_config("", std::vector<KeySetting>{{.name = "model_preset", .values = {"llama-tiny"}},
                                                   {.name = "mixed_precision", .values = {"bf16"}}});
  plan_doctor_run(run, device);
  EXPECT_EQ(run.shapes.size(), 4u) << "qkv, out, up, down";
  EXPECT_THAT(check_products(*device, run, [] { return std::nullopt; }).results, has(Health::Ok, "mlp.up"));
}

TEST(DoctorRun, KeepsItsModelIfItCannotBePlanned) {
  const std::shared_ptr<Device> device = make_cpu_device(1);
  DoctorRun run{.is_given = true};
  run.resolved.keys =
      load_plan_config("", std::vector<KeySetting>{{.name = "model_preset", .values = {"llama-tiny"}},
                                                   {.name = "require_fp8", .values = {"true"}}});
  plan_doctor_run(run, device);
  EXPECT_FALSE(run.is_planned);
  EXPECT_THAT(run.problem, HasSubstr("only emulates FP8"));
  ASSERT_TRUE(run.has_model());
  EXPECT_EQ(run.resolved.model.config.name, "llama-tiny");
}

TEST(Products, ThatCannotBeTestedAreMentioned) {
  const std::unique_ptr<Device> device = make_cpu_device(1);
  DoctorRun run;
  run.problem = "no such model";
  const ProductsOutcome outcome = check_products(*device, run, [] { return std::nullopt; });
  EXPECT_THAT(outcome.results, has(Health::Warning, "shapes"));
  EXPECT_FALSE(outcome.native);
}

TEST(GpuState, OfAHealthyGpuIsOk) {
  const GpuState state{.power_watts = 80,
                       .power_limit_watts = 700,
                       .default_power_limit_watts = 700,
                       .sm_clock_mhz = 345,
                       .max_sm_clock_mhz = 1980,
                       .temperature_c = 30,
                       .memory_bytes = int64_t{140} << 30,
                       .memory_used_bytes = int64_t{1} << 30,
                       .compute_processes = 0,
                       .persistence_mode = true,
                       .throttle_reasons = 1};
  EXPECT_THAT(check_gpu_state(state), Each(Field(&CheckResult::health, Health::Ok)));
}

TEST(GpuState, WarnsOfWhatCostsSpeed) {
  const GpuState state{.power_limit_watts = 450,
                       .default_power_limit_watts = 700,
                       .memory_bytes = int64_t{140} << 30,
                       .memory_used_bytes = int64_t{100} << 30,
                       .compute_processes = 2,
                       .persistence_mode = false,
                       .mig = true,
                       .throttle_reasons = 0x40};
  const std::vector<CheckResult> results = check_gpu_state(state);
  for (const char* name :
       {"memory", "other programs", "power limit", "throttling", "persistence mode", "MIG"})
    EXPECT_THAT(results, has(Health::Warning, name));
  for (const CheckResult& result : results) EXPECT_FALSE(result.remedy.empty()) << result.name;
  EXPECT_THAT(check_gpu_state({}), IsEmpty()) << "nothing is known, nothing is claimed";
}

TEST(Gpu, AMissingOneIsAFailureOnlyIfTheRunInsistsOnIt) {
  const CudaProbe probe{.reason = "no NVIDIA driver is installed"};
  EXPECT_THAT(check_gpu(probe, nullptr, "no driver", false), has(Health::Warning, "device"));
  EXPECT_THAT(check_gpu(probe, nullptr, "no driver", true), has(Health::Failure, "device"));
  EXPECT_THAT(check_gpu(probe, nullptr, "no driver", true), has(Health::Failure, "driver"));
}

TEST(Disk, IsMeasuredAndLeftClean) {
  const test::TemporaryFolder folder;
  const DiskSpeed speed = measure_disk(folder.path(), 3 << 20);
  EXPECT_GT(speed.write, 0);
  EXPECT_GT(speed.read, 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  EXPECT_THROW(measure_disk(folder.path() + "/none", 1 << 20), Error);
}

TEST(Doctor, JsonHasEveryCheck) {
  DoctorReport report{.results = {{Health::Warning, "GPU", "device", "none \xff", "get one", {{"x", 1.5}}}},
                      .verdict = "v"};
  const auto json = nlohmann::json::parse(doctor_json(report));
  EXPECT_EQ(json["warnings"], 1);
  EXPECT_EQ(json["failures"], 0);
  EXPECT_EQ(json["fp8_over_bf16"], nullptr);
  EXPECT_EQ(json["checks"][0]["health"], "warning");
  EXPECT_EQ(json["checks"][0]["figures"]["x"], 1.5);
}

}  // namespace
}  // namespace octet
