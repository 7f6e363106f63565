#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"
#include "bench/gpu_rates.h"
#include "command.h"
#include "plan/coverage.h"
#include "plan/overview.h"
#include "plan/setup.h"
#include "report/text.h"
#include "run_arguments.h"

namespace octet {
namespace {

constexpr const char* kHelp =
    "Usage: octet plan [CONFIG.yaml] [--gpu NAME] [--key value]...\n\n"
    "Shows what a run would do before it is started: every layer with its shape, share of the work and "
    "precision,\n"
    "why anything is not in FP8, the share of all work in FP8, and the memory plan. Nothing is trained.\n"
    "Memory is counted as 'octet train' counts it. Where no dataset is named, a -tiny preset is taken for "
    "the demo\n"
    "(128 tokens, samples), and any other model for a run on a dataset: 1024 tokens, no samples unless "
    "sample_steps\n"
    "asks for them. Keys as for 'octet train --help', and:\n";

struct PlanFlags {
  std::string gpu;  // "": the one of this machine
};

KeyTable<PlanFlags> plan_keys() {
  KeyTable<PlanFlags> table;
  table.add("gpu", &PlanFlags::gpu,
            "Plan for a GPU that need not be there (h200): its memory, and the expected FP8/BF16 ratio of "
            "the matrix work on it. Without it, the GPU of this machine is taken where it is known.");
  return table;
}

}  // namespace

int plan_command(std::span<const std::string> arguments) {
  const KeyTable<PlanFlags> own = plan_keys();
  PlanFlags flags;
  const RunArguments parsed = parse_run_arguments("plan", own, flags, arguments);
  if (parsed.help) {
    fmt::print("{}{}", kHelp, keys_help(own.keys()));
    return kExitDone;
  }
  std::string& gpu = flags.gpu;
  if (!gpu.empty() && !gpu_rates(gpu))
    fail_config("no rates were measured on a GPU called '{}'; known: h200", gpu);
  std::unique_ptr<Device> planned;
  if (!gpu.empty()) {
    const GpuRates asked = *gpu_rates(gpu);
    planned = make_planned_gpu(fmt::format("{} (planned)", asked.gpu), asked.memory, asked.multiprocessors);
  }
  const TrainConfig config = load_plan_config(parsed.config_file, parsed.settings);
  warn_of_idle_settings({&config, 1}, planned || runs_on_gpu(config));
  if (planned && config.device == TrainConfig::Device::Cpu)
    log_warning("device cpu has no effect: --gpu {} says what is planned for", gpu);
  if (config.assumes_data)
    log_info(
        "no dataset given: planning for {}-token sequences ('octet train' without a dataset trains the demo)",
        config.max_seq_length);
  for (const std::string& missing : missing_data(config))
    log_warning("this run would not start: {}", missing);
  const std::unique_ptr<Device> device = planned ? std::move(planned) : make_device(config);
  const ModelConfig model = choose_model(config).config;
  const RunPlan plan = plan_run(config, model, *device);
  const Transformer transformer(model, plan.shape, plan.numerics, *device);

  fmt::print("{}: {} parameters, {} layers, width {}; {} x {} tokens; {} on {}\n\n", model.name,
             human_count(static_cast<double>(model.parameter_count())), model.layers, model.width,
             plan.shape.rows, plan.shape.length, plan.precision_label, device->description());
  fmt::print("{}\n{}", coverage_text(transformer), memory_text(plan));
  fmt::print("recomputed in backward: {}\n", recompute_text(plan.shape.checkpointing));
  if (plan.shortage) fmt::print("this does not fit: {}\n", plan.shortage->text);
  if (gpu.empty()) gpu = device->description();
  // The rates are those of products with one scale for each tensor.
  const Fp8Recipe recipe = plan.numerics.fp8.recipe;
  const bool has_rates = plan.is_fp8() && (recipe == Fp8Recipe::Delayed || recipe == Fp8Recipe::Current);
  if (const std::optional<GpuRates> rates = gpu_rates(gpu); rates && has_rates) {
    fmt::print("\nexpected FP8/BF16 ratio of the matrix work on {}: {:.2f}x\n", rates->gpu,
               expected_matrix_ratio(transformer, *rates));
  }
  return kExitDone;
}

}  // namespace octet
