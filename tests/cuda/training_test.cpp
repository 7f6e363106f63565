#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "base/log.h"
#include "bench/bench.h"
#include "cuda/fixture.h"
#include "support/error_of.h"
#include "support/tiny_run.h"

namespace octet::test {
namespace {

class CudaTraining : public testing::Test {
 protected:
  void SetUp() override {
    const CudaProbe probe = probe_cuda();
    if (!probe.usable) GTEST_SKIP() << "no GPU: " << probe.reason;
  }
};

struct Variant {
  const char* name;
  TinyRunOptions options;
};
// One test for each, so that they run side by side.
class CudaVariants : public CudaTraining, public testing::WithParamInterface<Variant> {};

// Every kind of numbers a run can have.
std::vector<Variant> variants() {
  const TinyRunOptions base{.rows = 2, .length = 128, .masked_every = 7, .cuda = true};
  TinyRunOptions bf16 = base, delayed = base, current = base, gpt2 = base, small = base;
  bf16.precision = Precision::Bf16;
  delayed.precision = current.precision = gpt2.precision = small.precision = Precision::Fp8;
  delayed.fp8 = gpt2.fp8 = small.fp8 = {.recipe = Fp8Recipe::Delayed, .head = Fp8Head::All};
  current.fp8 = {.recipe = Fp8Recipe::Current};
  gpt2.preset = "gpt2-tiny";
  TinyRunOptions backward = gpt2;
  backward.fp8.head = Fp8Head::Backward;  // the default of large heads
  TinyRunOptions qwen3 = delayed, mistral = current;
  qwen3.preset = "qwen3-tiny";
  mistral.preset = "mistral-tiny";
  small.moments = DType::E4M3;
  small.remainder = RemainderKind::None;
  TinyRunOptions compact = small;
  compact.remainder = RemainderKind::Compact;
  // Adapters on a frozen base. With block scales and with dropout they read dense inputs.
  const auto lora = [](TinyRunOptions options, const LoraConfig& config) {
    options.adapters = plan_adapters(two_layers(options.preset), config);
    return options;
  };
  TinyRunOptions block = current;
  block.fp8.recipe = Fp8Recipe::Block;
  TinyRunOptions one_copy = compact, block_one_copy = block;
  one_copy.one_copy_layers = 1;
  block_one_copy.one_copy_layers = kAllLayers;
  TinyRunOptions lora_current = lora(current, {.rank = 24, .targets = {"q_proj", "v_proj", "down_proj"}});
  lora_current.one_copy_layers = kAllLayers;
  return {{"Bf16", bf16},
          {"Fp8Delayed", delayed},
          {"Fp8Current", current},
          {"Fp8DelayedGpt2", gpt2},
          {"Fp8HeadBackwardGpt2", backward},
          {"Fp8DelayedQwen3", qwen3},
          {"Fp8CurrentMistral", mistral},
          {"Fp8DelayedSmallStates", small},
          {"Fp8DelayedCompactWeights", compact},
          {"Fp8DelayedOneCopy", one_copy},
          {"Fp8BlockOneCopy", block_one_copy},
          {"LoraBf16", lora(bf16, {.rank = 16})},
          {"LoraFp8Delayed", lora(delayed, {.rank = 16})},
          {"LoraFp8CurrentOneCopy", lora_current},
          {"LoraFp8Block", lora(block, {.rank = 8})},
          {"LoraFp8DelayedGpt2", lora(gpt2, {.rank = 8})},
          {"LoraFp8ManyRanks", lora(delayed, {.rank = 64})},
          {"LoraDropout", lora(delayed, {.rank = 16, .dropout = 0.25})}};
}

struct Trace {
  std::vector<double> losses, norms;
  std::vector<float> weights;
  bool operator==(const Trace&) const = default;
};

// On the device that the tests share, unless on a fresh one.
Trace train(const TinyRunOptions& options, int steps, bool fresh = false) {
  TinyRun run(options, fresh ? nullptr : &shared_cuda_device());
  Trace trace;
  for (const StepResult& result : run.steps(steps)) {
    trace.losses.push_back(result.loss);
    trace.norms.push_back(result.grad_norm);
  }
  trace.weights = run.weights();
  return trace;
}

void expect_equal(const Trace& got, const Trace& expected, const std::string& what) {
  EXPECT_EQ(got.losses, expected.losses) << what;
  EXPECT_EQ(got.norms, expected.norms) << what;
  EXPECT_TRUE(got.weights == expected.weights) << what << ": weights differ";
}

TEST_P(CudaVariants, CheckpointingLeavesEveryBitAsItIs) {
  const Trace all_kept = train(GetParam().options, 6);
  for (const Checkpointing level : {Checkpointing::Act, Checkpointing::Mlp, Checkpointing::Block}) {
    TinyRunOptions options = GetParam().options;
    options.checkpointing = level;
    expect_equal(train(options, 6), all_kept, fmt::format("level {}", static_cast<int>(level)));
  }
}

// A weight transposed before its dgrad has the codes of one whose transpose is kept.
TEST_P(CudaVariants, TheNumberOfWeightCopiesLeavesEveryBitAsItIs) {
  TinyRunOptions options = GetParam().options;
  if (options.precision != Precision::Fp8) GTEST_SKIP() << "no FP8 copies";
  options.one_copy_layers = 0;
  const Trace two = train(options, 6);
  for (const int64_t layers : {int64_t{1}, kAllLayers}) {
    options.one_copy_layers = layers;
    EXPECT_EQ(TinyRun(options, &shared_cuda_device()).model->transposing_layers(),
              std::min<int64_t>(layers, 2));
    expect_equal(train(options, 6), two, fmt::format("{} layers", layers));
  }
}

// The second on a device that has seen nothing else: results do not depend on what ran before.
TEST_P(CudaVariants, TwoDeterministicRunsAreBitEqual) {
  expect_equal(train(GetParam().options, 12, true), train(GetParam().options, 12), "");
}

// The CPU takes the same steps with gradients of the same dtype; rounding differs in places.
TEST_P(CudaVariants, LossesAreThoseOfTheCpu) {
  constexpr int kSteps = 4;
  TinyRunOptions options = GetParam().options;
  options.gradients = DType::BF16;
  const Trace got = train(options, kSteps);
  options.cuda = false;
  options.threads = 4;
  TinyRun cpu(options);
  for (size_t i = 0; i < kSteps; ++i) {
    const StepResult expected = cpu.step();
    EXPECT_NEAR(got.losses[i], expected.loss, 2e-3 * expected.loss) << "step " << i;
    EXPECT_NEAR(got.norms[i], expected.grad_norm, 3e-2 * expected.grad_norm) << "step " << i;
  }
}

// Packed documents whose number and lengths differ from batch to batch, as does the number of targets: nearly all
// micro-steps are replayed all the same, and every bit is that of a run without graphs.
TEST_P(CudaVariants, GraphsAreReplayedAndLeaveEveryBitAsItIs) {
  constexpr int kSteps = 16;
  std::vector<std::string> said;
  const LogSink before_sink = set_log_sink([&](LogLevel, std::string_view line) { said.emplace_back(line); });
  for (const int64_t accumulation : {1, 2}) {
    TinyRunOptions options = GetParam().options;
    options.packed = true;
    options.accumulation = accumulation;
    const Trace plain = train(options, kSteps);
    options.graphs = true;
    const GraphCounts before = shared_cuda_device().graph_counts();
    expect_equal(train(options, kSteps), plain, fmt::format("accumulation {}", accumulation));
    const GraphCounts after = shared_cuda_device().graph_counts();
    const int64_t replayed = after.replayed - before.replayed, plain_runs = after.plain - before.plain;
    EXPECT_GT(after.recorded - before.recorded, 0);
    EXPECT_GT(replayed, kSteps * accumulation / 2) << plain_runs << " ran op by op";
  }
  set_log_sink(before_sink);
  for (const std::string& line : said)
    EXPECT_EQ(line.find("CUDA graphs are not used"), std::string::npos) << line;
}

// The same with cuDNN's attention of packed documents, which deterministic runs do not use.
TEST_F(CudaTraining, GraphsReplayPackedDocumentsOfRealRuns) {
  constexpr int kSteps = 12;
  const std::unique_ptr<Device> device = make_cuda_device({});
  TinyRunOptions options{.precision = Precision::Bf16, .rows = 4, .length = 512, .packed = true};
  std::vector<double> losses[2];
  for (const bool graphs : {false, true}) {
    options.graphs = graphs;
    TinyRun run(options, device.get());
    for (int i = 0; i < kSteps; ++i) losses[graphs].push_back(run.step().loss);
  }
  EXPECT_GT(device->graph_counts().replayed, kSteps / 2);
  for (size_t i = 0; i < kSteps; ++i)
    EXPECT_NEAR(losses[1][i], losses[0][i], 2e-3 * losses[0][i]) << "step " << i;
}

INSTANTIATE_TEST_SUITE_P(, CudaVariants, testing::ValuesIn(variants()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_F(CudaTraining, AProfileHasEveryKindOfOp) {
  TinyRun run(variants()[1].options, &shared_cuda_device());
  run.steps(2);
  run.device->start_profile();
  run.step();
  std::map<std::string, int64_t> calls;
  double total = 0;
  for (const OpTime& time : run.device->finish_profile()) {
    calls[time.kind] += time.calls;
    total += time.ms;
    EXPECT_GE(time.ms, 0) << time.op;
  }
  EXPECT_GT(total, 0);
  const int64_t products = 2 * 4;  // of two layers
  EXPECT_EQ(calls["GEMM forward"], products);
  EXPECT_EQ(calls["GEMM dgrad"], products);
  EXPECT_EQ(calls["GEMM wgrad"], products);
  EXPECT_EQ(calls["attention forward"], 2);
  EXPECT_EQ(calls["attention backward"], 2);
  EXPECT_EQ(calls["norm"], 2 * (2 * 2 + 1));
  EXPECT_EQ(calls["activation"], 2 * 2);
  EXPECT_EQ(calls["optimizer"], 1);
  EXPECT_EQ(calls["norm of gradients"], 1);
  for (const char* kind : {"quantize", "rope", "embedding", "head and loss", "idle"})
    EXPECT_GT(calls[kind], 0) << kind;
  EXPECT_TRUE(run.device->finish_profile().empty());  // switched off
}

TEST_F(CudaTraining, TooLargeARunIsRefusedWithWhatToChange) {
  TrainConfig config;
  config.model_preset = "llama-3.1-8b";
  config.per_device_train_batch_size = 512;
  config.max_seq_length = 4096;
  config.gradient_checkpointing = CheckpointingKey::None;
  const std::string said = error_of([&] { plan_bench(std::vector<BenchVariant>{{"delayed", config}}); });
  // What else is advised depends on how much memory is free.
  for (const char* part :
       {"the run needs ", "GiB", "too little", "set ", "per_device_train_batch_size", "(then it needs "})
    EXPECT_NE(said.find(part), std::string::npos) << "no '" << part << "' in: " << said;
}

TEST_F(CudaTraining, BenchSaysThatItsStepsWereReplayed) {
  TrainConfig config;
  config.model_preset = "llama-tiny";
  config.max_seq_length = 128;
  config.deterministic = true;  // no products are timed first
  for (const auto graphs : {CudaGraphs::On, CudaGraphs::Off}) {
    config.cuda_graphs = graphs;
    const std::vector<RunSpec> runs = plan_bench(std::vector<BenchVariant>{{"delayed", config}});
    const BenchResult result = bench(runs.front(), {.warmup = 2, .steps = 4});
    const bool on = graphs == CudaGraphs::On;
    EXPECT_EQ(result.cuda_graphs, on);
    // Forward, head and backward are recorded one by one. The first step calibrates, the second is the first of its
    // kind, the third is recorded and launched.
    EXPECT_EQ(result.graph_counts.replayed, on ? 3 * 4 : 0);
    EXPECT_EQ(result.graph_counts.plain, on ? 3 * 2 : 0);
    EXPECT_EQ(result.graph_counts.recorded, on ? 3 : 0);
    EXPECT_GT(result.tokens_per_second, 0);
  }
}

TEST_F(CudaTraining, ErrorsNameTheOp) {
  const std::unique_ptr<Device> device = make_cuda_device({});
  const std::string memory = error_of([&] { device->allocate(int64_t{1} << 50); });
  EXPECT_NE(memory.find("[cuda] allocate: out of device memory, 1048576.00 GiB asked for"), std::string::npos)
      << memory;
  const std::string copy = error_of([&] {
    const float value = 1;
    device->copy_to_device({nullptr, DType::F32, {1}}, &value);
    device->synchronize();
  });
  EXPECT_NE(copy.find("[cuda] copy_to_device: "), std::string::npos) << copy;
  // Neither left the device in a state that later ops trip over.
  const std::shared_ptr<void> place = device->allocate(256);
  EXPECT_NO_THROW({
    device->zero({place.get(), DType::F32, {64}});
    device->synchronize();
  });
}

}  // namespace
}  // namespace octet::test
