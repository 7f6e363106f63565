// What a training step promises of adapters: recomputation, threads and packing change no bit, accumulation equals the
// large batch, LoRA+ and weight decay act on A and B as they should.

#include <gtest/gtest.h>

#include <cmath>

#include "support/lora_run.h"

namespace octet::test {
namespace {

struct PrecisionCase {
  std::string name;
  Precision precision;
  Fp8Config fp8 = {};
};

void PrintTo(const PrecisionCase& c, std::ostream* out) {
  *out << c.name;
}

// Every recipe with every format, or with the usual one.
std::vector<PrecisionCase> every_precision(bool every_format) {
  std::vector<PrecisionCase> cases = {{"fp32", Precision::Fp32}, {"bf16", Precision::Bf16}};
  for (const Fp8Recipe recipe :
       {Fp8Recipe::Delayed, Fp8Recipe::Current, Fp8Recipe::Block, Fp8Recipe::Mxfp8}) {
    for (const Fp8Format format : {Fp8Format::Hybrid, Fp8Format::E4M3, Fp8Format::E5M2}) {
      if (!every_format && format != Fp8Format::Hybrid) continue;
      cases.push_back({fmt::format("{}_{}", name_of(recipe), name_of(format)),
                       Precision::Fp8,
                       {.recipe = recipe, .format = format}});
    }
  }
  return cases;
}

TinyRunOptions options_of(const PrecisionCase& c, const char* preset = "llama-tiny",
                          const LoraConfig& lora = {.rank = 4, .alpha = 8}) {
  return {.preset = preset, .precision = c.precision, .fp8 = c.fp8, .adapters = lora_plan(preset, lora)};
}

// The losses of two steps, and after each the gradients of all adapters.
struct Trace {
  std::vector<double> losses;
  std::vector<float> gradients, weights;
  bool operator==(const Trace&) const = default;
};

Trace trace_of(const TinyRunOptions& options) {
  TinyRun run(options);
  fill_adapters(*run.device, run.model->parameters());
  Trace trace;
  for (const StepResult& result : run.steps(2)) {
    trace.losses.push_back(result.loss);
    trace.losses.push_back(result.grad_norm);
    const std::vector<float> gradients = adapter_gradients(run);
    trace.gradients.insert(trace.gradients.end(), gradients.begin(), gradients.end());
  }
  trace.weights = adapter_weights(run);
  return trace;
}

void expect_same_bits(TinyRunOptions options, const std::string& what) {
  options.checkpointing = Checkpointing::None;
  const Trace expected = trace_of(options);
  for (const double loss : expected.losses) EXPECT_TRUE(std::isfinite(loss)) << what;
  for (const Checkpointing level : {Checkpointing::Act, Checkpointing::Mlp, Checkpointing::Block}) {
    options.checkpointing = level;
    EXPECT_TRUE(trace_of(options) == expected) << what << ", level " << static_cast<int>(level);
  }
}

class LoraFormat : public testing::TestWithParam<PrecisionCase> {};
class LoraPrecision : public testing::TestWithParam<PrecisionCase> {};

INSTANTIATE_TEST_SUITE_P(, LoraFormat, testing::ValuesIn(every_precision(true)),
                         [](const auto& test) { return test.param.name; });
INSTANTIATE_TEST_SUITE_P(, LoraPrecision, testing::ValuesIn(every_precision(false)),
                         [](const auto& test) { return test.param.name; });

TEST_P(LoraFormat, RecomputationChangesNoBit) {
  expect_same_bits(options_of(GetParam()), "all");
}

// So many ranks that the adapters read dense values instead of FP8 codes, and more than the width of the model.
TEST_P(LoraPrecision, RecomputationChangesNoBitWithManyRanks) {
  expect_same_bits(options_of(GetParam(), "llama-tiny", {.rank = 64, .alpha = 64}), "rank 64");
  expect_same_bits(options_of(GetParam(), "gpt2-tiny", {.rank = 300, .alpha = 8}), "rank 300");
}

TEST_P(LoraPrecision, RecomputationChangesNoBitWithDropoutOrFewTargets) {
  expect_same_bits(options_of(GetParam(), "qwen3-tiny", {.rank = 4, .alpha = 8, .dropout = 0.1}), "dropout");
  TinyRunOptions few = options_of(GetParam(), "gpt2-tiny", {.rank = 3, .targets = {"c_attn", "mlp.c_proj"}});
  few.packed = true;
  few.accumulation = 2;
  expect_same_bits(few, "packed, two micro-batches");
}

TEST_P(LoraPrecision, ThreadsChangeNoBit) {
  TinyRunOptions options = options_of(GetParam());
  options.threads = 1;
  const Trace expected = trace_of(options);
  options.threads = 3;
  EXPECT_TRUE(trace_of(options) == expected);
}

// The gradient of two micro-batches is the mean of both: exactly their sum, each with half the factor, because 1/2 is a
// power of two.
TEST_P(LoraPrecision, AccumulationAddsTheMicroBatches) {
  TinyRun run(options_of(GetParam()));
  fill_adapters(*run.device, run.model->parameters());
  const Batch one = next_batch(run), two = next_batch(run);
  pass(run, one, true);  // ends the calibration of the delayed recipe
  const int64_t targets = one.target_count + two.target_count;
  pass(run, one, true, 0, targets);
  std::vector<float> expected = adapter_gradients(run);
  pass(run, two, true, 0, targets);
  const std::vector<float> second = adapter_gradients(run);
  for (size_t i = 0; i < expected.size(); ++i) expected[i] += second[i];
  pass(run, one, true, 0, targets);
  pass(run, two, false, 0, targets);
  EXPECT_LE(largest_difference(adapter_gradients(run), expected), 1e-6);
}

TEST_P(LoraPrecision, LearnsARepeatedBatch) {
  TinyRunOptions options = options_of(GetParam(), "llama-tiny", {.rank = 16, .alpha = 64});
  TinyRun run(options);
  const double first = run.step().loss;
  double last = first;
  for (int i = 0; i < 30; ++i) {
    run.batches->set_state({0, 0});
    last = run.step().loss;
  }
  EXPECT_NEAR(first, std::log(257.0), 0.2);  // untrained: every byte is as likely
  EXPECT_LT(last, first - 0.3);
}

TEST(LoraStep, AccumulationEqualsTheLargeBatch) {
  const TinyRunOptions large{.rows = 4, .length = 32, .masked_every = 3, .adapters = lora_plan("llama-tiny")};
  TinyRunOptions small = large;
  small.rows = 1;
  small.accumulation = 4;
  const Trace expected = trace_of(large), actual = trace_of(small);
  for (size_t i = 0; i < expected.losses.size(); ++i)
    EXPECT_NEAR(actual.losses[i] / expected.losses[i], 1.0, 2e-6) << i;
}

// Updates of every A and B in one step of AdamW from the same state. `gradients` gets those of all adapters.
std::vector<std::vector<float>> updates(const TinyRunOptions& options, ParameterSpec::Adapter which,
                                        std::vector<float>* gradients = nullptr) {
  TinyRun run(options);
  fill_adapters(*run.device, run.model->parameters());
  std::vector<std::vector<float>> result;
  std::vector<Parameter*> parameters;
  for (Parameter& p : run.model->parameters().all()) {
    if (p.spec.adapter != which) continue;
    parameters.push_back(&p);
    result.push_back(ParameterSet::weight_values(*run.device, p));
  }
  run.step();
  if (gradients) *gradients = adapter_gradients(run);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const std::vector<float> after = ParameterSet::weight_values(*run.device, *parameters[i]);
    for (size_t k = 0; k < after.size(); ++k) result[i][k] = after[k] - result[i][k];
  }
  return result;
}

TEST(LoraStep, LoraPlusMovesBByTheRatio) {
  for (const Precision precision : {Precision::Fp32, Precision::Bf16, Precision::Fp8}) {
    TinyRunOptions options{.precision = precision, .adapters = lora_plan("llama-tiny")};
    options.weight_decay = 0;
    TinyRunOptions plus = options;
    plus.loraplus_ratio = 16;
    using Kind = ParameterSpec::Adapter;
    EXPECT_TRUE(updates(plus, Kind::A) == updates(options, Kind::A));
    std::vector<float> of_base, of_moved;
    const auto base = updates(options, Kind::B, &of_base), moved = updates(plus, Kind::B, &of_moved);
    ASSERT_EQ(base.size(), moved.size());
    // The same bits, or the updates say nothing: AdamW's first step has the size of the rate however small a gradient is,
    // so a last bit of a gradient near 0 moves a weight.
    ASSERT_TRUE(of_base == of_moved) << "two runs have other gradients: "
                                     << largest_difference(of_moved, of_base);
    for (size_t i = 0; i < base.size(); ++i) {
      std::vector<float> expected = base[i];
      for (float& value : expected) value *= 16;
      // Weights are below 1/8 and are rounded by 2^-28 at most. That is 16 times as much in `expected`, of 0.016.
      EXPECT_LE(largest_difference(moved[i], expected), 16 * 0x1p-28 / 0.016 + 0x1p-28 / 0.016 + 1e-7) << i;
    }
  }
}

// Decoupled decay: the weight shrinks by learning rate * decay of itself, and B faster with LoRA+.
TEST(LoraStep, WeightDecayActsOnAAndB) {
  TinyRunOptions with{.adapters = lora_plan("llama-tiny")};
  with.weight_decay = 0.5f;
  TinyRunOptions without = with;
  without.weight_decay = 0;
  TinyRun start(with);
  fill_adapters(*start.device, start.model->parameters());
  for (const float ratio : {1.0f, 4.0f}) {
    with.loraplus_ratio = without.loraplus_ratio = ratio;
    for (const auto which : {ParameterSpec::Adapter::A, ParameterSpec::Adapter::B}) {
      const auto decayed = updates(with, which), plain = updates(without, which);
      const float rate = 1e-3f * (which == ParameterSpec::Adapter::B ? ratio : 1.0f);
      size_t i = 0;
      for (const Parameter& p : start.model->parameters().all()) {
        if (p.spec.adapter != which) continue;
        std::vector<float> expected = ParameterSet::weight_values(*start.device, p), got;
        for (float& value : expected) value *= -rate * 0.5f;
        for (size_t k = 0; k < expected.size(); ++k) got.push_back(decayed[i][k] - plain[i][k]);
        EXPECT_LE(largest_difference(got, expected), 1e-3) << p.spec.name;  // differences of rounded weights
        ++i;
      }
    }
  }
}

}  // namespace
}  // namespace octet::test
