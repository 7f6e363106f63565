#include "plan/setup.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

#include "base/log.h"
#include "data/loading/loader.h"
#include "hf/hf_folder.h"
#include "io/cache_folder.h"
#include "io/env.h"
#include "plan/model_setup.h"
#include "report/text.h"

namespace octet {
namespace {

// Plans found by timing are kept for later runs, where other programs keep such things.
std::string tuning_cache_path() {
  const std::string folder = octet_cache_folder();
  if (folder.empty()) return "";
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  return error ? "" : join_path(folder, "gemm_plans.jsonl");
}

std::string upper_name(Precision precision) {
  switch (precision) {
    case Precision::Fp8:
      return "FP8";
    case Precision::Bf16:
      return "BF16";
    case Precision::Fp32:
      return "FP32";
  }
  return "?";
}

// Why FP8 cannot run in this model, when no product of any Linear got it.
std::string no_fp8_reason(const Transformer& transformer) {
  for (const Linear* linear : transformer.linears()) {
    if (linear->choice().any_fp8()) return "";
  }
  const Linear& first = *transformer.linears().front();
  return fmt::format("no layer can run in FP8 (for {}: {})", first.site().name,
                     first.choice()[Product::Forward].reason);
}

// "FP8" when every FP8 product runs on FP8 tensor cores, else what is emulated.
std::string fp8_label(Setup& setup) {
  const QuantizeRule x = quantize_rule(setup.numerics.fp8, Role::Input);
  const QuantizeRule w = quantize_rule(setup.numerics.fp8, Role::Weight);
  const QuantizeRule dy = quantize_rule(setup.numerics.fp8, Role::Gradient);
  const DType dense = setup.numerics.dense();
  int64_t products = 0, native = 0;
  for (const Linear* linear : setup.transformer->linears()) {
    const LinearSite& s = linear->site();
    const auto count = [&](Product product, int64_t m, int64_t n, int64_t k, const QuantizeRule& a,
                           DType format_a, const QuantizeRule& b, DType format_b, DType out) {
      if (!linear->choice()[product].fp8) return;
      ++products;
      native += setup.device->gemm_fp8_kind(m, n, k, a.granularity, b.granularity, format_a, format_b, out) ==
                "native";
    };
    count(Product::Forward, s.tokens, s.out, s.in, x, x.format_rowwise, w, w.format_rowwise, dense);
    count(Product::Dgrad, s.tokens, s.in, s.out, dy, dy.format_rowwise, w, w.format_colwise, dense);
    count(Product::Wgrad, s.out, s.in, s.tokens, dy, dy.format_colwise, x, x.format_colwise,
          setup.numerics.gradients);
  }
  if (native == products) return "FP8";
  if (native == 0) return "FP8 (emulated)";
  log_warning("{} of {} FP8 products have no FP8 kernel on {} and are emulated", products - native, products,
              setup.device->description());
  return "FP8 (partly emulated)";
}

// Plans the transformer, with the cheapest level of checkpointing that fits where none was asked for. Where no level
// fits it is the last, gradient_checkpointing stays auto, and check_memory says what is missing.
void plan_transformer(Setup& setup) {
  const auto plan = [&](Checkpointing level) {
    setup.shape.checkpointing = level;
    setup.transformer =
        std::make_unique<Transformer>(setup.model, setup.shape, setup.numerics, *setup.device);
    if (setup.makes_samples)
      setup.sampling_bytes = sampling_bytes(setup.config, *setup.transformer, *setup.device);
    return setup.transformer->plan().peak_bytes() + setup.sampling_bytes;
  };
  std::optional<int64_t> without;
  for (const Checkpointing level : levels_of(setup.config.gradient_checkpointing)) {
    const int64_t need = plan(level);
    if (need > setup.memory.bytes) {
      if (!without) without = need;
      continue;
    }
    setup.config.gradient_checkpointing = key_of(level);
    if (without) {
      log_info("gradient_checkpointing is {}: the run needs {} with it and {} without, of {}",
               config_text(setup.config, "gradient_checkpointing"), human_bytes(static_cast<double>(need)),
               human_bytes(static_cast<double>(*without)),
               human_bytes(static_cast<double>(setup.memory.bytes)));
    }
    return;
  }
}

void plan_model(Setup& setup) {
  const TrainConfig::Checkpointing asked = setup.config.gradient_checkpointing;
  plan_transformer(setup);
  setup.precision_label = upper_name(setup.numerics.precision);
  if (setup.numerics.precision != Precision::Fp8) return;

  setup.fallback_reason = no_fp8_reason(*setup.transformer);
  if (setup.fallback_reason.empty()) {
    setup.precision_label = fp8_label(setup);
    return;
  }
  if (setup.config.require_fp8) fail("[fp8] require_fp8 is set, but {}", setup.fallback_reason);
  log_warning("FP8 cannot run: {}; the run goes on in BF16", setup.fallback_reason);
  setup.numerics.precision = Precision::Bf16;
  setup.config.gradient_checkpointing = asked;
  plan_transformer(setup);
  setup.precision_label = "BF16 (fallback)";
}

// Where not even one row fits, it is one, and check_memory says what is missing.
void choose_batch_size(Setup& setup) {
  TrainConfig& config = setup.config;
  int64_t memory = setup.memory.bytes;
  if (setup.makes_samples) {
    RunShape one = setup.shape;
    one.rows = 1;
    Transformer smallest(setup.model, one, setup.numerics, *setup.device);
    memory -= sampling_bytes(config, smallest, *setup.device);
  }
  int64_t rows = 0;
  for (const Checkpointing level : levels_of(config.gradient_checkpointing)) {
    if (rows > 0) break;  // more is recomputed only where not even one row fits without
    setup.shape.checkpointing = level;
    rows = largest_batch(setup.model, setup.shape, setup.numerics, *setup.device, memory);
  }
  rows = std::max<int64_t>(rows, 1);
  if (setup.data.train.size() > 0) {  // more rows than sequences would only repeat them
    rows = std::clamp<int64_t>(setup.data.samples_per_epoch(config.max_seq_length), 1, rows);
  }
  config.per_device_train_batch_size = dividing_batch(config, rows);
  apply_target_batch_size(config);
  setup.shape.rows = config.per_device_train_batch_size;
}

ScheduleConfig schedule_from(const TrainConfig& config) {
  ScheduleConfig schedule;
  schedule.type = config.lr_scheduler_type;
  schedule.peak_lr = config.learning_rate;
  schedule.max_steps = config.max_steps;
  schedule.min_lr_ratio = config.min_lr_ratio;
  const auto steps = static_cast<double>(config.max_steps);
  schedule.warmup_steps = config.warmup_ratio > 0
                              ? static_cast<int64_t>(std::lround(config.warmup_ratio * steps))
                              : config.warmup_steps;
  if (config.lr_scheduler_type == ScheduleType::Wsd) {
    schedule.decay_steps = static_cast<int64_t>(std::lround(config.decay_ratio * steps));
  }
  schedule.validate();
  return schedule;
}

void resolve_steps(Setup& setup) {
  TrainConfig& config = setup.config;
  if (config.max_steps > 0) return;
  const int64_t windows = setup.data.samples_per_epoch(config.max_seq_length);
  const int64_t per_step = config.per_device_train_batch_size * config.gradient_accumulation_steps;
  config.max_steps = std::max<int64_t>(
      1, static_cast<int64_t>(std::ceil(config.num_train_epochs * static_cast<double>(windows) /
                                        static_cast<double>(per_step))));
}

}  // namespace

std::unique_ptr<Device> make_device(const TrainConfig& config) {
  const bool wants_cuda = config.device == TrainConfig::Device::Cuda;
  if (config.device != TrainConfig::Device::Cpu) {
    const CudaProbe probe = probe_cuda();
    if (probe.usable) {
      return make_cuda_device({.deterministic = config.deterministic, .tuning_cache = tuning_cache_path()});
    }
    if (wants_cuda) fail_config("device: cuda was asked for, but {}; use device: cpu or auto", probe.reason);
    // Where a driver is installed, a GPU that stands idle is not what its owner meant.
    if (probe.driver.starts_with("driver"))
      log_warning("the GPU is not used: {}; the run goes on the CPU", probe.reason);
  }
  return make_cpu_device(static_cast<int>(config.num_threads));
}

bool runs_on_gpu(const TrainConfig& config) {
  if (config.device == TrainConfig::Device::Auto) return probe_cuda().usable;
  return config.device == TrainConfig::Device::Cuda;
}

Numerics numerics_from(const TrainConfig& config, const Device& device) {
  Numerics numerics;
  numerics.precision = config.mixed_precision;
  constexpr DType kMoments[] = {DType::F32, DType::BF16, DType::E4M3};
  numerics.moments = kMoments[static_cast<size_t>(config.optimizer_state)];
  numerics.stochastic_weights = config.master_weights == TrainConfig::MasterWeights::Stochastic &&
                                config.mixed_precision != Precision::Fp32;
  // On the GPU a gradient that one product writes takes bf16: half the memory, and it is rounded once.
  const bool accumulates = config.gradient_accumulation_steps > 1 || config.target_effective_batch_size > 0;
  if (device.capabilities().fast_bf16 && !accumulates) numerics.gradients = numerics.dense();
  Fp8Config& fp8 = numerics.fp8;
  fp8.recipe = config.fp8_recipe;
  fp8.format = config.fp8_format;
  fp8.margin = static_cast<int>(config.fp8_margin);
  fp8.interval = config.fp8_interval;
  fp8.history_length = config.fp8_amax_history_len;
  fp8.most_recent = config.fp8_amax_compute == TrainConfig::Fp8AmaxCompute::MostRecent;
  fp8.pow2_block_scales = config.fp8_block_scales == TrainConfig::Fp8BlockScales::Pow2;
  fp8.head = config.fp8_head;
  fp8.skip_layers = config.fp8_skip_layers;
  fp8.validate();
  return numerics;
}

namespace {

Setup begin_setup(TrainConfig config, std::unique_ptr<Device> device, const Checkpoint* resumed = nullptr) {
  Setup setup;
  setup.config = std::move(config);
  setup.device = device ? std::move(device) : make_device(setup.config);
  ModelChoice choice = choose_model(setup.config, resumed);
  setup.start = std::move(choice.start);
  setup.model = std::move(choice.model);
  return setup;
}

void open_data(Setup& setup, const std::string& tokenizer_of_model, const Checkpoint* resumed) {
  choose_tokenizer(setup.config, tokenizer_of_model);
  const TrainConfig& config = setup.config;
  setup.tokenizer_source = resumed ? tokenizer_source(*resumed, config.tokenizer) : config.tokenizer;
  if (setup.tokenizer_source != config.tokenizer) {
    log_warning("the tokenizer {} {}, the copy in {} is used", config.tokenizer,
                posix_env().exists(config.tokenizer) ? "is not what the run began with" : "is gone",
                setup.tokenizer_source);
  }
  setup.tokenizer = make_tokenizer(setup.tokenizer_source);
  if (setup.tokenizer->vocab_size() > setup.model.vocab) {
    const bool random_start = !resumed && !(setup.start && setup.start->has_weights);
    const std::string remedy = random_start ? fmt::format("--vocab_size {}", setup.tokenizer->vocab_size())
                                            : "take the tokenizer that the model was trained with";
    fail_config("tokenizer '{}' has {} ids, more than the vocabulary of {} of model {}: {}", config.tokenizer,
                setup.tokenizer->vocab_size(), setup.model.vocab, setup.model.name, remedy);
  }
  setup.data = open_training_data(config, setup.model.vocab, *setup.tokenizer);
}

// A launch takes some microseconds, and a micro-step has hundreds, of which the first ones nothing hides.
bool wants_graphs(const Setup& setup) {
  if (setup.config.cuda_graphs != TrainConfig::CudaGraphs::Auto)
    return setup.config.cuda_graphs == TrainConfig::CudaGraphs::On;
  constexpr double kShortStep = 1e14;  // operations: some 150 ms
  return 6.0 * static_cast<double>(setup.model.parameter_count()) *
             static_cast<double>(setup.shape.tokens()) <
         kShortStep;
}

void plan_run(Setup& setup) {
  TrainConfig& config = setup.config;
  setup.memory = memory_limit(config, *setup.device);
  setup.numerics = numerics_from(config, *setup.device);
  if (const std::string note = format_note(setup.numerics.fp8);
      !note.empty() && setup.numerics.precision == Precision::Fp8) {
    log_info("{}", note);
  }
  setup.shape = {
      .rows = config.per_device_train_batch_size, .length = config.max_seq_length, .training = true};
  setup.shape.head_chunk_bytes = setup.device->capabilities().logits_bytes;
  if (config.auto_batch_size) choose_batch_size(setup);
  setup.shape.graphs = wants_graphs(setup);
  plan_model(setup);
}

}  // namespace

Setup make_model_setup(TrainConfig given, std::unique_ptr<Device> device, bool makes_samples) {
  Setup setup = begin_setup(std::move(given), std::move(device));
  setup.makes_samples = makes_samples;
  plan_run(setup);
  return setup;
}

Setup make_setup(TrainConfig given, const Checkpoint* resumed) {
  Setup setup = begin_setup(std::move(given), nullptr, resumed);
  std::string tokenizer_of_model;
  if (resumed) tokenizer_of_model = tokenizer_of(*resumed);
  if (setup.start) tokenizer_of_model = setup.start->tokenizer;
  open_data(setup, tokenizer_of_model, resumed);
  plan_run(setup);
  check_memory(setup);
  resolve_steps(setup);
  setup.schedule = schedule_from(setup.config);
  return setup;
}

}  // namespace octet
