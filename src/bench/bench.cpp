#include "bench/bench.h"
#include "dist/pretend_ranks.h"
#include "plan/sharding_choice.h"
#include "step/rank_sync.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/clock.h"
#include "base/log.h"
#include "base/philox.h"
#include "bench/gpu_rates.h"
#include "plan/device_choice.h"
#include "plan/overview.h"
#include "plan/resolve.h"
#include "report/text.h"
#include "train/gpu_sampler.h"
#include "train/step.h"
#include "train/step_trace.h"

namespace octet {
namespace {

// A few batches that are made before the measurement and used in turn: a run prefetches its batches, so making them
// must not be timed.
class RandomTokens final : public BatchSource {
 public:
  RandomTokens(int64_t rows, int64_t length, int64_t vocab) {
    for (uint64_t number = 0; number < 4; ++number) batches_.push_back(make(rows, length, vocab, number));
  }

  void next(Batch& batch) override { batch = batches_[static_cast<size_t>(count_++) % batches_.size()]; }
  LoaderState state() const override { return {0, count_}; }
  void set_state(const LoaderState& state) override { count_ = state.next_sample; }
  double epoch() const override { return 0; }

 private:
  static Batch make(int64_t rows, int64_t length, int64_t vocab, uint64_t number) {
    const Philox random(1, number);
    const int64_t n = rows * length;
    Batch batch;
    batch.rows = rows;
    batch.length = length;
    batch.tokens.resize(static_cast<size_t>(n));
    batch.targets.resize(batch.tokens.size());
    batch.positions.resize(batch.tokens.size());
    for (int64_t i = 0; i < n; ++i) {
      const auto at = static_cast<size_t>(i);
      batch.tokens[at] =
          static_cast<int32_t>(random.below(static_cast<uint64_t>(i), static_cast<uint64_t>(vocab)));
      batch.positions[at] = static_cast<int32_t>(i % length);
      if (i % length == 0) batch.document_starts.push_back(static_cast<int32_t>(i));
    }
    for (int64_t i = 0; i < n; ++i)
      batch.targets[static_cast<size_t>(i)] = batch.tokens[static_cast<size_t>((i + 1) % n)];
    batch.document_starts.push_back(static_cast<int32_t>(n));
    batch.token_count = batch.target_count = n;
    return batch;
  }

  std::vector<Batch> batches_;
  int64_t count_ = 0;
};

// Forward and backward count three times the forward FLOPs of the matrices, or twice those of frozen ones, and three
// times those of causal attention's two products and of the adapters.
double model_flops(const Transformer& model) {
  const ModelConfig& c = model.config();
  const auto n = static_cast<double>(model.shape().tokens());
  double matrices = 0;
  for (const Linear* linear : model.linears()) {
    const auto size = static_cast<double>(linear->spec.site.out) * static_cast<double>(linear->spec.site.in);
    matrices += linear->weight.trains() ? size : size * 2 / 3;
  }
  for (const ParameterSpec& spec : adapters_of(parameter_table(c, model.finetuning().adapters)))
    matrices += static_cast<double>(spec.shape.numel());
  return 6 * matrices * n + 6 * static_cast<double>(c.layers * c.attention().out_width()) *
                                c.attention().span(model.shape().length) * n;
}

std::optional<double> gemm_ceiling_share(const RunPlan& plan, const Transformer& model, const Device& device,
                                         double step_seconds) {
  const std::optional<GpuRates> rates = gpu_rates(device.description());
  const bool emulated = plan.is_fp8() && plan.precision_label != "FP8";
  if (!rates || emulated || plan.numerics.precision == Precision::Fp32) return std::nullopt;
  return static_cast<double>(plan.accumulation) * matrix_seconds(model, *rates) / step_seconds;
}

// The energy of whole steps. The counters of GPUs are read ten times a second or less, so short steps are repeated until
// they take long enough to be told apart.
class EnergyMeasurement {
 public:
  static constexpr double kSeconds = 1;

