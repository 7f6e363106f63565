#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "doctor/checks.h"

namespace octet {
namespace {

constexpr double kLoadSeconds = 1.5;

constexpr const char* kArea = "products";

// Of the three products together.
double tflops(const std::vector<ProductTrial>& trials, double ms) {
  double flops = 0;
  for (const ProductTrial& trial : trials)
    flops += 2.0 * static_cast<double>(trial.m) * static_cast<double>(trial.n) * static_cast<double>(trial.k);
  return 1e-9 * flops / ms;
}

}  // namespace

CheckResult judge_products(const ProductShape& shape, const std::vector<ProductTrial>& trials, bool timed) {
  double bf16 = 0, fp8 = 0, error_bf16 = 0, error_fp8 = 0;
  std::vector<std::string_view> emulated;
  for (const ProductTrial& trial : trials) {
    bf16 += trial.bf16.ms;
    fp8 += trial.fp8.ms;
    error_bf16 = std::max(error_bf16, trial.bf16.error);
    error_fp8 = std::max(error_fp8, trial.fp8.error);
    if (trial.fp8_kind != "native") emulated.push_back(name_of(trial.product));
  }
  const std::string errors =
      fmt::format("error {:.2f} % in BF16, {:.2f} % in FP8", 100 * error_bf16, 100 * error_fp8);
  const std::string speed =
      !timed ? std::string("not timed")
             : fmt::format("BF16 {:.3f} ms ({:.0f} TFLOP/s), FP8 {:.3f} ms ({:.0f} TFLOP/s), {:.2f}x", bf16,
                           tflops(trials, bf16), fp8, tflops(trials, fp8), bf16 / fp8);
  CheckResult result{
      .area = kArea,
      .name = shape.layer,
      .text = fmt::format("{} x {} x {}: {}; {}", shape.tokens, shape.out, shape.in, speed, errors)};
  if (std::max(error_bf16, error_fp8) > kLargestProductError) {
    result.health = Health::Failure;
    result.remedy =
        "the products are wrong: do not train on this machine; check the GPU with 'nvidia-smi -q -d ECC' and report the "
        "versions of the driver and of cuBLASLt";
  } else if (timed && !emulated.empty()) {
    result.health = Health::Warning;
    result.text += fmt::format("; emulated: {}", fmt::join(emulated, ", "));
    result.remedy = "emulated products are slower than BF16: use fp8_recipe delayed or current";
  } else if (timed && fp8 > bf16) {
    result.health = Health::Warning;
    result.remedy = "FP8 is slower for this shape: use larger batches, or name the layer in fp8_skip_layers";
  }
  result.figures = {{"tokens", static_cast<double>(shape.tokens)},
                    {"out", static_cast<double>(shape.out)},
                    {"in", static_cast<double>(shape.in)},
                    {"error_bf16", error_bf16},
                    {"error_fp8", error_fp8}};
  if (timed) {
    result.figures.insert(result.figures.end(),
                          {{"bf16_ms", bf16}, {"fp8_ms", fp8}, {"fp8_over_bf16", bf16 / fp8}});
  }
  return result;
}

namespace {

void report_load(CheckResults& results, Device& device, const ProductShape& shape,
                 const ProductOptions& options, const std::function<std::optional<GpuState>()>& state) {
  double clock = 0, power = 0, max_clock = 0, temperature = 0;
  int looks = 0;
  uint64_t reasons = 0;
  const double speed = sustain_product(device, shape, options, kLoadSeconds, [&] {
    const std::optional<GpuState> now = state();
    if (!now) return;
    ++looks;
    clock += now->sm_clock_mhz.value_or(0);
    power += now->power_watts.value_or(0);
    max_clock = now->max_sm_clock_mhz.value_or(0);
    temperature = std::max(temperature, now->temperature_c.value_or(0));
    reasons |= now->throttle_reasons;
  });
  if (looks == 0) {
    results.ok("under load", fmt::format("{:.0f} TFLOP/s in FP8 over {} s; NVML does not tell the clocks",
                                         speed, kLoadSeconds));
    return;
  }
  clock /= looks;
  power /= looks;
  GpuState seen;
  seen.throttle_reasons = reasons;
  const std::string throttled = seen.throttled();
  const std::string text = fmt::format(
      "{:.0f} TFLOP/s in FP8 over {} s at {:.0f} of {:.0f} MHz, {:.0f} W, {:.0f} C{}", speed, kLoadSeconds,
      clock, max_clock, power, temperature, throttled.empty() ? "" : ", limited by: " + throttled);
  // Large products draw all the power that a GPU may: that limit is normal. Heat and a bad supply are not.
  const bool is_hot = throttled.find("thermal") != std::string::npos ||
                      throttled.find("hardware") != std::string::npos ||
                      throttled.find("brake") != std::string::npos;
  CheckResult& load =
      is_hot ? results.warning("under load", text, "check cooling and power supply of the machine")
             : results.ok("under load", text);
  load.figures = {
      {"fp8_tflops", speed}, {"sm_clock_mhz", clock}, {"power_watts", power}, {"temperature_c", temperature}};
}

}  // namespace

ProductsOutcome check_products(Device& device, const DoctorRun& run,
                               const std::function<std::optional<GpuState>()>& state) {
  ProductsOutcome outcome;
  CheckResults results(kArea);
  if (run.shapes.empty()) {
    results.warning("shapes", run.problem.empty() ? "no layer of this run can be in FP8" : run.problem,
                    run.problem.empty() ? "'octet plan' lists every layer with its reason"
                                        : "nothing was multiplied; correct the configuration");
    outcome.results = results.take();
    return outcome;
  }
  // Times of an emulation would say nothing.
  const bool timed = device.capabilities().separate_memory;
  const ProductOptions options{.fp8 = run.is_planned ? run.resolved.plan.numerics.fp8 : Fp8Config{},
                               .timed = timed};
  double bf16_ms = 0, fp8_ms = 0;
  bool native = timed;
  try {
    for (const ProductShape& shape : run.shapes) {
      ProductOptions tried = options;
      if (shape.layer == "head") tried.fp8 = options.fp8.of_head();
      const std::vector<ProductTrial> trials = try_products(device, shape, tried);
      for (const ProductTrial& trial : trials) {
        native = native && trial.fp8_kind == "native";
        bf16_ms += trial.bf16.ms;
        fp8_ms += trial.fp8.ms;
      }
      results.add(judge_products(shape, trials, timed));
    }
    if (timed) report_load(results, device, run.shapes.front(), options, state);
  } catch (const Error& error) {
    native = false;
    results.failure("test", error.what(), "a run would fail in the same way; see the results above");
  }
  if (!timed) results.ok("speed", "not measured: FP8 is emulated on the CPU, exactly but slower than BF16");
  outcome.native = native;
  if (native && fp8_ms > 0) outcome.ratio = bf16_ms / fp8_ms;
  outcome.results = results.take();
  return outcome;
}

}  // namespace octet
