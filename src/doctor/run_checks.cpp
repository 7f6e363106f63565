#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "base/error.h"
#include "doctor/checks.h"
#include "model/transformer.h"
#include "plan/resolve.h"
#include "report/text.h"

namespace octet {
namespace {

// Enough to keep a GPU busy, and little enough for seconds on a CPU.
constexpr int64_t kGpuTokens = 8192, kCpuTokens = 64;

// "layers.3.mlp.up" is "mlp.up": all layers have the same shapes.
std::string name_without_layer(const std::string& name) {
  std::string result = name;
  if (result.starts_with("layers.")) {
    const size_t dot = result.find('.', 7);
    if (dot != std::string::npos) result = result.substr(dot + 1);
  }
  return result;
}

// Of the Linears that run in FP8, each shape once; of all but the head in a run without FP8.
std::vector<ProductShape> tested_shapes(const Transformer& transformer, bool is_fp8, int64_t most_tokens) {
  std::vector<ProductShape> shapes;
  for (const Linear* linear : transformer.linears()) {
    const LinearSite& site = linear->spec.site;
    const auto same = [&](const ProductShape& shape) { return shape.out == site.out && shape.in == site.in; };
    const bool wanted = is_fp8 ? linear->spec.choice.any_fp8() : site.kind != WorkKind::Head;
    if (!wanted || std::ranges::any_of(shapes, same)) continue;
    shapes.push_back({.layer = name_without_layer(site.name),
                      .tokens = std::min(transformer.shape().tokens(), most_tokens),
                      .out = site.out,
                      .in = site.in});
  }
  return shapes;
}

// Layers that do not run in FP8 although the run is in FP8, with the reason; equal reasons once.
std::string exceptions_text(const Transformer& transformer) {
  std::vector<std::string> reasons;
  for (const Linear* linear : transformer.linears()) {
    for (const Product product : kProducts) {
      const ProductChoice& choice = linear->spec.choice[product];
      if (choice.fp8 || choice.reason.empty()) continue;
      const std::string text =
          fmt::format("{}: {}", name_without_layer(linear->spec.site.name), choice.reason);
      if (std::ranges::find(reasons, text) == reasons.end()) reasons.push_back(text);
    }
  }
  return fmt::format("{}", fmt::join(reasons, "; "));
}

}  // namespace

void plan_doctor_run(DoctorRun& run, const std::shared_ptr<Device>& device) {
  try {
    resolve_stages(run.resolved, Wanted::by_doctor(device));
    run.is_planned = true;
    const RunPlan& plan = run.resolved.plan;
    const Transformer transformer(run.resolved.model.config, plan.shape, plan.numerics, *device,
                                  plan.finetuning);
    run.shapes = tested_shapes(transformer, plan.is_fp8(),
                               device->capabilities().separate_memory ? kGpuTokens : kCpuTokens);
    run.exceptions = exceptions_text(transformer);
  } catch (const Error& error) {
    run.problem = error.what();
  }
}

std::vector<CheckResult> check_run(const DoctorRun& run) {
  CheckResults results("run");
  if (!run.is_planned) {
    results.failure("configuration", run.problem,
                    "correct the configuration; 'octet keys WORD' explains keys");
    return results.take();
  }
  const RunPlan& plan = run.resolved.plan;
  const std::string coverage =
      fmt::format("{}; {:.1f} % of the work runs in FP8", plan.precision_label, 100 * plan.fp8_share);
  if (!plan.fallback_reason.empty()) {
    results.add(run.resolved.keys.require_fp8 ? Health::Failure : Health::Warning, "precision",
                fmt::format("{}: {}", coverage, plan.fallback_reason),
                "'octet plan' lists every layer with its reason");
  } else {
    CheckResult& result =
        results.ok("precision", run.exceptions.empty() || !plan.is_fp8()
                                    ? coverage
                                    : fmt::format("{} (not in FP8: {})", coverage, run.exceptions));
    result.figures = {{"fp8_share", plan.fp8_share}};
  }
  const std::string need = human_bytes(static_cast<double>(plan.bytes()));
  if (plan.shortage) {
    results.failure("memory", fmt::format("the run needs {}: {}", need, plan.shortage->text),
                    "'octet plan' shows where the memory goes");
  } else {
    results
        .ok("memory",
            fmt::format("the run needs {} of {}", need, human_bytes(static_cast<double>(plan.limit.bytes))))
        .figures = {{"bytes", static_cast<double>(plan.bytes())}};
  }
  std::vector<std::string> missing = missing_data(run.resolved.keys, run.resolved.model);
  try {
    check_weights(run.resolved.model);
  } catch (const Error& error) {
    missing.emplace_back(error.what());
  }
  for (const std::string& what : missing)
    results.failure("files", what, "the run would not start: correct what is named here");
  if (missing.empty()) results.ok("files", "model and data are there");
  return results.take();
}

}  // namespace octet
