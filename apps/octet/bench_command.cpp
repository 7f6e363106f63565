#include <fmt/format.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "command.h"
#include "report/table.h"
#include "report/text.h"
#include "train/bench.h"

namespace octet {
namespace {

constexpr const char* kHelp =
    "Usage: octet bench [CONFIG.yaml] [--variants LIST] [--bench_steps N] [--bench_warmup N] [--profile]\n"
    "                   [--json FILE] [--key value]...\n\n"
    "Times whole optimizer steps (forward, backward, clipping, AdamW) on random tokens and random weights.\n"
    "  --variants LIST     what is measured: bf16, fp32, delayed, current, block, mxfp8. It decides where\n"
    "                      mixed_precision and fp8_recipe say otherwise. Default: bf16 and what these two\n"
    "                      keys say, which is bf16,delayed where neither is given\n"
    "  --bench_steps N     measured steps, the median counts; default 10\n"
    "  --bench_warmup N    steps before; default 3\n"
    "  --profile           also take the device time of every op in one more step, and print it by kind;\n"
    "                      needs a GPU\n"
    "  --json FILE         also write the figures there\n"
    "'GEMM ceiling': the time that the model's matrix products (layers and head; forward, dgrad and wgrad,\n"
    "each once) would take alone, in the precision each runs in and at the rates measured on this GPU with\n"
    "large layers, as a share of the measured step; '-' without such rates (CPU, fp32, emulated FP8, ...).\n"
    "Keys as for 'octet train --help': model_preset, max_seq_length (1024 unless given, 128 for the -tiny\n"
    "presets), per_device_train_batch_size, ...\n";

constexpr const char* kVariants = "bf16, fp32, delayed, current, block, mxfp8";

struct Request {
  std::vector<std::string> variants;  // empty: those that the configuration says
  BenchOptions options;
  std::string json;
  std::vector<std::string> rest;
};

int64_t positive(const std::string& flag, const std::string& text) {
  const std::optional<int64_t> value = parse_int(text);
  if (!value || *value < 1) fail_config("{} is '{}', expected a whole number of at least 1", flag, text);
  return *value;
}

Request take_own_flags(std::span<const std::string> arguments) {
  Request request;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const size_t equals = arguments[i].find('=');
    const std::string flag = arguments[i].substr(0, equals);
    if (arguments[i] == "--profile") {
      request.options.profile = true;
      continue;
    }
    if (flag != "--variants" && flag != "--bench_steps" && flag != "--bench_warmup" && flag != "--json") {
      request.rest.push_back(arguments[i]);
      continue;
    }
    if (equals == std::string::npos && i + 1 == arguments.size()) fail_config("{} needs a value", flag);
    const std::string value = equals == std::string::npos ? arguments[++i] : arguments[i].substr(equals + 1);
    if (flag == "--variants") {
      request.variants = split_list(value);
      if (request.variants.empty())
        fail_config("--variants is empty, expected at least one of {}", kVariants);
    }
    if (flag == "--bench_steps") request.options.steps = positive(flag, value);
    if (flag == "--bench_warmup") request.options.warmup = positive(flag, value);
    if (flag == "--json") request.json = value;
  }
  return request;
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

}  // namespace

int bench_command(std::span<const std::string> arguments) {
  const Request request = take_own_flags(arguments);
  std::vector<std::string> errors;
  const KeyArguments parsed = parse_key_arguments(train_keys().keys(), request.rest, errors);
  if (parsed.help) {
    fmt::print("{}", kHelp);
    return kExitDone;
  }
  throw_config_errors(errors);
  if (parsed.positionals.size() > 1) fail_config("octet bench takes one configuration file");
  const TrainConfig base =
      load_plan_config(parsed.positionals.empty() ? "" : parsed.positionals[0], parsed.settings);
  std::vector<TrainConfig> configs;
  const std::vector<std::string> variants =
      request.variants.empty() ? configured_variants(base) : request.variants;
  for (const std::string& variant : variants) configs.push_back(variant_config(base, variant));
  if (!request.json.empty()) check_writable(request.json);

  fmt::print("{}, {} x {} tokens x {} micro-batches, {} steps after {}\n", base.model_preset,
             base.per_device_train_batch_size, base.max_seq_length, base.gradient_accumulation_steps,
             request.options.steps, request.options.warmup);
  Table table({{"precision"},
               {"ms/step", Align::Right},
               {"tokens/s", Align::Right},
               {"TFLOP/s", Align::Right},
               {"GEMM ceiling", Align::Right},
               {"memory", Align::Right},
               {"loss", Align::Right},
               {"against the first", Align::Right}});
  BenchOptions options = request.options;
  options.progress = [](const std::string& what) { log_info("{}", what); };
  nlohmann::json figures = nlohmann::json::array();
  std::string profiles;
  double first_rate = 0;
  for (const TrainConfig& config : configs) {
    const BenchResult r = bench(config, options);
    if (first_rate == 0) first_rate = r.tokens_per_second;
    const double ratio = r.tokens_per_second / first_rate;
    table.add_row({r.recipe.empty() ? r.precision : fmt::format("{} {}", r.precision, r.recipe),
                   fmt::format("{:.2f}", r.step_ms), fmt::format("{:.0f}", r.tokens_per_second),
                   rate_text(r.model_tflops),
                   r.gemm_ceiling_share ? fmt::format("{:.1f} %", 100 * *r.gemm_ceiling_share) : "-",
                   human_bytes(static_cast<double>(r.memory_bytes)), fmt::format("{:.4f}", r.loss),
                   fmt::format("{:.2f}x", ratio)});
    figures.push_back({{"model", base.model_preset},
                       {"device", r.device},
                       {"rows", r.rows},
                       {"length", base.max_seq_length},
                       {"gradient_accumulation_steps", r.accumulation},
                       {"steps", options.steps},
                       {"optimizer_state", config_text(base, "optimizer_state")},
                       {"master_weights", config_text(base, "master_weights")},
                       {"precision", r.precision},
                       {"recipe", r.recipe},
                       {"step_ms", r.step_ms},
                       {"tokens_per_second", r.tokens_per_second},
                       {"model_tflops", r.model_tflops},
                       {"memory_bytes", r.memory_bytes},
                       {"loss", r.loss},
                       {"ratio", ratio},
                       {"gemm_ceiling_share", nullptr}});
    if (r.gemm_ceiling_share) figures.back()["gemm_ceiling_share"] = *r.gemm_ceiling_share;
    if (r.profile.empty()) continue;
    figures.back()["profile"] = profile_json(r);
    profiles += fmt::format("\nOne step of {}{}{}, device time by kind:\n{}", r.precision,
                            r.recipe.empty() ? "" : " ", r.recipe, profile_text(r));
  }
  fmt::print("{}{}", table.str(), profiles);
  if (!request.json.empty()) {
    std::ofstream file(request.json);
    file << figures.dump(1) << "\n";
    file.close();
    require(file.good(), "[{}] cannot be written", request.json);
  }
  return kExitDone;
}

}  // namespace octet