  explicit EnergyMeasurement(GpuSampler* gpu) : gpu_(gpu) {}
  void begin() {
    if (!gpu_) return;
    gpu_->sample();
    before_ = gpu_->totals().energy_joules;
    start_ = Clock::now();
  }
  // `step` runs one more step; `steps` of them ran since begin().
  std::optional<double> joules_per_step(int64_t steps, const std::function<void()>& step) {
    if (!gpu_ || std::isnan(before_)) return std::nullopt;
    for (; seconds_since(start_) < kSeconds; ++steps) step();
    gpu_->sample();
    return (gpu_->totals().energy_joules - before_) / static_cast<double>(steps);
  }

 private:
  GpuSampler* gpu_;
  double before_ = 0;
  Clock::time_point start_;
};

std::unique_ptr<Ranks> make_ranks(const RankSpec& spec) {
  return spec.pretended == 0 ? make_single_rank()
                             : make_pretended_ranks(spec.pretended, spec.pretended, spec.pretended_gb);
}

// On `device`, which the first call makes, also if the variant cannot be planned. The plan does not keep it, but the choice of
// `device: auto`.
RunSpec plan_variant(const BenchVariant& variant, std::shared_ptr<Device>& device) {
  if (!device) device = make_device(device_spec(variant.config, variant.config.deterministic));
  RunSpec run = resolve(variant.config, Wanted::by_bench(device));
  run.device.reset();
  run.wanted_device.key = device->capabilities().separate_memory ? DeviceKey::Cuda : DeviceKey::Cpu;
  return run;
}

// An error that all variants share is reported once, without the name of a variant.
std::vector<RunSpec> plan_variants(std::span<const BenchVariant> variants, std::shared_ptr<Device>& device) {
  std::vector<RunSpec> runs;
  std::vector<std::string> named;
  std::set<std::string> reasons;
  bool is_usage = true;
  const auto note = [&](const BenchVariant& variant, const Error& error) {
    named.push_back(fmt::format("variant {}: {}", variant.name, error.what()));
    reasons.insert(error.what());
  };
  for (const BenchVariant& variant : variants) {
    try {
      runs.push_back(plan_variant(variant, device));
    } catch (const ConfigError& error) {
      note(variant, error);
    } catch (const Error& error) {
      note(variant, error);
      is_usage = false;
    }
  }
  if (named.empty()) return runs;
  const bool is_common = named.size() == variants.size() && reasons.size() == 1;
  const std::string text = is_common ? *reasons.begin() : fmt::format("{}", fmt::join(named, "\n"));
  if (is_usage) fail_config("{}", text);
  fail("{}", text);
}

}  // namespace

std::vector<RunSpec> plan_bench(std::span<const BenchVariant> variants) {
  std::shared_ptr<Device> device;
  std::vector<RunSpec> runs = plan_variants(variants, device);
  const auto rows = [](const RunSpec& run) { return run.plan.shape.rows; };
  const auto level = [](const RunSpec& run) { return run.plan.shape.checkpointing; };
  const int64_t fewest_rows = rows(*std::ranges::min_element(runs, {}, rows));
  const Checkpointing highest_level = level(*std::ranges::max_element(runs, {}, level));
  for (size_t i = 0; i < runs.size(); ++i) {
    if (rows(runs[i]) == fewest_rows && level(runs[i]) == highest_level) continue;
    BenchVariant alike = variants[i];
    set_batch_size(alike.config, fewest_rows);
    alike.config.auto_batch_size = false;
    alike.config.gradient_checkpointing = key_of(highest_level);
    runs[i] = plan_variant(alike, device);
    log_info("{} uses the same settings as the other variants: batch size {}, gradient_checkpointing {}",
             variants[i].name, fewest_rows, key_text(highest_level));
  }
  return runs;
}

BenchResult bench(const RunSpec& run, const BenchOptions& options) {
  const RunPlan& plan = run.plan;
  // A new device, so that no other variant leaves anything on it.
  const std::unique_ptr<Device> device = make_device(run.wanted_device);
  Transformer model(run.model.config, plan.shape, plan.numerics, *device, plan.finetuning);
  const Capabilities can = device->capabilities();
  const auto tell = [&](const std::string& what) {
    if (options.progress) options.progress(what);
  };
  const auto begin = Clock::now();
  tell(fmt::format("{}, {} on {}", plan.precision_label,
                   human_bytes(static_cast<double>(model.plan().peak_bytes())), device->description()));
  model.allocate();
  const std::unique_ptr<Ranks> ranks = make_ranks(run.ranks);
  std::unique_ptr<RankSync> sync;
  if (model.sharding().is_active()) sync = std::make_unique<RankSync>(model, *device, *ranks);
  model.initialise(3);
  model.weights_changed();
  device->synchronize();
  tell(fmt::format("weights ready after {:.1f} s; running the first step{}", seconds_since(begin),
                   can.separate_memory ? " (it times GEMM algorithms that are not in the cache)" : ""));
  RandomTokens tokens(plan.shape.rows, plan.shape.length, run.model.config.vocab);
  OptimizerOptions optimizer;
  optimizer.schedule = {
      .type = ScheduleType::Constant, .peak_lr = 1e-5, .max_steps = 1000, .min_lr_ratio = 1};
  StepRunner runner(model, *device, tokens, plan.accumulation, optimizer, {}, sync.get());

  BenchResult result;
  const std::unique_ptr<GpuSampler> gpu = GpuSampler::start(run.gpu);
  EnergyMeasurement energy(gpu.get());
  StepTrace trace(options.trace_steps, *device, 0, options.trace_path);
  std::vector<double> times, traced_times;
  int64_t step = 0;
  for (; step < options.warmup + options.steps; ++step) {
    const bool is_traced = options.trace_steps && options.trace_steps->contains(step + 1);
    if (step == options.warmup) energy.begin();
    trace.begin_step(step + 1);
    const auto start = Clock::now();
    result.loss = runner.train_step(step, false).loss;
    const double ms = 1e3 * seconds_since(start);
    trace.end_step(step + 1);
    if (step == 0)
      tell(fmt::format("first step done after {:.1f} s, loss {:.4f}", seconds_since(begin), result.loss));
    // A trace makes steps slower: they count only if there are no others.
    if (step >= options.warmup) (is_traced ? traced_times : times).push_back(ms);
  }
  if (times.empty()) times = traced_times;
  result.graph_counts = device->graph_counts();  // before the steps that are only there to measure energy
  if (const auto joules = energy.joules_per_step(options.steps, [&] { runner.train_step(step++, false); })) {
    const auto step_tokens = static_cast<double>(plan.accumulation * plan.shape.tokens());
    result.joules_per_1000_tokens = 1e3 * *joules / step_tokens;
  }
  if (options.profile) {
    require(can.profiles, "[bench] --profile: the {} device cannot time single ops", device->name());
    device->start_profile();
    runner.train_step(step, false);
    result.profile = device->finish_profile();
  }
  std::sort(times.begin(), times.end());
  result.step_ms = times[times.size() / 2];
  result.precision = plan.precision_label;
  if (plan.is_fp8()) {
    result.transposing_layers = model.transposing_layers();
    result.recipe = name_of(plan.numerics.fp8.recipe);
    result.fp8_format = name_of(plan.numerics.fp8.format);
    const LinearChoice& head = model.linears().back()->spec.choice;
    result.fp8_head = head.any_fp8();
    std::vector<std::string_view> products;
    for (const Product product : kProducts) {
      if (head[product].fp8) products.push_back(name_of(product));
    }
    result.fp8_head_products = fmt::format("{}", fmt::join(products, ", "));
  }
  result.gradient_checkpointing = key_text(plan.shape.checkpointing);
  if (model.has_adapters()) result.adapters = adapters_text(run.model.config, plan.finetuning);
  if (sync) {
    result.ranks = fmt::format("{}; {}", ranks->description(), sharding_text(model.sharding()));
    if (run.ranks.pretended > 0)
      result.ranks += fmt::format("; pretended at {} GB/s, speed of this rank alone", run.ranks.pretended_gb);
  }
  result.cuda_graphs = can.graphs && plan.shape.graphs;
  result.device = device->description();
  result.rows = plan.shape.rows;
  result.length = plan.shape.length;
  result.accumulation = plan.accumulation;
  const auto work = static_cast<double>(plan.accumulation);
  result.tokens_per_second = work * static_cast<double>(plan.shape.tokens()) / result.step_ms * 1e3;
  result.model_tflops = work * model_flops(model) / result.step_ms / 1e9;
  result.gemm_ceiling_share = gemm_ceiling_share(plan, model, *device, result.step_ms / 1e3);
  result.memory_bytes = model.allocated_bytes();
  return result;
}

}  // namespace octet
