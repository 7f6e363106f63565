#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/input_errors.h"
#include "base/log.h"
#include "base/print.h"
#include "bench/gpu_rates.h"
#include "bench/known_gpus.h"
#include "bench/rank_memory.h"
#include "command.h"
#include "config/notes.h"
#include "import/import.h"
#include "plan/coverage.h"
#include "plan/device_choice.h"
#include "plan/overview.h"
#include "plan/resolve.h"
#include "plan/sharding_choice.h"
#include "report/text.h"

namespace octet {
namespace {

// Models of this width (GPT-2 124M) and more are faster in FP8; llama-tiny is slower. bench/RESULTS.md has the figures.
constexpr int64_t kSmallWidth = 768;

struct Options {
  std::string gpu;  // "": the one of this machine
  int64_t ranks = 0, nodes = 1;
  bool json = false;
  RunArguments run;
};

RankPlace place_of(const Options& options) {
  const auto ranks = static_cast<int>(std::max<int64_t>(options.ranks, 1));
  return {.ranks = ranks, .local_ranks = ranks / static_cast<int>(options.nodes)};
}

void print_ranks(const RankPlace& place, const StepKeys& keys, const PlanTarget& target,
                 const RunPlan& plan) {
  print_stdout("\n{} on {}; {}\n\n", counted(place.ranks, "rank"), counted(place.nodes(), "node"),
               sharding_text(plan.finetuning.sharding));
  print_stdout("{}\n", modes_text(memory_of_modes(keys, target, plan.shape, plan.numerics, place.local_ranks),
                                  plan.finetuning.sharding.mode));
}

// FP8 without FP8 tensor cores would be emulated, slower than BF16: nobody wants such a run.
void fall_back_without_fp8(PrecisionKeys& keys, const KnownGpu& gpu) {
  if (gpu.fp8 != Fp8Kernels::None || keys.mixed_precision != Precision::Fp8) return;
  if (keys.require_fp8) fail_config("require_fp8 is set, but {} has no FP8 tensor cores", gpu.name);
  log_warning("{} has no FP8 tensor cores: this is a plan in BF16, and FP8 gains nothing there", gpu.name);
  keys.mixed_precision = Precision::Bf16;
}

// Prints what is known, and not known, about a GPU given by name.
void print_support(const KnownGpu& gpu, int64_t usable_bytes, bool has_speed) {
  if (!gpu.support.empty()) print_stdout("\n{}: {}\n", gpu.name, gpu.support);
  if (gpu.key != "h200") {
    print_stdout(
        "it is taken to have {:g} GiB free, of which this run may use {}; --device_memory_limit_gb sets another limit\n",
        gpu.memory_gib, human_bytes(static_cast<double>(usable_bytes)));
  }
  if (!has_speed) print_stdout("no speed is predicted: octet has measured the H200 only\n");
}

// The smallest number of GPUs, up to 1,024, on which the run fits if they share everything; 0 if there is none.
int64_t ranks_that_fit(StepKeys keys, PlanTarget target, const RunPlan& plan) {
  keys.sharding_mode = ShardingKey::FsdpFull;
  for (int ranks = 2; ranks <= 1024; ranks *= 2) {
    target.sharding = sharding_of(keys, {.ranks = ranks, .local_ranks = ranks});
    if (plan_step(keys, target, plan.shape, plan.numerics).need() <= plan.limit.bytes) return ranks;
  }
  return 0;
}

// The fields of plan.json that are known before the run, with the parts of the memory and whether it fits.
std::string plan_json(const ModelConfig& model, const RunPlan& plan, const std::string& device) {
  nlohmann::ordered_json memory = nlohmann::ordered_json::object();
  const auto bytes = plan.memory.bytes_in_arena();
  for (size_t i = 0; i < kMemoryCategories.size(); ++i)
    memory[std::string(name_of(kMemoryCategories[i]))] = bytes[i];
  memory["samples"] = plan.sampling_bytes;
  const nlohmann::ordered_json json = {{"model", model.name},
                                       {"parameters", model.parameter_count()},
                                       {"device", device},
                                       {"precision", plan.precision_label},
                                       {"fallback", plan.fallback_reason},
                                       {"fp8_share", plan.fp8_share},
                                       {"fits", !plan.shortage.has_value()},
                                       {"shortage", plan.shortage ? plan.shortage->text : ""},
                                       {"memory_bytes", plan.bytes()},
                                       {"memory_limit", plan.limit.bytes},
                                       {"memory", memory},
                                       {"recompute", recompute_text(plan.shape.checkpointing)},
                                       {"sequences_per_step", plan.sequences_per_step()},
                                       {"sequence_length", plan.shape.length},
                                       {"ranks", plan.ranks()}};
  return json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

int run(const Options& options) {
  std::string gpu = options.gpu;
  std::optional<KnownGpu> asked;
  std::unique_ptr<Device> planned;
  if (!gpu.empty()) {
    asked = known_gpu(gpu);
    gpu = asked->name;
    planned = make_planned_gpu(fmt::format("{} (planned)", gpu), asked->memory(), asked->multiprocessors,
                               asked->fp8);
  }
  TrainConfig given = load_plan_config(read_run_file(options.run.config_file), options.run.settings);
  if (asked && !asked->has_kernels) log_warning("{}: {}", asked->name, asked->support);
  if (asked) fall_back_without_fp8(given, *asked);
  if (given.verify)
    log_warning(
        "verify has no effect: octet plan reads no shards; octet prepare --verify and octet train --verify do");
  const bool on_gpu = planned || runs_on_gpu(given.device);
  tell_of_settings({&given, 1}, on_gpu);
  if (planned && given.device == DeviceKey::Cpu)
    log_warning("device cpu has no effect: the plan is for --gpu {}", gpu);
  const ResolvedRun run =
      reading_input([&] { return resolve(given, Wanted::by_plan(place_of(options), std::move(planned))); });
  const TrainConfig& config = run.keys;
  const ModelConfig& model = run.model.config;
  const RunPlan& plan = run.plan;
  Device* const device = run.device.get();
  if (config.assumes_data)
    log_info(
        "no dataset given: planning for {}-token sequences ('octet train' without a dataset trains the demo)",
        config.max_seq_length);
  std::vector<std::string> missing = missing_data(config, run.model);
  try {
    check_weights(run.model);
  } catch (const Error& error) {
    missing.emplace_back(error.what());
  }
  for (const std::string& what : missing) log_warning("this run would not start: {}", what);
  if (options.json) {
    print_stdout("{}", plan_json(model, plan, device->description()));
    return kExitDone;
  }
  const Transformer transformer(model, plan.shape, plan.numerics, *device, plan.finetuning);

  print_stdout("{}: {} parameters, {} {}, width {}; {} x {} tokens; {} on {}\n\n", model.name,
               human_count(static_cast<double>(model.parameter_count())), model.layers,
               model.layers == 1 ? "layer" : "layers", model.width, plan.shape.rows, plan.shape.length,
               plan.precision_label, device->description());
  if (transformer.has_adapters()) print_stdout("{}\n\n", adapters_text(model, plan.finetuning));
  print_stdout("{}\n{}", coverage_text(transformer), memory_text(plan));
  print_stdout("recomputed in backward: {}\n", recompute_text(plan.shape.checkpointing));
  if (plan.transposing_layers > 0) {
    print_stdout("transposed in backward: the FP8 weights of {} of {} layers, which keep one copy of them\n",
                 plan.transposing_layers, model.layers);
  }
  const PlanTarget target{.model = model,
                          .device = *device,
                          .limit = plan.limit,
                          .samples = plan_options(config).samples,
                          .adapters = run.model.adapters,
                          .sharding = plan.finetuning.sharding};
  if (plan.shortage) print_stdout("this does not fit: {}\n", plan.shortage->text);
  const bool can_run = !asked || asked->has_kernels;
  if (plan.shortage && plan.shortage->remedies.fitting.empty() && options.ranks <= 1 && can_run) {
    if (const int64_t ranks = ranks_that_fit(config, target, plan))
      print_stdout(
          "it fits on {0} such GPUs that share everything: add --ranks {0} --sharding_mode fsdp_full\n",
          ranks);
  }
  if (gpu.empty()) gpu = device->description();
  // The rates were measured with one scale per tensor.
  const bool has_rates = plan.is_fp8() && has_scale_per_tensor(plan.numerics.fp8.recipe);
  const std::optional<GpuRates> rates = gpu_rates(gpu);
  if (rates && has_rates && options.ranks == 0 && model.width < kSmallWidth)
    print_stdout(
        "\nthis model is small: matrix products are a small part of its step, and FP8 may be slower than BF16. "
        "Predicted speeds are too high\n");
  if (options.ranks > 0) {
    print_ranks(place_of(options), config, target, plan);
    if (asked) print_support(*asked, plan.limit.bytes, true);
    return kExitDone;
  }
  if (asked) print_support(*asked, plan.limit.bytes, rates.has_value());
  if (!rates || !has_rates) return kExitDone;
  if (transformer.has_adapters()) {
    Numerics bf16 = plan.numerics;
    bf16.precision = Precision::Bf16;
    const int64_t need = Transformer(model, plan.shape, bf16, *device, plan.finetuning).plan().peak_bytes();
    print_stdout("\n{}\n", expected_gain_text(transformer, *rates, need <= plan.limit.bytes));
    return kExitDone;
  }
  print_stdout("\nexpected speedup of the matrix products, FP8 over BF16, on {}: {:.2f}x\n", rates->gpu,
               expected_matrix_ratio(transformer, *rates));
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
      "demo (128 tokens). Any other model is planned for 1024-token sequences.";
  builder.keys
      .add(
          "gpu", &Options::gpu,
          fmt::format(
              "Plan for this GPU, which need not be in this machine: its memory and its kinds of FP8, and speeds "
              "where octet has measured them (h200). Known: {}.",
              known_gpu_keys()))
      .value("NAME")
      .note("the GPU of this machine");
  builder.keys
      .add("ranks", &Options::ranks,
           "Plan for this many GPUs in all: memory of each in every sharding_mode. 0: off.")
      .at_least(0)
      .at_most(1 << 16);
  builder.keys
      .add("nodes", &Options::nodes, "With ranks: machines that the GPUs are on, the same number on each.")
      .at_least(1)
      .at_most(1 << 16);
  builder.keys.add("json", &Options::json, "Print the run and its memory as one JSON object.");
  builder.check([](const Options& options, std::vector<std::string>& errors) {
    const int64_t ranks = std::max<int64_t>(options.ranks, 1);
    if (options.nodes > 1 && options.ranks == 0)
      errors.push_back(fmt::format(
          "--nodes is {}, but --ranks is not given; --ranks is the number of GPUs in all", options.nodes));
    else if (ranks % options.nodes != 0)
      errors.push_back(fmt::format("--ranks is {} and --nodes is {}; expected the same number on every node",
                                   options.ranks, options.nodes));
  });
  builder.run_arguments(&Options::run);
  return builder.command(run);
}

}  // namespace octet
