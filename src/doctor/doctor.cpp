#include "doctor/doctor.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "doctor/checks.h"
#include "plan/device_choice.h"
#include "plan/run_spec.h"
#include "report/text.h"

namespace octet {
namespace {

constexpr const char* name_of(Health health) {
  switch (health) {
    case Health::Ok:
      return "ok";
    case Health::Warning:
      return "warning";
    case Health::Failure:
      return "failure";
  }
  return "";
}

std::string verdict_of(const DoctorReport& report, const DoctorRun& run, const CudaProbe& probe) {
  std::string text;
  const std::string model = run.has_model() ? run.resolved.model.config.name : "the model";
  if (report.fp8_native && report.fp8_ratio) {
    text = fmt::format("FP8 runs here: the matrix products of {} are {:.2f}x as fast as in BF16", model,
                       *report.fp8_ratio);
  } else if (report.fp8_native) {
    text = "FP8 runs here";
  } else if (!probe.usable) {
    text =
        "FP8 does not run on this machine: there is no usable GPU. octet trains here on the CPU, with emulated FP8";
  } else {
    text = "FP8 does not run natively here with these settings";
  }
  const int failures = report.count(Health::Failure), warnings = report.count(Health::Warning);
  return fmt::format("{}; {}, {}", text, counted(failures, "failure"), counted(warnings, "warning"));
}

}  // namespace

int DoctorReport::count(Health health) const {
  return static_cast<int>(std::ranges::count(results, health, &CheckResult::health));
}

DoctorReport examine(const TrainConfig& config, bool is_given,
                     const std::function<void(const CheckResult&)>& show) {
  DoctorReport report;
  const auto add = [&](std::vector<CheckResult> results) {
    for (CheckResult& result : results) {
      show(result);
      report.results.push_back(std::move(result));
    }
  };
  const CudaProbe probe = probe_cuda();
  std::string nvml_problem;
  const std::shared_ptr<const Nvml> nvml = Nvml::open(nvml_problem);
  const bool needs_gpu = config.device == DeviceKey::Cuda || config.require_fp8;
  add(check_gpu(probe, nvml.get(), nvml_problem, needs_gpu));
  add(check_libraries(needs_gpu));

  // A configuration that insists on a GPU is planned on the CPU if there is none: the rest can still be checked.
  DoctorRun run{.is_given = is_given};
  TrainConfig& keys = run.resolved.keys;
  keys = config;
  if (!probe.usable) keys.device = DeviceKey::Cpu;
  const std::shared_ptr<Device> device = make_device(device_spec(keys, keys.deterministic));
  plan_doctor_run(run, device);
  const auto state = [&]() -> std::optional<GpuState> {
    return nvml && probe.usable ? nvml->state(probe.uuid) : std::nullopt;
  };
  ProductsOutcome products = check_products(*device, run, state);
  report.fp8_native = products.native;
  report.fp8_ratio = products.ratio;
  add(std::move(products.results));
  if (is_given) add(check_run(run));
  add(check_host(run));
  add(check_services(run));
  add(check_environment());
  report.verdict = verdict_of(report, run, probe);
  return report;
}

std::string check_text(const CheckResult& result) {
  constexpr int kIndent = 31;
  std::string text = fmt::format("  {:<7}  {:<18}  {}\n", name_of(result.health), result.name, result.text);
  if (!result.remedy.empty()) text += fmt::format("{:<{}}-> {}\n", "", kIndent, result.remedy);
  return text;
}

std::string doctor_json(const DoctorReport& report) {
  using Json = nlohmann::ordered_json;
  Json json = {{"verdict", report.verdict},
               {"fp8_native", report.fp8_native},
               {"fp8_over_bf16", report.fp8_ratio ? Json(*report.fp8_ratio) : Json(nullptr)},
               {"failures", report.count(Health::Failure)},
               {"warnings", report.count(Health::Warning)},
               {"checks", Json::array()}};
  for (const CheckResult& result : report.results) {
    Json item = {{"health", name_of(result.health)},
                 {"area", result.area},
                 {"name", result.name},
                 {"text", result.text}};
    if (!result.remedy.empty()) item["remedy"] = result.remedy;
    for (const auto& [name, value] : result.figures) item["figures"][name] = value;
    json["checks"].push_back(std::move(item));
  }
  return json.dump(2, ' ', true, Json::error_handler_t::replace) + "\n";
}

}  // namespace octet
