// The FP8 state of a run between its steps: it can be carried to another process, evaluation leaves no trace
// in it, and a skipped step does not leave copies of weights that no longer fit their scales.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/tiny_run.h"

namespace octet::test {
namespace {

struct RecipeCase {
  const char* name;
  Fp8Config fp8;
  const char* preset = "llama-tiny";
  int64_t accumulation = 1;
  Checkpointing checkpointing = Checkpointing::None;
  DType moments = DType::F32;
};

void PrintTo(const RecipeCase& c, std::ostream* out) {
  *out << c.name;
}

TinyRunOptions options_of(const RecipeCase& c) {
  return {.preset = c.preset,
          .precision = Precision::Fp8,
          .fp8 = c.fp8,
          .checkpointing = c.checkpointing,
          .threads = 1,  // test runners share the cores
          .accumulation = c.accumulation,
          .moments = c.moments};
}

std::vector<double> numbers(const std::vector<StepResult>& results) {
  std::vector<double> values;
  for (const StepResult& result : results) {
    values.push_back(result.loss);
    values.push_back(result.grad_norm);
  }
  return values;
}

std::vector<std::byte> bytes_of(Device& device, Tensor tensor) {
  std::vector<std::byte> bytes(tensor ? static_cast<size_t>(tensor.bytes()) : 0);
  if (tensor) device.copy_to_host(bytes.data(), tensor);
  return bytes;
}

// What a checkpoint holds of a run, carried over as one would be loaded: parameters, scales, then the FP8 copies.
void carry_over(TinyRun& from, TinyRun& to) {
  std::vector<Parameter>& source = from.model->parameters().all();
  std::vector<Parameter>& target = to.model->parameters().all();
  for (size_t i = 0; i < source.size(); ++i) {
    for (const auto part : {&Parameter::own_rows, &Parameter::remainder, &Parameter::m, &Parameter::v}) {
      const std::vector<std::byte> bytes = bytes_of(*from.device, source[i].*part);
      if (!bytes.empty()) to.device->copy_to_device(target[i].*part, bytes.data());
    }
  }
  to.model->scales().restore(*to.device, from.model->scales().save(*from.device));
  to.model->weights_changed();
  to.batches->set_state(from.batches->state());
  to.done = from.done;
}

// All FP8 copies of the weights with their scales.
std::vector<std::byte> weight_copies(TinyRun& run) {
  std::vector<std::byte> all;
  for (Linear* linear : run.model->linears()) {
    const Quantized* copies = linear->weight.copies();
    if (!copies) continue;
    for (const QuantizedMatrix* copy : {&copies->rowwise, &copies->colwise}) {
      for (const Tensor& tensor : {copy->codes, copy->scales}) {
        const std::vector<std::byte> bytes = bytes_of(*run.device, tensor);
        all.insert(all.end(), bytes.begin(), bytes.end());
      }
    }
  }
  return all;
}

class EveryRecipe : public testing::TestWithParam<RecipeCase> {};

INSTANTIATE_TEST_SUITE_P(
    , EveryRecipe,
    testing::Values(
        RecipeCase{"delayed", {}},
        RecipeCase{"delayed_most_recent", {.history_length = 4, .most_recent = true}},
        RecipeCase{"delayed_interval", {.margin = 1, .interval = 2, .history_length = 3}, "qwen2.5-tiny"},
        RecipeCase{"delayed_accumulation", {}, "llama-tiny", 2, Checkpointing::Block},
        RecipeCase{
            "delayed_tied_head", {.head = Fp8Head::All}, "gpt2-tiny", 1, Checkpointing::Act, DType::BF16},
        RecipeCase{"delayed_backward_head", {.head = Fp8Head::Backward}, "llama-tiny", 2},
        RecipeCase{"current", {.recipe = Fp8Recipe::Current}},
        RecipeCase{"current_e5m2", {.recipe = Fp8Recipe::Current, .format = Fp8Format::E5M2}},
        RecipeCase{"current_head", {.recipe = Fp8Recipe::Current, .head = Fp8Head::Backward}, "gpt2-tiny"},
        RecipeCase{"block", {.recipe = Fp8Recipe::Block}, "llama-tiny", 2},
        RecipeCase{"block_head", {.recipe = Fp8Recipe::Block, .head = Fp8Head::Backward}, "llama-tiny", 2},
        RecipeCase{"mxfp8", {.recipe = Fp8Recipe::Mxfp8, .head = Fp8Head::All}}),
    [](const auto& test) { return std::string(test.param.name); });

TEST_P(EveryRecipe, AFreshRunContinuesBitForBit) {
  const TinyRunOptions options = options_of(GetParam());
  TinyRun whole(options);
  std::vector<double> expected = numbers(whole.steps(6));
  for (const int saved_after : {1, 3}) {
    TinyRun first(options), second(options);
    std::vector<double> actual = numbers(first.steps(saved_after));
    carry_over(first, second);
    EXPECT_EQ(weight_copies(second), weight_copies(first)) << "after " << saved_after;
    EXPECT_EQ(second.model->scales().save(*second.device), first.model->scales().save(*first.device));
    for (const double value : numbers(second.steps(6 - saved_after))) actual.push_back(value);
    EXPECT_EQ(actual, expected) << "after " << saved_after;
    EXPECT_EQ(second.weights(), whole.weights());
    EXPECT_EQ(weight_copies(second), weight_copies(whole));
    EXPECT_EQ(second.model->scales().save(*second.device), whole.model->scales().save(*whole.device));
  }
}

// That the test above can fail: the scales do matter.
TEST(DelayedState, WithoutItARunWouldDiffer) {
  const TinyRunOptions options{.precision = Precision::Fp8};
  TinyRun first(options), second(options), forgetful(options);
  first.steps(3);
  carry_over(first, second);
  carry_over(first, forgetful);
  forgetful.model->scales().initialise(*forgetful.device);
  forgetful.model->weights_changed();
  EXPECT_NE(numbers(forgetful.steps(3)), numbers(second.steps(3)));
}

TEST_P(EveryRecipe, EvaluationLeavesNoTrace) {
  const TinyRunOptions options = options_of(GetParam());
  TinyRun plain(options);
  const std::vector<double> expected = numbers(plain.steps(4));
  for (const bool fp8 : {false, true}) {
    TinyRun run(options);
    RandomBatches held_out(options.rows, options.length, run.model->config().vocab, 99);
    std::vector<double> actual;
    for (int i = 0; i < 4; ++i) {
      Batch batch;
      held_out.next(batch);
      const std::vector<std::byte> before = run.model->scales().save(*run.device);
      run.model->load(host_view(batch));
      run.model->forward_loss({}, fp8);
      run.model->logits_at({3, 17});
      EXPECT_EQ(run.model->scales().save(*run.device), before) << "step " << i;
      for (const double value : numbers(run.steps(1))) actual.push_back(value);
    }
    EXPECT_EQ(actual, expected) << (fp8 ? "fp8" : "bf16");
    EXPECT_EQ(run.weights(), plain.weights());
  }
}

TEST_P(EveryRecipe, StatisticsLeaveNoTrace) {
  const TinyRunOptions options = options_of(GetParam());
  TinyRun plain(options), counted(options);
  const std::vector<double> expected = numbers(plain.steps(3));
  std::vector<StepResult> results;
  for (int i = 0; i < 3; ++i) results.push_back(counted.runner->train_step(i, i != 1));
  EXPECT_EQ(numbers(results), expected);
  EXPECT_EQ(counted.weights(), plain.weights());
}

// The FP8 copy of a weight, dequantised by the scales as they are now.
std::vector<float> dequantised(const Linear& linear, const Quantized& copies) {
  const QuantizedMatrix& copy = copies.rowwise;
  const int64_t in = linear.spec.site.in;
  std::vector<float> values;
  for (int64_t i = 0; i < copy.codes.numel(); ++i) {
    float factor = *copy.tensor_scale;
    if (copy.granularity == Granularity::Block128) {
      factor = copy.scales.as<float>()[i / in / 128 * div_up(in, 128) + i % in / 128];
    } else if (copy.granularity == Granularity::Row32) {
      factor = std::ldexp(1.0f, copy.scales.as<uint8_t>()[i / in * div_up(in, 32) + i % in / 32] - 127);
    }
    values.push_back(from_fp8(copy.codes.as<uint8_t>()[i], copy.codes.dtype) * factor);
  }
  return values;
}

TEST_P(EveryRecipe, ASkippedStepKeepsTheWeightsThatProductsSee) {
  TinyRun run(options_of(GetParam()));
  run.steps(2);
  // Weights that have grown since their scales were set, so that the scales move in the step that is skipped.
  Linear& linear = *run.model->linears()[2];
  std::vector<float> values = ParameterSet::weight_values(*run.device, linear.weight.parameter());
  for (float& value : values) value *= 1.5f;
  ParameterSet::set_weight(*run.device, linear.weight.parameter(), values);
  run.model->weights_changed();

  Parameter& gain = run.model->parameters()["final_norm.gain"];
  const std::vector<float> good = ParameterSet::weight_values(*run.device, gain);
  std::vector<float> bad = good;
  bad[3] = std::numeric_limits<float>::infinity();
  ParameterSet::set_weight(*run.device, gain, bad);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(run.step().skipped);
    const std::vector<float> seen = dequantised(linear, *linear.weight.copies());
    double signal = 0, noise = 0;
    for (size_t j = 0; j < seen.size(); ++j) {
      const double value = static_cast<double>(values[j]), error = static_cast<double>(seen[j]) - value;
      signal += value * value;
      noise += error * error;
    }
    // e4m3 gives some 31 dB; codes and scales that do not belong together, 10.
    EXPECT_GT(10 * std::log10(signal / noise), 25) << "skipped step " << i + 1;
  }
  ParameterSet::set_weight(*run.device, gain, good);
  EXPECT_FALSE(run.step().skipped);
}

}  // namespace
}  // namespace octet::test
