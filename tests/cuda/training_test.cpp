#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "base/log.h"
#include "bench/bench.h"
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

// Every kind of numbers a run can have.
std::vector<Variant> variants() {
  const TinyRunOptions base{.rows = 2, .length = 128, .masked_every = 7, .cuda = true};
  TinyRunOptions bf16 = base, delayed = base, current = base, gpt2 = base, small = base;
  bf16.precision = Precision::Bf16;
  delayed.precision = current.precision = gpt2.precision = small.precision = Precision::Fp8;
  delayed.fp8 = gpt2.fp8 = small.fp8 = {.recipe = Fp8Recipe::Delayed, .head = true};
  current.fp8 = {.recipe = Fp8Recipe::Current};
  gpt2.preset = "gpt2-tiny";
  TinyRunOptions qwen3 = delayed, mistral = current;
  qwen3.preset = "qwen3-tiny";
  mistral.preset = "mistral-tiny";
  small.moments = DType::E4M3;
  small.stochastic_weights = true;
  return {{"bf16", bf16},
          {"fp8 delayed", delayed},
          {"fp8 current", current},
          {"fp8 delayed, gpt2", gpt2},
          {"fp8 delayed, qwen3", qwen3},
          {"fp8 current, mistral", mistral},
          {"fp8 delayed, small states", small}};
}

struct Trace {
  std::vector<double> losses, norms;
  std::vector<float> weights;
  bool operator==(const Trace&) const = default;
};

Trace train(const TinyRunOptions& options, int steps) {
  TinyRun run(options);
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

TEST_F(CudaTraining, CheckpointingLeavesEveryBitAsItIs) {
  for (const Variant& variant : variants()) {
    const Trace all_kept = train(variant.options, 6);
    for (const Checkpointing level : {Checkpointing::Act, Checkpointing::Mlp, Checkpointing::Block}) {
      TinyRunOptions options = variant.options;
      options.checkpointing = level;
      expect_equal(train(options, 6), all_kept,
                   fmt::format("{}, level {}", variant.name, static_cast<int>(level)));
    }
  }
}

TEST_F(CudaTraining, TwoDeterministicRunsAreBitEqual) {
  for (const Variant& variant : variants())
    expect_equal(train(variant.options, 20), train(variant.options, 20), variant.name);
}

TEST_F(CudaTraining, GraphsLeaveEveryBitAsItIs) {
  std::vector<std::string> said;
  const LogSink before = set_log_sink([&](LogLevel, std::string_view line) { said.emplace_back(line); });
  for (const Variant& variant : variants()) {
    for (const int64_t masked_every : {0, 7}) {  // with 7 the number of targets differs between steps
      TinyRunOptions options = variant.options;
      options.accumulation = 2;
      options.masked_every = masked_every;
      const Trace plain = train(options, 8);
      options.graphs = true;
      expect_equal(train(options, 8), plain, variant.name);
    }
  }
  set_log_sink(before);
  for (const std::string& line : said)
    EXPECT_EQ(line.find("CUDA graphs are not used"), std::string::npos) << line;
}

TEST_F(CudaTraining, AProfileHasEveryKindOfOp) {
  TinyRunOptions options = variants()[1].options;
  TinyRun run(options);
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

template <class Function>
std::string error_of(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST_F(CudaTraining, TooLargeARunIsRefusedWithWhatToChange) {
  TrainConfig config;
  config.model_preset = "llama-3.1-8b";
  config.per_device_train_batch_size = 512;
  config.max_seq_length = 4096;
  config.gradient_checkpointing = TrainConfig::Checkpointing::None;
  const std::string said = error_of([&] { plan_bench(std::vector<BenchVariant>{{"delayed", config}}); });
  for (const char* part :
       {"the run needs", "GiB", "per_device_train_batch_size (now 512)", "gradient_checkpointing"})
    EXPECT_NE(said.find(part), std::string::npos) << said;
}

TEST_F(CudaTraining, BenchSaysThatItsStepsWereReplayed) {
  TrainConfig config;
  config.model_preset = "llama-tiny";
  config.max_seq_length = 128;
  for (const auto graphs : {TrainConfig::CudaGraphs::On, TrainConfig::CudaGraphs::Off}) {
    config.cuda_graphs = graphs;
    const std::vector<BenchRun> runs = plan_bench(std::vector<BenchVariant>{{"delayed", config}});
    const BenchResult result = bench(runs.front(), {.warmup = 1, .steps = 2});
    EXPECT_EQ(result.cuda_graphs, graphs == TrainConfig::CudaGraphs::On);
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
  EXPECT_EQ(error_of([&] {
              device->zero({place.get(), DType::F32, {64}});
              device->synchronize();
            }),
            "");
}

}  // namespace
}  // namespace octet::test
