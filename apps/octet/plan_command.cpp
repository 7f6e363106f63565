#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"
#include "bench/gpu_rates.h"
#include "command.h"
#include "config/config.h"
#include "plan/coverage.h"
#include "plan/device_choice.h"
#include "plan/overview.h"
#include "report/text.h"

namespace octet {
namespace {

struct Options {
  std::string gpu;  // "": the one of this machine
  RunArguments run;
};

int run(const Options& options) {
  std::string gpu = options.gpu;
  if (!gpu.empty() && !gpu_rates(gpu)) fail_config("--gpu: no measured speeds for '{}', expected h200", gpu);
  std::unique_ptr<Device> planned;
  if (!gpu.empty()) {
    const GpuRates asked = *gpu_rates(gpu);
    planned = make_planned_gpu(fmt::format("{} (planned)", asked.gpu), asked.memory, asked.multiprocessors);
  }
  const TrainConfig given = load_plan_config(options.run.config_file, options.run.settings);
  const ModelChoice choice = choose_model(given);
  const ModelConfig& model = choice.config;
  const TrainConfig config = keys_with_model(given, model);
  warn_of_idle_settings({&config, 1}, planned || runs_on_gpu(config));
  if (planned && config.device == TrainConfig::Device::Cpu)
    log_warning("device cpu has no effect: the plan is for --gpu {}", gpu);
  if (config.assumes_data)
    log_info(
        "no dataset given: planning for {}-token sequences ('octet train' without a dataset trains the demo)",
        config.max_seq_length);
  std::vector<std::string> missing = missing_data(config, choice);
  try {
    check_weights(choice);
  } catch (const Error& error) {
    missing.emplace_back(error.what());
  }
  for (const std::string& what : missing) log_warning("this run would not start: {}", what);
  const std::unique_ptr<Device> device = planned ? std::move(planned) : make_device(config);
  const RunPlan plan = plan_run(config, model, *device, {.adapters = choice.adapters});
  const Transformer transformer(model, plan.shape, plan.numerics, *device, plan.finetuning);

  fmt::print("{}: {} parameters, {} layers, width {}; {} x {} tokens; {} on {}\n\n", model.name,
             human_count(static_cast<double>(model.parameter_count())), model.layers, model.width,
             plan.shape.rows, plan.shape.length, plan.precision_label, device->description());
  if (transformer.has_adapters()) fmt::print("{}\n\n", adapters_text(model, plan.finetuning));
  fmt::print("{}\n{}", coverage_text(transformer), memory_text(plan));
  fmt::print("recomputed in backward: {}\n", recompute_text(plan.shape.checkpointing));
  if (transformer.has_adapters() && plan.is_fp8()) {
    fmt::print("FP8 copies of the frozen matrices: {}\n",
               plan.finetuning.frozen_copies == FrozenCopies::Two
                   ? "two, of each matrix and its transpose"
                   : "one; a matrix is transposed before it is used in backward");
  }
  if (plan.shortage) fmt::print("this does not fit: {}\n", plan.shortage->text);
  if (gpu.empty()) gpu = device->description();
  // The rates were measured with one scale per tensor.
  const Fp8Recipe recipe = plan.numerics.fp8.recipe;
  const bool has_rates = plan.is_fp8() && (recipe == Fp8Recipe::Delayed || recipe == Fp8Recipe::Current);
  if (const std::optional<GpuRates> rates = gpu_rates(gpu); rates && has_rates) {
    if (transformer.has_adapters()) {
      Numerics bf16 = plan.numerics;
      bf16.precision = Precision::Bf16;
      const int64_t need = Transformer(model, plan.shape, bf16, *device, plan.finetuning).plan().peak_bytes();
      fmt::print("\n{}\n", expected_gain_text(transformer, *rates, need <= plan.limit.bytes));
      return kExitDone;
    }
    fmt::print("\nexpected speedup of the matrix products, FP8 over BF16, on {}: {:.2f}x\n", rates->gpu,
               expected_matrix_ratio(transformer, *rates));
  }
  return kExitDone;
}

}  // namespace

Command plan_command() {
  CommandBuilder<Options> builder("plan",
                                  "Show the layers, FP8 coverage and memory of a run before it starts");
  builder.line.about =
      "Shows what a run would do. For every layer: its shape, its share of the work and its precision, "
      "and why it does not run in FP8 if it does not. For the run: the share of the work in FP8 and the "
      "memory plan. Nothing is trained.\n"
      "Memory is counted as 'octet train' counts it. Without a dataset, a -tiny preset is planned as the "
      "demo (128 tokens, with samples). Any other model is planned for 1024-token sequences, without "
      "samples unless sample_steps is set.";
  builder.keys
      .add("gpu", &Options::gpu,
           "Plan for this GPU, which need not be in this machine. Uses its memory size and its measured "
           "FP8 and BF16 speeds. Known: h200.")
      .value("NAME")
      .note("the GPU of this machine");
  builder.run_arguments(&Options::run);
  return builder.command(run);
}

}  // namespace octet
