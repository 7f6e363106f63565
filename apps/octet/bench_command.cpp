#include <fmt/format.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/error.h"
#include "base/log.h"
#include "bench/bench.h"
#include "command.h"
#include "plan/setup.h"
#include "report/table.h"
#include "report/text.h"
#include "run_arguments.h"

namespace octet {
namespace {

constexpr const char* kHelp =
    "Usage: octet bench [CONFIG.yaml] [--variants LIST] [--bench_steps N] [--bench_warmup N] [--profile]\n"
    "                   [--json FILE] [--key value]...\n\n"
    "Times whole optimizer steps (forward, backward, clipping, AdamW) on random tokens and random weights.\n"
    "All variants are planned before the first is measured, and run with the same batch size and the same\n"
    "gradient_checkpointing: where these are automatic, with what all of them can run with.\n"
    "'GEMM ceiling': the time that the model's matrix products (layers and head; forward, dgrad and wgrad,\n"
    "each once) would take alone, in the precision each runs in and at the rates measured on this GPU with\n"
    "large layers, as a share of the measured step; '-' without such rates (CPU, fp32, emulated FP8, ...).\n"
    "Keys as for 'octet train --help': model_preset, max_seq_length (1024 unless given, 128 for the -tiny\n"
    "presets), per_device_train_batch_size, ..., and:\n";

constexpr const char* kVariants = "bf16, fp32, delayed, current, block, mxfp8";

struct BenchFlags {
  std::vector<std::string> variants;  // empty: those that the configuration says
  int64_t bench_steps = 10;
  int64_t bench_warmup = 3;
  bool profile = false;
  std::string json;
};

KeyTable<BenchFlags> bench_keys() {
  KeyTable<BenchFlags> table;
  table
      .add("variants", &BenchFlags::variants,
           fmt::format("What is measured: {}. It decides where mixed_precision and fp8_recipe say otherwise.",
                       kVariants))
      .note("bf16 and what these two keys say, which is bf16,delayed where neither is given");
  table.add("bench_steps", &BenchFlags::bench_steps, "Measured steps, the median counts.").at_least(1);
  table.add("bench_warmup", &BenchFlags::bench_warmup, "Steps before them.").at_least(1);
  table.add("profile", &BenchFlags::profile,
            "Also take the device time of every op in one more step, and print it by kind; needs a GPU.");
  table.add("json", &BenchFlags::json, "Also write the figures to this file.");
  return table;
}

// BF16, against which the other is compared, and what the configuration runs in.
std::vector<std::string> configured_variants(const TrainConfig& config) {
  switch (config.mixed_precision) {
    case Precision::Bf16:
      return {"bf16"};
    case Precision::Fp32:
      return {"bf16", "fp32"};
    case Precision::Fp8:
      break;
  }
  return {"bf16", config_text(config, "fp8_recipe")};
}

// Found out before minutes of measuring, not after; leaves no file behind where there was none.
void check_writable(const std::string& path) {
  std::error_code ignored;
  const bool existed = std::filesystem::exists(path, ignored);
  errno = 0;
  const bool opened = std::ofstream(path, std::ios::app).is_open();
  if (!opened) fail_config("--json: {} cannot be written: {}", path, std::generic_category().message(errno));
  if (!existed) std::filesystem::remove(path, ignored);
}

TrainConfig variant_config(TrainConfig config, const std::string& variant) {
  config.mixed_precision = Precision::Fp8;
  if (variant == "bf16") {
    config.mixed_precision = Precision::Bf16;
  } else if (variant == "fp32") {
    config.mixed_precision = Precision::Fp32;
  } else if (variant == "delayed") {
    config.fp8_recipe = Fp8Recipe::Delayed;
  } else if (variant == "current") {
    config.fp8_recipe = Fp8Recipe::Current;
  } else if (variant == "block") {
    config.fp8_recipe = Fp8Recipe::Block;
  } else if (variant == "mxfp8") {
    config.fp8_recipe = Fp8Recipe::Mxfp8;
  } else {
    fail_config("--variants: '{}' is none of {}", variant, kVariants);
  }
  return config;
}

// TFLOP/s: a CPU reaches a hundredth.
std::string rate_text(double rate) {
  return rate < 10 ? fmt::format("{:.3g}", rate) : fmt::format("{:.1f}", rate);
}

// Time by kind, and under each kind its ops with what they reach.
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
      return amount > 0 && time.ms > 0 ? fmt::format("{:.0f}", amount / unit / time.ms * 1e3) : "";
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

std::string model_name(const TrainConfig& config) {
  return config.model_name_or_path.empty() ? config.model_preset : config.model_name_or_path;
}

std::string name_of(const BenchResult& result) {
  return result.recipe.empty() ? result.precision : fmt::format("{} {}", result.precision, result.recipe);
}

double ratio_to_first(const BenchResult& result, const std::vector<BenchResult>& results) {
  return result.tokens_per_second / results.front().tokens_per_second;
}

std::string results_text(const std::vector<BenchResult>& results) {
  Table table({{"precision"},
               {"recompute"},
               {"ms/step", Align::Right},
               {"tokens/s", Align::Right},
               {"TFLOP/s", Align::Right},
               {"GEMM ceiling", Align::Right},
               {"memory", Align::Right},
               {"loss", Align::Right},
               {"against the first", Align::Right}});
  for (const BenchResult& r : results) {
    table.add_row({name_of(r), r.gradient_checkpointing, fmt::format("{:.2f}", r.step_ms),
                   fmt::format("{:.0f}", r.tokens_per_second), rate_text(r.model_tflops),
                   r.gemm_ceiling_share ? fmt::format("{:.1f} %", 100 * *r.gemm_ceiling_share) : "-",
                   human_bytes(static_cast<double>(r.memory_bytes)), fmt::format("{:.4f}", r.loss),
                   fmt::format("{:.2f}x", ratio_to_first(r, results))});
  }
  return table.str();
}

nlohmann::json results_json(const std::vector<BenchResult>& results, const TrainConfig& config,
                            const BenchFlags& flags) {
  nlohmann::json runs = nlohmann::json::array();
  for (const BenchResult& r : results) {
    nlohmann::json run = {{"model", model_name(config)},
                          {"device", r.device},
                          {"rows", r.rows},
                          {"length", config.max_seq_length},
                          {"gradient_accumulation_steps", r.accumulation},
                          {"steps", flags.bench_steps},
                          {"warmup_steps", flags.bench_warmup},
                          {"optimizer_state", config_text(config, "optimizer_state")},
                          {"master_weights", config_text(config, "master_weights")},
                          {"gradient_checkpointing", r.gradient_checkpointing},
                          {"cuda_graphs", r.cuda_graphs},
                          {"deterministic", config.deterministic},
                          {"precision", r.precision},
                          {"recipe", r.recipe},
                          {"fp8_format", r.fp8_format},
                          {"fp8_head", r.fp8_head},
                          {"step_ms", r.step_ms},
                          {"tokens_per_second", r.tokens_per_second},
                          {"model_tflops", r.model_tflops},
                          {"memory_bytes", r.memory_bytes},
                          {"loss", r.loss},
                          {"ratio", ratio_to_first(r, results)},
                          {"gemm_ceiling_share", nullptr}};
    if (r.gemm_ceiling_share) run["gemm_ceiling_share"] = *r.gemm_ceiling_share;
    if (!r.profile.empty()) run["profile"] = profile_json(r);
    runs.push_back(std::move(run));
  }
  return runs;
}

}  // namespace

int bench_command(std::span<const std::string> arguments) {
  const KeyTable<BenchFlags> own = bench_keys();
  BenchFlags flags;
  const RunArguments parsed = parse_run_arguments("bench", own, flags, arguments);
  if (parsed.help) {
    fmt::print("{}{}", kHelp, keys_help(own.keys()));
    return kExitDone;
  }
  const TrainConfig base = load_plan_config(parsed.config_file, parsed.settings);
  std::vector<BenchVariant> variants;
  std::vector<TrainConfig> configs;
  for (const std::string& name : flags.variants.empty() ? configured_variants(base) : flags.variants) {
    configs.push_back(variant_config(base, name));
    variants.push_back({name, configs.back()});
  }
  const bool on_gpu = runs_on_gpu(base);
  if (flags.profile && !on_gpu) fail_config("--profile needs a GPU: the CPU has no clock for single ops");
  if (!flags.json.empty()) check_writable(flags.json);
  warn_of_idle_settings(configs, on_gpu);

  std::vector<BenchResult> results;
  for (const BenchRun& run : plan_bench(variants)) {
    results.push_back(bench(run, {.warmup = flags.bench_warmup,
                                  .steps = flags.bench_steps,
                                  .profile = flags.profile,
                                  .progress = [](const std::string& what) { log_info("{}", what); }}));
  }
  fmt::print("{}, {} x {} tokens x {} micro-batches, {} steps after {}\n{}", model_name(base),
             results.front().rows, base.max_seq_length, results.front().accumulation, flags.bench_steps,
             flags.bench_warmup, results_text(results));
  for (const BenchResult& result : results) {
    if (result.profile.empty()) continue;
    fmt::print("\nOne step of {}, device time by kind:\n{}", name_of(result), profile_text(result));
  }
  if (!flags.json.empty()) {
    std::ofstream file(flags.json);
    file << results_json(results, base, flags).dump(1) << "\n";
    file.close();
    require(file.good(), "[{}] cannot be written", flags.json);
  }
  return kExitDone;
}

}  // namespace octet
