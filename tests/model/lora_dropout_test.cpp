// New adapters, and the dropout of their input in training.

#include <gtest/gtest.h>

#include <cmath>

#include "base/philox.h"
#include "support/lora_run.h"

namespace octet::test {
namespace {

// As PEFT has it: A by kaiming_uniform with a = sqrt(5), which is uniform within 1 / sqrt(in), and B zero.
TEST(LoraInit, AIsUniformAndBIsZero) {
  for (const char* preset : kFamilies) {
    for (const Precision precision : {Precision::Fp32, Precision::Bf16}) {
      TinyRun run({.preset = preset, .precision = precision, .adapters = lora_plan(preset, {.rank = 64})});
      for (const Parameter& p : run.model->parameters().all()) {
        if (!p.spec.is_adapter()) continue;
        const std::vector<float> values = ParameterSet::weight_values(*run.device, p);
        double largest = 0, sum = 0, squares = 0;
        for (const float value : values) {
          largest = std::max(largest, std::fabs(static_cast<double>(value)));
          sum += static_cast<double>(value);
          squares += static_cast<double>(value) * static_cast<double>(value);
        }
        if (p.spec.adapter == ParameterSpec::Adapter::B) {
          EXPECT_EQ(largest, 0) << p.spec.name;
          continue;
        }
        const double bound = 1 / std::sqrt(static_cast<double>(p.spec.shape[1]));
        const auto count = static_cast<double>(values.size());  // at least 8192
        EXPECT_LE(largest, bound * (1 + 1e-6)) << p.spec.name;
        EXPECT_GE(largest, bound * 0.999) << p.spec.name;
        // Four deviations of the mean of so many values and of their squares: bound / sqrt(3 n), bound^2 * sqrt(4 / 45
        // n).
        EXPECT_NEAR(sum / count, 0, 4 * bound / std::sqrt(3 * count)) << p.spec.name;
        EXPECT_NEAR(squares / count, bound * bound / 3, 4 * bound * bound * std::sqrt(4.0 / 45 / count))
            << p.spec.name;
      }
    }
  }
}

TEST(LoraInit, EveryMatrixHasItsOwnNumbersAndTheSeedDecides) {
  const TinyRunOptions options{.adapters = lora_plan("llama-tiny")};
  TinyRun run(options), again(options);
  EXPECT_EQ(adapter_weights(run), adapter_weights(again));
  ParameterSet& set = run.model->parameters();
  const auto values = [&](const char* name) { return ParameterSet::weight_values(*run.device, set[name]); };
  EXPECT_NE(values("layers.0.mlp.up.lora_a"), values("layers.1.mlp.up.lora_a"));
  again.model->initialise(8);
  EXPECT_NE(adapter_weights(run), adapter_weights(again));
}

// Weights that are loaded stay: only adapters and moments are initialised.
TEST(LoraInit, TheBaseIsLeftAloneWhenItIsLoaded) {
  TinyRun run({.adapters = lora_plan("llama-tiny")});
  fill_adapters(*run.device, run.model->parameters());
  fill_vectors(*run.device, run.model->parameters());
  std::vector<std::vector<float>> before;
  for (const Parameter& p : run.model->parameters().all())
    before.push_back(ParameterSet::weight_values(*run.device, p));
  run.model->initialise(9, false);
  size_t i = 0;
  for (const Parameter& p : run.model->parameters().all()) {
    const bool changed = ParameterSet::weight_values(*run.device, p) != before[i++];
    EXPECT_EQ(changed, p.spec.is_adapter()) << p.spec.name;
  }
}

TinyRunOptions dropout_options(double probability, const char* preset = "llama-tiny",
                               Precision precision = Precision::Fp32) {
  return {.preset = preset,
          .precision = precision,
          .fp8 = {.recipe = Fp8Recipe::Current},
          .rows = 1,
          .length = 16,
          .adapters = lora_plan(preset, {.rank = 4, .alpha = 8, .dropout = probability})};
}

// The derivative of the loss by a parameter along random halves of its gradient, by central differences.
TEST(LoraDropout, ForwardAndBackwardDropTheSame) {
  for (const char* preset : kFamilies) {
    TinyRun run(dropout_options(0.4, preset));
    fill_adapters(*run.device, run.model->parameters());
    fill_vectors(*run.device, run.model->parameters());
    const Batch batch = next_batch(run);
    constexpr uint64_t kSeed = 0x123456789ABCDEF0;
    pass(run, batch, true, kSeed);
    std::vector<std::vector<float>> gradients;
    for (const Parameter& p : run.model->parameters().all())
      gradients.push_back(p.spec.is_adapter() ? gradient_of(run, p) : std::vector<float>{});
    size_t i = 0;
    for (Parameter& p : run.model->parameters().all()) {
      const std::vector<float>& gradient = gradients[i++];
      if (!p.spec.is_adapter()) continue;
      const std::vector<float> weight = ParameterSet::weight_values(*run.device, p);
      const Philox random(3, p.stream());
      std::vector<double> direction(gradient.size());
      double square = 0;
      for (size_t k = 0; k < gradient.size(); ++k) {
        direction[k] = random.below(k, 2) ? static_cast<double>(gradient[k]) : 0.0;
        square += direction[k] * direction[k];
      }
      const double norm = std::sqrt(square);
      // A step that moves the loss by about 0.02: fp32 gives six digits of the loss, so more than three of its change.
      const double step = 0.01 / norm;
      const auto loss_at = [&](double factor) {
        std::vector<float> moved = weight;
        for (size_t k = 0; k < moved.size(); ++k)
          moved[k] = static_cast<float>(static_cast<double>(weight[k]) + factor * step * direction[k] / norm);
        ParameterSet::set_weight(*run.device, p, moved);
        return pass(run, batch, true, kSeed);
      };
      const double slope = (8 * (loss_at(0.5) - loss_at(-0.5)) - (loss_at(1) - loss_at(-1))) / (6 * step);
      ParameterSet::set_weight(*run.device, p, weight);
      EXPECT_NEAR(slope / norm, 1.0, 1e-3) << preset << " " << p.spec.name;
    }
  }
}

TEST(LoraDropout, TheSeedDecides) {
  for (const Precision precision : {Precision::Fp32, Precision::Bf16, Precision::Fp8}) {
    TinyRun run(dropout_options(0.5, "llama-tiny", precision));
    fill_adapters(*run.device, run.model->parameters());
    const Batch batch = next_batch(run);
    const double first = pass(run, batch, true, 1);
    const std::vector<float> gradients = adapter_gradients(run);
    EXPECT_NE(pass(run, batch, true, 2), first);
    EXPECT_NE(pass(run, batch, true, uint64_t{1} << 40 | 1), first);  // both words count
    EXPECT_EQ(pass(run, batch, true, 1), first);
    EXPECT_EQ(adapter_gradients(run), gradients);
  }
}

// The same batch again and again.
// The micro-batches of a step and the steps have seeds of their own.
TEST(LoraDropout, EveryMicroBatchDropsAnew) {
  TinyRun run(dropout_options(0.5));
  fill_adapters(*run.device, run.model->parameters());
  OneBatch batches(next_batch(run));
  const auto loss = [&](int64_t step, int64_t accumulation, uint64_t seed = 0) {
    // Steps of size zero: the weights stay.
    StepRunner runner(*run.model, *run.device, batches, accumulation, {.weight_decay = 0, .seed = seed}, {});
    return runner.train_step(step, false).loss;
  };
  const double first = loss(0, 1);
  EXPECT_EQ(loss(0, 1), first);
  EXPECT_NE(loss(1, 1), first);
  EXPECT_NE(loss(0, 1, 1), first);
  EXPECT_GT(std::fabs(loss(0, 2) / first - 1), 1e-5) << "both micro-batches dropped the same";
}

TEST(LoraDropout, EvaluationDropsNothing) {
  for (const Precision precision : {Precision::Fp32, Precision::Bf16, Precision::Fp8}) {
    TinyRun with(dropout_options(0.5, "qwen2.5-tiny", precision));
    TinyRun without(dropout_options(0, "qwen2.5-tiny", precision));
    const Batch batch = next_batch(with);
    double losses[2] = {};
    for (TinyRun* run : {&with, &without}) {
      fill_adapters(*run->device, run->model->parameters());
      run->model->load(host_view(batch), 1, 5);
      run->model->clear_sums();
      run->model->forward_loss({}, false);
      losses[run == &with] = run->model->sums().loss;
    }
    // In FP8 adapters with dropout read dense inputs, the others their FP8 codes.
    EXPECT_NEAR(losses[1] / losses[0], 1.0, precision == Precision::Fp8 ? 1e-3 : 0.0);
    const double evaluated = losses[1];
    EXPECT_NE(pass(with, batch, true, 5), evaluated / static_cast<double>(batch.target_count));
    with.model->clear_sums();
    with.model->forward_loss({}, false);
    EXPECT_EQ(with.model->sums().loss, evaluated) << "after a training pass";
  }
}

// A probability so small that nothing is dropped gives what no dropout gives; dense, where both take the same path.
TEST(LoraDropout, AlmostNoDropoutIsNone) {
  for (const Precision precision : {Precision::Fp32, Precision::Bf16}) {
    TinyRun with(dropout_options(1e-30, "llama-tiny", precision));
    TinyRun without(dropout_options(0, "llama-tiny", precision));
    const Batch batch = next_batch(with);
    for (TinyRun* run : {&with, &without}) fill_adapters(*run->device, run->model->parameters());
    EXPECT_EQ(pass(with, batch, true, 3), pass(without, batch, true, 3));
    EXPECT_LE(norm_difference(adapter_gradients(with), adapter_gradients(without)),
              precision == Precision::Fp32 ? 1e-6 : 1e-2);
  }
}

}  // namespace
}  // namespace octet::test
