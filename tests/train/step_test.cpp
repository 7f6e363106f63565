// What a training step promises: accumulation equals the large batch, checkpointing and thread counts change no bit.

#include "train/step.h"

#include <gtest/gtest.h>

#include <cmath>

#include "data/document_support.h"
#include "data/loading/packed_loader.h"
#include "support/tiny_run.h"

namespace octet::test {
namespace {

std::vector<double> losses(std::vector<StepResult> results) {
  std::vector<double> values;
  for (const StepResult& result : results) {
    values.push_back(result.loss);
    values.push_back(result.grad_norm);
  }
  return values;
}

struct PrecisionCase {
  const char* name;
  Precision precision;
  Fp8Recipe recipe = Fp8Recipe::Delayed;
  Fp8Format format = Fp8Format::Hybrid;
  const char* preset = "llama-tiny";
  Fp8Head head = Fp8Head::None;
};

void PrintTo(const PrecisionCase& c, std::ostream* out) {
  *out << c.name;
}

TinyRunOptions options_of(const PrecisionCase& c) {
  TinyRunOptions options{.preset = c.preset, .precision = c.precision};
  options.fp8.recipe = c.recipe;
  options.fp8.format = c.format;
  options.fp8.head = c.head;
  return options;
}

class EveryPrecision : public testing::TestWithParam<PrecisionCase> {};

INSTANTIATE_TEST_SUITE_P(
    , EveryPrecision,
    testing::Values(
        PrecisionCase{"fp32", Precision::Fp32},
        PrecisionCase{"fp32_gpt2", Precision::Fp32, {}, {}, "gpt2-tiny"},
        PrecisionCase{"fp32_qwen3", Precision::Fp32, {}, {}, "qwen3-tiny"},
        PrecisionCase{"bf16", Precision::Bf16},
        PrecisionCase{"bf16_qwen", Precision::Bf16, {}, {}, "qwen2.5-tiny"},
        PrecisionCase{"bf16_mistral", Precision::Bf16, {}, {}, "mistral-tiny"},
        PrecisionCase{"delayed", Precision::Fp8, Fp8Recipe::Delayed},
        PrecisionCase{"delayed_mistral", Precision::Fp8, Fp8Recipe::Delayed, {}, "mistral-tiny"},
        PrecisionCase{"delayed_qwen3", Precision::Fp8, Fp8Recipe::Delayed, {}, "qwen3-tiny"},
        PrecisionCase{
            "delayed_gpt2_head", Precision::Fp8, Fp8Recipe::Delayed, {}, "gpt2-tiny", Fp8Head::Backward},
        PrecisionCase{"delayed_head", Precision::Fp8, Fp8Recipe::Delayed, {}, "llama-tiny", Fp8Head::Wgrad},
        PrecisionCase{"current_head", Precision::Fp8, Fp8Recipe::Current, {}, "qwen2.5-tiny", Fp8Head::Dgrad},
        PrecisionCase{"current", Precision::Fp8, Fp8Recipe::Current},
        PrecisionCase{"block_qwen", Precision::Fp8, Fp8Recipe::Block, {}, "qwen2.5-tiny"},
        PrecisionCase{"block_qwen3", Precision::Fp8, Fp8Recipe::Block, {}, "qwen3-tiny"},
        PrecisionCase{"mxfp8_head", Precision::Fp8, Fp8Recipe::Mxfp8, {}, "llama-tiny", Fp8Head::All},
        PrecisionCase{"e5m2", Precision::Fp8, Fp8Recipe::Current, Fp8Format::E5M2}),
    [](const auto& test) { return std::string(test.param.name); });

TEST_P(EveryPrecision, CheckpointingChangesNoBit) {
  TinyRunOptions options = options_of(GetParam());
  const std::vector<double> expected = losses(TinyRun(options).steps(3));
  for (const Checkpointing level : {Checkpointing::Act, Checkpointing::Mlp, Checkpointing::Block}) {
    options.checkpointing = level;
    EXPECT_EQ(losses(TinyRun(options).steps(3)), expected) << "level " << static_cast<int>(level);
  }
}

// A weight that is transposed before its dgrad has the codes of one whose transpose is kept. MXFP8 keeps both: its
// transpose has other blocks.
TEST_P(EveryPrecision, WeightCopiesChangeNoBit) {
  TinyRunOptions options = options_of(GetParam());
  TinyRun two(options);
  EXPECT_EQ(two.model->transposing_layers(), 0);
  const std::vector<double> expected = losses(two.steps(3));
  const bool transposes = options.precision == Precision::Fp8 && options.fp8.recipe != Fp8Recipe::Mxfp8;
  for (const int64_t layers : {int64_t{1}, kAllLayers}) {
    options.one_copy_layers = layers;
    TinyRun one(options);
    EXPECT_EQ(one.model->transposing_layers(), transposes ? std::min<int64_t>(layers, 2) : 0);
    EXPECT_EQ(losses(one.steps(3)), expected) << layers << " layers";
    EXPECT_TRUE(one.weights() == two.weights()) << layers << " layers";
    if (!transposes) continue;
    EXPECT_LT(planned_bytes(one.model->plan(), MemoryCategory::Weights),
              planned_bytes(two.model->plan(), MemoryCategory::Weights));
  }
}

TEST_P(EveryPrecision, ThreadsChangeNoBit) {
  TinyRunOptions options = options_of(GetParam());
  options.threads = 1;
  TinyRun one(options);
  const std::vector<double> expected = losses(one.steps(2));
  options.threads = 3;
  TinyRun three(options);
  EXPECT_EQ(losses(three.steps(2)), expected);
  EXPECT_EQ(three.weights(), one.weights());
}

// The other precisions are compared with each other, and with golden losses.
class SomePrecisions : public EveryPrecision {};

INSTANTIATE_TEST_SUITE_P(
    , SomePrecisions,
    testing::Values(
        PrecisionCase{"bf16_qwen", Precision::Bf16, {}, {}, "qwen2.5-tiny"},
        PrecisionCase{
            "delayed_gpt2_head", Precision::Fp8, Fp8Recipe::Delayed, {}, "gpt2-tiny", Fp8Head::Backward},
        PrecisionCase{"mxfp8_head", Precision::Fp8, Fp8Recipe::Mxfp8, {}, "llama-tiny", Fp8Head::All}),
    [](const auto& test) { return std::string(test.param.name); });

TEST_P(SomePrecisions, LearnARepeatedBatch) {
  TinyRun run(options_of(GetParam()));
  const double first = run.step().loss;
  double last = first;
  for (int i = 0; i < 12; ++i) {
    run.batches->set_state({0, 0});
    last = run.step().loss;
  }
  EXPECT_NEAR(first, std::log(257.0), 0.2);  // untrained: every byte is as likely
  EXPECT_LT(last, first - 0.5);
}

TEST(TrainStep, AccumulationEqualsTheLargeBatch) {
  // A third of the targets is masked, unevenly over the micro-batches: the mean must be over all of the step's.
  const TinyRunOptions large{.rows = 4, .length = 32, .masked_every = 3};
  TinyRunOptions small = large;
  small.rows = 1;
  small.accumulation = 4;
  const std::vector<double> expected = losses(TinyRun(large).steps(4));
  const std::vector<double> actual = losses(TinyRun(small).steps(4));
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(actual[i] / expected[i], 1.0, 2e-6) << i;
}

// In bf16 and FP8 each micro-batch rounds by itself, and a tensor's scale sees a micro-batch: nearly equal, then.
TEST(TrainStep, AccumulationEqualsTheLargeBatchNearlyInLowPrecision) {
  for (const auto& [precision, head] : {std::pair{Precision::Bf16, Fp8Head::None},
                                        {Precision::Fp8, Fp8Head::None},
                                        {Precision::Fp8, Fp8Head::Backward}}) {
    const TinyRunOptions large{
        .precision = precision, .fp8 = {.head = head}, .rows = 4, .length = 32, .masked_every = 3};
    TinyRunOptions small = large;
    small.rows = 1;
    small.accumulation = 4;
    const std::vector<double> expected = losses(TinyRun(large).steps(4));
    const std::vector<double> actual = losses(TinyRun(small).steps(4));
    for (size_t i = 0; i < expected.size(); ++i) {
      const bool norm = i % 2 == 1;  // of gradients, which add up the noise of every product
      const double tolerance = precision == Precision::Bf16 ? 1e-3 : norm ? 3e-2 : 1e-3;
      EXPECT_NEAR(actual[i] / expected[i], 1.0, tolerance) << i;
    }
  }
}

TEST(TrainStep, PaddingIsNoToken) {
  TinyRun run({.rows = 2, .length = 32});
  EXPECT_EQ(run.step().tokens, 64);
  // 10 and 20 inputs in rows of 32.
  const std::vector<Document> documents = {counting_document(0, 11), counting_document(50, 21)};
  for (const Packing packing : {Packing::None, Packing::BestFit}) {
    PackedLoader loader(source_of(documents, 1, run.model->config().vocab),
                        {.rows = 2, .length = 32, .packing = packing});
    StepRunner runner(*run.model, *run.device, loader, 3, {}, {});
    // Best fit puts both into one row, which a batch of two rows then holds twice.
    EXPECT_EQ(runner.train_step(1, false).tokens, packing == Packing::None ? 3 * 30 : 6 * 30);
  }
}

TEST(TrainStep, PenaltiesAreReportedAndTrained) {
  for (const PenaltyKind kind : {PenaltyKind::ZLoss, PenaltyKind::LogitL2, PenaltyKind::Entropy}) {
    TinyRunOptions options;
    options.penalty = {kind, 0.5f};
    TinyRun run(options);
    const StepResult first = run.step();
    EXPECT_NE(first.penalty, 0.0);
    for (int i = 0; i < 10; ++i) {
      run.batches->set_state({0, 0});
      run.step();
    }
    run.batches->set_state({0, 0});
    const StepResult last = run.step();
    EXPECT_LT(last.loss + last.penalty, first.loss + first.penalty) << static_cast<int>(kind);
  }
}

TEST(TrainStep, ANonFiniteGradientChangesNothing) {
  TinyRun run({.precision = Precision::Bf16});
  run.step();
  // An infinite gain makes the loss and every gradient NaN.
  Parameter& gain = run.model->parameters()["final_norm.gain"];
  const std::vector<float> good = ParameterSet::weight_values(*run.device, gain);
  std::vector<float> bad = good;
  bad[3] = std::numeric_limits<float>::infinity();
  ParameterSet::set_weight(*run.device, gain, bad);
  const std::vector<float> before = run.weights();
  const StepResult result = run.step();
  EXPECT_TRUE(result.skipped);
  EXPECT_EQ(run.weights(), before);
  ParameterSet::set_weight(*run.device, gain, good);
  EXPECT_FALSE(run.step().skipped);
}

TEST(TrainStep, Bf16MomentsTrainTheSameWithinTheirPrecision) {
  TinyRunOptions options{.precision = Precision::Bf16};
  TinyRun wide(options);
  const double wide_loss = wide.steps(8).back().loss;
  options.moments = DType::BF16;
  TinyRun narrow_run(options);
  const double narrow_loss = narrow_run.steps(8).back().loss;
  EXPECT_NE(narrow_run.weights(), wide.weights());
  EXPECT_NEAR(narrow_loss / wide_loss, 1.0, 1e-4);
}

}  // namespace
}  // namespace octet::test
