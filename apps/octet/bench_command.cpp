#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "base/print.h"
#include "bench/bench.h"
#include "bench/comm_bench.h"
#include "command.h"
#include "config/notes.h"
#include "config/step_range.h"
#include "dist/launch_environment.h"
#include "import/import.h"
#include "io/output_file.h"
#include "plan/device_choice.h"
#include "plan/resolve.h"
#include "report/table.h"
#include "report/text.h"
#include "train/rank_start.h"

namespace octet {
namespace {

constexpr const char* kVariants = "bf16, fp32, fp8, delayed, current, block, mxfp8";

struct Options {
  std::vector<std::string> variants;  // empty: those that the configuration says
  int64_t bench_steps = 10;
  int64_t bench_warmup = 3;
  bool profile = false;
  bool comm = false;
  std::string json;
  RunArguments run;
};

// BF16, as the baseline, and the precision of the configuration.
std::vector<std::string> configured_variants(const PrecisionKeys& keys) {
  switch (keys.mixed_precision) {
    case Precision::Bf16:
      return {"bf16"};
    case Precision::Fp32:
      return {"bf16", "fp32"};
    case Precision::Fp8:
      break;
  }
  return {"bf16", config_text(keys, "fp8_recipe")};
}

// `is_named`: in --variants. Whoever names mxfp8 wants it, even if the GPU must emulate it. Without a name, the variant is what
// `octet train` runs with this configuration.
TrainConfig variant_config(TrainConfig config, const std::string& variant, bool is_named) {
  config.mixed_precision = Precision::Fp8;
  if (variant == "bf16") {
    config.mixed_precision = Precision::Bf16;
  } else if (variant == "fp32") {
    config.mixed_precision = Precision::Fp32;
  } else if (variant == "delayed" || variant == "fp8") {
    config.fp8_recipe = Fp8Recipe::Delayed;
  } else if (variant == "current") {
    config.fp8_recipe = Fp8Recipe::Current;
  } else if (variant == "block") {
    config.fp8_recipe = Fp8Recipe::Block;
  } else if (variant == "mxfp8") {
    config.fp8_recipe = Fp8Recipe::Mxfp8;
    config.fp8_emulation = config.fp8_emulation || is_named;
  } else {
    fail_config("--variants: '{}' is unknown, expected {}", variant, kVariants);
  }
  return config;
}

// TFLOP/s or GB/s: those of a CPU are small and need more digits.
std::string rate_text(double rate) {
  return rate < 10 ? fmt::format("{:.3g}", rate) : fmt::format("{:.1f}", rate);
}

// Time by kind, and for each kind its ops with their rates.
std::string profile_text(const BenchResult& result) {
  double total = 0;
  for (const OpTime& time : result.profile) total += time.ms;
  Table table({{"kind"},
               {"calls", Align::Right},
               {"ms", Align::Right},
               {"share", Align::Right},
               {"GB/s", Align::Right},
               {"TFLOP/s", Align::Right}});
  const auto add = [&](const std::string& name, const OpTime& time) {
    const auto rate = [&](double amount, double unit) {
      return amount > 0 && time.ms > 0 ? rate_text(amount / unit / time.ms * 1e3) : "";
    };
    table.add_row({name, fmt::format("{}", time.calls), fmt::format("{:.2f}", time.ms),
                   fmt::format("{:.1f} %", 100 * time.ms / total), rate(time.bytes, 1e9),
                   rate(time.flops, 1e12)});
  };
  for (size_t begin = 0; begin < result.profile.size();) {
    size_t end = begin;
    OpTime sum;
    while (end < result.profile.size() && result.profile[end].kind == result.profile[begin].kind) {
      const OpTime& time = result.profile[end++];
      sum.calls += time.calls;
      sum.ms += time.ms;
      sum.bytes += time.bytes;
      sum.flops += time.flops;
    }
    add(result.profile[begin].kind, sum);
    for (size_t i = begin; i < end && end - begin > 1; ++i)
      add(fmt::format("  {}", result.profile[i].op), result.profile[i]);
    begin = end;
  }
  table.add_rule();
  table.add_row({"one step", "", fmt::format("{:.2f}", total), "", "", ""});
  return table.str();
}

nlohmann::json profile_json(const BenchResult& result) {
  nlohmann::json ops = nlohmann::json::array();
  for (const OpTime& time : result.profile) {
    ops.push_back({{"kind", time.kind},
                   {"op", time.op},
                   {"calls", time.calls},
                   {"ms", time.ms},
                   {"bytes", time.bytes},
                   {"flops", time.flops}});
  }
  return ops;
}

std::string model_name(const ModelKeys& keys) {
  return keys.model_name_or_path.empty() ? keys.model_preset : keys.model_name_or_path;
}

std::string name_of(const BenchResult& result) {
  return result.recipe.empty() ? result.precision : fmt::format("{} {}", result.precision, result.recipe);
}

double ratio_to_first(const BenchResult& result, const std::vector<BenchResult>& results) {
  return result.tokens_per_second / results.front().tokens_per_second;
}

std::string results_text(const std::vector<BenchResult>& results) {
  std::vector<Table::Column> columns = {{"precision"},
                                        {"recompute"},
                                        {"graph replays", Align::Right},
                                        {"ms/step", Align::Right},
                                        {"tokens/s", Align::Right},
                                        {"TFLOP/s", Align::Right},
                                        {"GEMM ceiling", Align::Right},
                                        {"memory", Align::Right},
                                        {"loss", Align::Right},
                                        {"against the first", Align::Right}};
  const bool has_energy =
      std::ranges::any_of(results, [](const BenchResult& r) { return r.joules_per_1000_tokens.has_value(); });
  if (has_energy) columns.push_back({"J/1,000 tokens", Align::Right});
  Table table(columns);
  for (const BenchResult& r : results) {
    const GraphCounts& graphs = r.graph_counts;
    std::vector<std::string> row = {
        name_of(r),
        r.gradient_checkpointing,
        r.cuda_graphs ? fmt::format("{} of {}", graphs.replayed, graphs.replayed + graphs.plain) : "off",
        fmt::format("{:.2f}", r.step_ms),
        fmt::format("{:.0f}", r.tokens_per_second),
        rate_text(r.model_tflops),
        r.gemm_ceiling_share ? fmt::format("{:.1f} %", 100 * *r.gemm_ceiling_share) : "-",
        human_bytes(static_cast<double>(r.memory_bytes)),
        fmt::format("{:.4f}", r.loss),
        fmt::format("{:.2f}x", ratio_to_first(r, results))};
    if (has_energy)
      row.push_back(r.joules_per_1000_tokens ? fmt::format("{:.3g}", *r.joules_per_1000_tokens) : "-");
    table.add_row(std::move(row));
  }
  return table.str();
}

nlohmann::json results_json(const std::vector<BenchResult>& results, const TrainConfig& config,
                            const Options& options) {
  nlohmann::json runs = nlohmann::json::array();
  for (const BenchResult& r : results) {
    nlohmann::json run = {{"model", model_name(config)},
                          {"device", r.device},
                          {"rows", r.rows},
                          {"length", r.length},
                          {"gradient_accumulation_steps", r.accumulation},
                          {"finetuning_type", config_text(config, "finetuning_type")},
                          {"steps", options.bench_steps},
                          {"warmup_steps", options.bench_warmup},
                          {"optimizer_state", config_text(config, "optimizer_state")},
                          {"master_weights", config_text(config, "master_weights")},
                          {"gradient_checkpointing", r.gradient_checkpointing},
                          {"cuda_graphs", r.cuda_graphs},
                          {"graph_replays", r.graph_counts.replayed},
                          {"graph_micro_steps", r.graph_counts.replayed + r.graph_counts.plain},
                          {"deterministic", config.deterministic},
                          {"precision", r.precision},
                          {"recipe", r.recipe},
                          {"fp8_format", r.fp8_format},
                          {"fp8_head", r.fp8_head},
                          {"fp8_head_products", r.fp8_head_products},
                          {"transposing_layers", r.transposing_layers},
                          {"step_ms", r.step_ms},
                          {"tokens_per_second", r.tokens_per_second},
                          {"model_tflops", r.model_tflops},
                          {"memory_bytes", r.memory_bytes},
                          {"loss", r.loss},
                          {"ratio", ratio_to_first(r, results)},
                          {"gemm_ceiling_share", nullptr}};
    if (config.is_lora()) run["adapters"] = r.adapters;
    if (r.gemm_ceiling_share) run["gemm_ceiling_share"] = *r.gemm_ceiling_share;
    if (r.joules_per_1000_tokens) run["joules_per_1000_tokens"] = *r.joules_per_1000_tokens;
    if (!r.profile.empty()) run["profile"] = profile_json(r);
    runs.push_back(std::move(run));
  }
  return runs;
}

void write_json(const std::string& path, const nlohmann::json& results) {
  write_output_file(path, results.dump(1) + "\n");
}

int run_comm(const Options& options) {
  const TrainConfig given = load_plan_config(read_run_file(options.run.config_file), options.run.settings);
  const std::unique_ptr<Ranks> ranks = join_ranks(rank_spec(given, given.device), to_yaml(given));
  const RankPlace& place = ranks->place();
  if (!options.json.empty() && place.is_first()) check_output_file("--json", options.json);
  const ResolvedRun run = resolve(given, Wanted::by_bench_of_ranks(place));
  const RunPlan& plan = run.plan;
  Transformer planned(run.model.config, plan.shape, plan.numerics, *run.device, plan.finetuning);
  const CommReport report = bench_comm(planned, *run.device, *ranks,
                                       {.warmup = options.bench_warmup, .repeats = options.bench_steps});
  if (!place.is_first()) return kExitDone;
  print_stdout("{}", comm_text(report));
  if (!options.json.empty()) write_json(options.json, comm_json(report));
  return kExitDone;
}

int run(const Options& options) {
  if (options.comm) return run_comm(options);
  if (!read_launch_environment(process_environment()).is_alone())
    fail_config("bench measures a single rank; with several ranks use --comm, or train for some steps");
  const TrainConfig base = load_plan_config(read_run_file(options.run.config_file), options.run.settings);
  std::vector<BenchVariant> variants;
  std::vector<TrainConfig> configs;
  const bool is_named = !options.variants.empty();
  for (const std::string& name : is_named ? options.variants : configured_variants(base)) {
    configs.push_back(variant_config(base, name, is_named));
    variants.push_back({name, configs.back()});
  }
  const bool on_gpu = runs_on_gpu(base.device);
  const std::optional<StepRange> traced = parse_step_range(base.profile_steps);
  if (const int64_t steps = options.bench_warmup + options.bench_steps; traced && traced->last > steps)
    fail_config("profile_steps is {}, but bench runs {}, warm-up included", base.profile_steps,
                counted(steps, "step"));
  if (!options.json.empty()) check_output_file("--json", options.json);
  tell_of_settings(configs, on_gpu);

  std::vector<BenchResult> results;
  for (const RunSpec& run : plan_bench(variants)) {
    const std::string& name = variants[results.size()].name;
    results.push_back(
        bench(run, {.warmup = options.bench_warmup,
                    .steps = options.bench_steps,
                    .trace_steps = traced,
                    .trace_path = fmt::format("trace-{}.json", name),
                    .profile = options.profile,
                    .progress = [&](const std::string& what) { log_info("{}: {}", name, what); }}));
  }
  if (!results.front().ranks.empty()) print_stdout("{}\n", results.front().ranks);
  const std::string& adapters = results.front().adapters;
  print_stdout("{}, {}{} x {} tokens x {}, {} after {}\n{}", model_name(base),
               adapters.empty() ? "" : adapters + "\n", results.front().rows, results.front().length,
               counted(results.front().accumulation, "micro-batch", "micro-batches"),
               counted(options.bench_steps, "step"), counted(options.bench_warmup, "warm-up step"),
               results_text(results));
  for (const BenchResult& result : results) {
    if (result.profile.empty()) continue;
    print_stdout("\nOne step of {}, device time by kind:\n{}", name_of(result), profile_text(result));
  }
  if (!options.json.empty()) write_json(options.json, results_json(results, base, options));
  return kExitDone;
}

}  // namespace

Command bench_command() {
  CommandBuilder<Options> builder("bench",
                                  "Measure the speed of training steps on this device, BF16 against FP8");
  builder.line.about =
      "Times whole optimizer steps (forward, backward, clipping, AdamW) with random tokens and random "
      "weights.\n"
      "All variants are planned before the first one is measured. All run with the same batch size and "
      "the same gradient_checkpointing. If these are automatic, bench takes values that fit every "
      "variant.\n"
      "max_seq_length is 1024 unless it is set, and 128 for the -tiny presets.\n"
      "'GEMM ceiling' compares the step with its matrix products (layers and head; forward, dgrad and "
      "wgrad). It is the time they would take alone, at the speeds measured on this GPU with large "
      "layers, as a share of the step time. It is '-' where no such speeds are known (CPU, fp32, "
      "emulated FP8, ...).\n"
      "'J/1,000 tokens' is the energy of the GPU. The column is there if the driver tells it.\n"
      "--profile_steps writes a trace of these steps to trace-VARIANT.json in the working folder. Steps count from 1, "
      "warm-up included.";
  builder.keys
      .add("variants", &Options::variants,
           fmt::format("What to measure: {}. fp8 is delayed. Overrides mixed_precision and fp8_recipe.",
                       kVariants))
      .note("bf16 and the configured precision (bf16,delayed if mixed_precision and fp8_recipe are not set)");
  builder.keys.add("bench_steps", &Options::bench_steps, "Steps to measure. The median is reported.")
      .at_least(1);
  builder.keys.add("bench_warmup", &Options::bench_warmup, "Steps to run before measuring.").at_least(1);
  builder.keys.add("profile", &Options::profile,
                   "Run one more step and print the device time of every op, by kind.");
  builder.keys.add(
      "comm", &Options::comm,
      "Measure communication between ranks instead: the collectives of one layer of this run, alone and "
      "next to its matrix products. Start it with 'octet launch'.");
  builder.check([](const Options& options, std::vector<std::string>& errors) {
    if (!options.comm) return;
    if (!options.variants.empty())
      errors.emplace_back("--variants has no effect with --comm; remove one of them");
    if (options.profile) errors.emplace_back("--profile has no effect with --comm; remove one of them");
  });
  builder.keys.add("json", &Options::json, "Also write the results to this file.").value("FILE");
  builder.run_arguments(&Options::run);
  return builder.command(run);
}

}  // namespace octet
