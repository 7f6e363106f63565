// In training the head computes only the rows that have a target, rounded up to a few different numbers. FP8 gradients
// keep the sums of their rows.

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "backend/cpu/cpu_device.h"
#include "support/lora_run.h"

namespace octet::test {
namespace {

TinyRunOptions all_rows(TinyRunOptions options) {
  options.head_all_rows = true;
  return options;
}

// Keeps `count` targets, spread over the batch.
Batch with_targets(Batch batch, int64_t count) {
  const int64_t n = std::ssize(batch.targets);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t place = i * 37 % n;  // 37 and n have no common factor: every place once
    if (place >= count) batch.targets[static_cast<size_t>(i)] = kIgnoreTarget;
  }
  batch.target_count = count;
  return batch;
}

double sum_with_penalty(TinyRun& run, const Batch& batch, PenaltyOptions penalty) {
  run.model->load(host_view(batch), 1.0f / 16);
  run.model->clear_sums();
  run.model->forward_backward(penalty, true, false);
  return run.model->sums().loss + run.model->sums().penalty;
}

struct HeadCase {
  const char* name;
  const char* preset;
  Precision precision;
  double tolerance;  // of gradients, as ||a - b|| / ||b||
};

void PrintTo(const HeadCase& c, std::ostream* out) {
  *out << c.name;
}

class LoraHead : public testing::TestWithParam<HeadCase> {};

// A row of logits does not depend on the other rows. A sum over rows may be cut into parts at other rows, which in fp32 is a
// last bit. Where values are rounded to BF16 or FP8 afterwards, some of them are rounded to the other side, and then those
// that follow from them: at most, everything differs by the rounding of that format. A target too few differs much more
// (below).
INSTANTIATE_TEST_SUITE_P(, LoraHead,
                         testing::Values(HeadCase{"fp32", "llama-tiny", Precision::Fp32, 1e-6},
                                         HeadCase{"fp32_gpt2", "gpt2-tiny", Precision::Fp32, 1e-6},
                                         HeadCase{"bf16", "qwen3-tiny", Precision::Bf16, 4e-3},
                                         HeadCase{"fp8", "llama-tiny", Precision::Fp8, 3e-2}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(LoraHead, RowsWithATargetAreEnough) {
  const HeadCase& c = GetParam();
  const TinyRunOptions options{.preset = c.preset,
                               .precision = c.precision,
                               .fp8 = {.recipe = Fp8Recipe::Current},
                               .adapters = lora_plan(c.preset)};
  TinyRun few(options), all(all_rows(options));
  fill_adapters(*few.device, few.model->parameters());
  fill_adapters(*all.device, all.model->parameters());
  const Batch batch = next_batch(few);
  for (const int64_t targets : {1, 15, 16, 17, 40, 48, 49, 64}) {
    const Batch masked = with_targets(batch, targets);
    const double expected = pass(all, masked), got = pass(few, masked);
    EXPECT_NEAR(got / expected, 1.0, 1e-6) << targets;
    EXPECT_LE(norm_difference(adapter_gradients(few), adapter_gradients(all)), c.tolerance) << targets;
    const PenaltyOptions penalty{.kind = PenaltyKind::ZLoss, .weight = 0.1f};
    EXPECT_NEAR(sum_with_penalty(few, masked, penalty) / sum_with_penalty(all, masked, penalty), 1.0, 1e-6);
    EXPECT_LE(norm_difference(adapter_gradients(few), adapter_gradients(all)), c.tolerance) << targets;
    // Evaluation computes every row.
    for (TinyRun* run : {&few, &all}) {
      run->model->clear_sums();
      run->model->forward_loss({}, false);
    }
    EXPECT_NEAR(few.model->sums().loss / all.model->sums().loss, 1.0, 1e-6);
    EXPECT_EQ(few.model->correct_targets(), all.model->correct_targets());
    // The comparison sees a single row that is not computed.
    if (targets == 1) continue;
    pass(all, masked);
    pass(few, with_targets(batch, targets - 1), true, 0, targets);
    EXPECT_GT(norm_difference(adapter_gradients(few), adapter_gradients(all)), 2 * c.tolerance) << targets;
  }
}

TEST_P(LoraHead, ABatchWithoutTargetsHasNoLossAndNoGradient) {
  const HeadCase& c = GetParam();
  for (const bool fp8_head : {false, true}) {
    TinyRun run({.preset = c.preset,
                 .precision = c.precision,
                 .fp8 = {.recipe = Fp8Recipe::Delayed, .head = fp8_head ? Fp8Head::All : Fp8Head::None},
                 .adapters = lora_plan(c.preset)});
    fill_adapters(*run.device, run.model->parameters());
    const Batch batch = next_batch(run);
    pass(run, batch);
    EXPECT_EQ(pass(run, with_targets(batch, 0)), 0.0);
    for (const float value : adapter_gradients(run)) ASSERT_EQ(value, 0.0f);
    // The next batch is not touched by it.
    EXPECT_GT(pass(run, batch), 1.0);
  }
}

// All gradients of a run, one after another.
std::vector<float> gradients(TinyRun& run) {
  std::vector<float> all;
  for (const Parameter& p : run.model->parameters().all()) {
    std::vector<float> values(static_cast<size_t>(p.gradient.numel()));
    EXPECT_EQ(p.gradient.dtype, DType::F32);
    run.device->copy_to_host(values.data(), p.gradient);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

// A trained head: the loss has the same bits. Gradients are sums in another order, and FP8 codes have the scales of other
// chunks. Only the head is in FP8, because other layers would round what differs once more.
TEST(TrainedHead, RowsWithATargetAreEnough) {
  for (const char* preset : {"llama-tiny", "gpt2-tiny"}) {
    for (const auto& [head, tolerance] :
         {std::pair{Fp8Head::None, 1e-6}, std::pair{Fp8Head::Backward, 3e-2}}) {
      const TinyRunOptions options{
          .preset = preset,
          .precision = Precision::Fp8,
          .fp8 = {.recipe = Fp8Recipe::Current, .head = head, .skip_layers = {"layers.*"}},
          .gradients = DType::F32};
      TinyRun few(options), all(all_rows(options));
      const Batch batch = next_batch(few);
      for (const int64_t targets : {1, 16, 17, 40, 49, 64}) {
        SCOPED_TRACE(fmt::format("{} {} {}", preset, static_cast<int>(head), targets));
        const Batch masked = with_targets(batch, targets);
        const PenaltyOptions penalty{.kind = PenaltyKind::ZLoss, .weight = 0.1f};
        EXPECT_EQ(pass(few, masked), pass(all, masked));
        EXPECT_LE(norm_difference(gradients(few), gradients(all)), tolerance);
        EXPECT_EQ(sum_with_penalty(few, masked, penalty), sum_with_penalty(all, masked, penalty));
      }
    }
  }
}

// The sum over all tokens of the gradient of the head's weight.
std::vector<float> summed_over_tokens(TinyRun& run) {
  const Tensor gradient = run.model->linears().back()->weight.parameter().gradient;
  std::vector<float> values(static_cast<size_t>(gradient.numel())),
      sums(static_cast<size_t>(gradient.cols()));
  run.device->copy_to_host(values.data(), gradient);
  for (size_t i = 0; i < values.size(); ++i) sums[i % sums.size()] += values[i];
  return sums;
}

struct HeadErrors {
  double first_sums = 0;  // of the first micro-batch
  double all = 0, sums = 0;
};

// Of gradients with the head in FP8, as differences to a head in BF16.
HeadErrors head_errors(const char* preset, int64_t targets, Fp8Recipe recipe, Fp8Head head) {
  const auto run_with = [&](Fp8Head products) {
    return TinyRun({.preset = preset,
                    .precision = Precision::Fp8,
                    .fp8 = {.recipe = recipe, .head = products, .skip_layers = {"layers.*"}},
                    .gradients = DType::F32});
  };
  TinyRun bf16 = run_with(Fp8Head::None), fp8 = run_with(head);
  const Batch batch = with_targets(next_batch(bf16), targets);
  HeadErrors errors;
  EXPECT_EQ(pass(fp8, batch), pass(bf16, batch));
  errors.first_sums = norm_difference(summed_over_tokens(fp8), summed_over_tokens(bf16));
  EXPECT_EQ(pass(fp8, batch), pass(bf16, batch));
  errors.all = norm_difference(gradients(fp8), gradients(bf16));
  errors.sums = norm_difference(summed_over_tokens(fp8), summed_over_tokens(bf16));
  return errors;
}

// With the gradients of the head in FP8, the loss of a micro-batch keeps its bits, and gradients are close to those of a
// head in BF16. From the second micro-batch on, what all tokens have in common is kept much better: with every recipe,
// the scales are known before the gradients then.
TEST(TrainedHead, Fp8GradientsAreClose) {
  for (const char* preset : {"llama-tiny", "gpt2-tiny"}) {
    for (const int64_t targets : {64, 40}) {
      for (const Fp8Recipe recipe :
           {Fp8Recipe::Delayed, Fp8Recipe::Current, Fp8Recipe::Block, Fp8Recipe::Mxfp8}) {
        for (const Fp8Head head : {Fp8Head::Backward, Fp8Head::Wgrad, Fp8Head::Dgrad}) {
          SCOPED_TRACE(fmt::format("{} {} {} {}", preset, targets, name_of(recipe), static_cast<int>(head)));
          const HeadErrors errors = head_errors(preset, targets, recipe, head);
          EXPECT_GT(errors.all, 1e-4) << "it is in FP8";
          EXPECT_LT(errors.all, 0.03);
          // With all gradients in FP8, what reaches the embedding differs too, and the head shares its weights.
          if (head == Fp8Head::Wgrad) {
            EXPECT_LT(errors.sums, 0.05 * errors.first_sums);
          }
        }
      }
    }
  }
}

// All rows of the head's weight are one large vector, except a row that differs a little. The gradients of a row of logits
// add up to zero, so the large vector does not reach the layers below. Rounded gradients, whose errors are alike, let it
// through.
TEST(TrainedHead, Fp8GradientsOfTheInputDoNotSeeWhatAllTokensHaveInCommon) {
  const auto below_the_head = [](TinyRun& run) {
    std::vector<float> all;
    for (const Parameter& p : run.model->parameters().all()) {
      if (p.spec.name == "head.weight") continue;
      std::vector<float> values(static_cast<size_t>(p.gradient.numel()));
      run.device->copy_to_host(values.data(), p.gradient);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  };
  const auto set_weight = [](TinyRun& run) {
    for (Parameter& p : run.model->parameters().all()) {
      if (p.spec.name != "head.weight") continue;
      std::vector<float> values(static_cast<size_t>(p.weight.numel()));
      const auto width = static_cast<size_t>(p.weight.cols());
      for (size_t i = 0; i < values.size(); ++i) values[i] = i % 2 == 0 ? 0.5f : -0.25f;
      for (size_t i = 0; i < width; ++i) values[i] += i % 3 == 0 ? 0.125f : 0.0625f;
      ParameterSet::set_rows(*run.device, p, values);
    }
    run.model->weights_changed();
  };
  // After so many micro-batches.
  const auto error = [&](Fp8Recipe recipe, int passes) {
    std::vector<std::vector<float>> found;
    for (const Fp8Head head : {Fp8Head::None, Fp8Head::Dgrad}) {
      TinyRun run({.preset = "llama-tiny",
                   .precision = Precision::Fp8,
                   .fp8 = {.recipe = recipe, .head = head, .skip_layers = {"layers.*"}},
                   .gradients = DType::F32,
                   .untied_head = true});
      set_weight(run);
      const Batch batch = next_batch(run);
      for (int i = 0; i < passes; ++i) pass(run, batch);
      found.push_back(below_the_head(run));
    }
    return norm_difference(found[1], found[0]);
  };
  for (const Fp8Recipe recipe : {Fp8Recipe::Delayed, Fp8Recipe::Block}) {
    const double first = error(recipe, 1), second = error(recipe, 2);
    EXPECT_GT(second, 1e-4) << "it is in FP8";
    EXPECT_LT(second, 0.1 * first);
  }
}

// A model whose head's inputs have a large part in common, the same in all columns: E4M3 has a step of 1 there, as large as
// the rows' differences.
std::unique_ptr<TinyRun> run_with_common_part(Fp8Recipe recipe, Fp8Head head, bool all = false) {
  auto run = std::make_unique<TinyRun>(
      TinyRunOptions{.preset = "gpt2-tiny",
                     .precision = Precision::Fp8,
                     .fp8 = {.recipe = recipe, .head = head, .skip_layers = {"layers.*"}},
                     .gradients = DType::F32,
                     .head_all_rows = all,
                     .untied_head = true});
  Parameter& bias = run->model->parameters()["final_norm.bias"];
  ParameterSet::set_weight(*run->device, bias,
                           std::vector<float>(static_cast<size_t>(bias.weight.numel()), 10.0f));
  run->model->weights_changed();
  return run;
}

std::vector<float> head_gradient(TinyRun& run) {
  return gradient_of(run, run.model->linears().back()->weight.parameter());
}

// The part of each row that does not point in the common direction.
std::vector<float> without_common_part(TinyRun& run) {
  std::vector<float> values = head_gradient(run);
  const auto width = static_cast<size_t>(run.model->linears().back()->weight.parameter().gradient.cols());
  for (size_t row = 0; row < values.size(); row += width) {
    const float mean = std::accumulate(&values[row], &values[row] + width, 0.0f) / static_cast<float>(width);
    for (size_t c = 0; c < width; ++c) values[row + c] -= mean;
  }
  return values;
}

// A step of `micro_batches` micro-batches with `targets` targets each. Their losses are those of the other run. Gradients are
// divided by 64: they must not be too large for the scales that were delayed.
void expect_equal_losses(TinyRun& run, TinyRun& other, const std::vector<Batch>& batches, int64_t targets,
                         int micro_batches) {
  for (int i = 0; i < micro_batches; ++i) {
    const Batch masked = with_targets(batches[static_cast<size_t>(i)], targets);
    EXPECT_EQ(pass(run, masked, i == 0, 0, 64), pass(other, masked, i == 0, 0, 64));
  }
}

// With every recipe, from the first micro-batch on, if rows without a target are skipped, and if gradients are added up.
TEST(TrainedHead, Fp8GradientsOfTheWeightSeeSmallDifferencesOfItsInput) {
  for (const Fp8Recipe recipe :
       {Fp8Recipe::Delayed, Fp8Recipe::Current, Fp8Recipe::Block, Fp8Recipe::Mxfp8}) {
    for (const Fp8Head head : {Fp8Head::Wgrad, Fp8Head::Backward}) {
      const auto bf16 = run_with_common_part(recipe, Fp8Head::None), fp8 = run_with_common_part(recipe, head);
      const std::vector<Batch> batches = {next_batch(*bf16), next_batch(*bf16), next_batch(*bf16)};
      for (const auto& [targets, micro_batches] :
           {std::pair{64, 1}, {64, 1}, {64, 3}, {40, 1}, {40, 2}, {1, 1}}) {
        SCOPED_TRACE(
            fmt::format("{} {} {} {}", name_of(recipe), static_cast<int>(head), targets, micro_batches));
        expect_equal_losses(*fp8, *bf16, batches, targets, micro_batches);
        const double error = norm_difference(without_common_part(*fp8), without_common_part(*bf16));
        EXPECT_GT(error, 1e-4) << "it is in FP8";
        EXPECT_LT(error, 0.04);
        EXPECT_LT(norm_difference(head_gradient(*fp8), head_gradient(*bf16)), 0.01);
      }
    }
  }
}

// The gradient of the final norm's bias is the sum over rows of the gradient of the head's input. Weights in FP8 alone would
// change it by 2 % to 3 %. What is left is rounding of the rows to bf16. With `dgrad`, inputs are not centred, as with a
// frozen head.
TEST(TrainedHead, Fp8GradientsOfTheInputHaveTheRightMean) {
  const auto bias = [](TinyRun& run) { return gradient_of(run, run.model->parameters()["final_norm.bias"]); };
  for (const Fp8Recipe recipe :
       {Fp8Recipe::Delayed, Fp8Recipe::Current, Fp8Recipe::Block, Fp8Recipe::Mxfp8}) {
    for (const Fp8Head head : {Fp8Head::Dgrad, Fp8Head::Backward}) {
      for (const bool all : {false, true}) {
        const auto bf16 = run_with_common_part(recipe, Fp8Head::None, all),
                   fp8 = run_with_common_part(recipe, head, all);
        const std::vector<Batch> batches = {next_batch(*bf16), next_batch(*bf16), next_batch(*bf16)};
        for (const auto& [targets, micro_batches] :
             {std::pair{64, 1}, {61, 1}, {61, 3}, {40, 1}, {17, 1}, {1, 1}}) {
          SCOPED_TRACE(fmt::format("{} {} {} {} {}", name_of(recipe), static_cast<int>(head), all, targets,
                                   micro_batches));
          expect_equal_losses(*fp8, *bf16, batches, targets, micro_batches);
          const double error = norm_difference(bias(*fp8), bias(*bf16));
          EXPECT_GT(error, 1e-5) << "it is in FP8";
          EXPECT_LT(error, 0.004);
        }
      }
    }
  }
}

// Where the others are bf16, as on the GPU without accumulation, those that several products add to are fp32.
TEST(TrainedHead, GradientsThatAreSummedAreFp32) {
  for (const bool untied : {false, true}) {
    SCOPED_TRACE(untied);
    TinyRun run({.preset = "gpt2-tiny", .gradients = DType::BF16, .untied_head = untied});
    EXPECT_EQ(run.model->linears().back()->weight.parameter().gradient.dtype, DType::F32);
    EXPECT_EQ(run.model->linears().front()->weight.parameter().gradient.dtype, DType::BF16);
  }
}

// A micro-batch may have no target at all, such as one of a long prompt.
TEST(TrainedHead, Fp8GradientsStayAsTheyAreWithoutTargets) {
  const auto gradients = [](TinyRun& run) {
    std::vector<float> values = head_gradient(run);
    const std::vector<float> bias = gradient_of(run, run.model->parameters()["final_norm.bias"]);
    values.insert(values.end(), bias.begin(), bias.end());
    return values;
  };
  for (const Fp8Recipe recipe : {Fp8Recipe::Delayed, Fp8Recipe::Block}) {
    for (const bool all : {false, true}) {
      SCOPED_TRACE(fmt::format("{} {}", name_of(recipe), all));
      const auto run = run_with_common_part(recipe, Fp8Head::Backward, all);
      const Batch batch = next_batch(*run), none = with_targets(batch, 0);
      EXPECT_EQ(pass(*run, none, true, 0, 64), 0.0);
      for (const float value : gradients(*run)) ASSERT_EQ(value, 0.0f);
      EXPECT_GT(pass(*run, batch, true, 0, 64), 0.0);
      const std::vector<float> alone = gradients(*run);
      EXPECT_EQ(pass(*run, none, false, 0, 64), 0.0);
      EXPECT_EQ(gradients(*run), alone);
      EXPECT_EQ(pass(*run, none, true, 0, 64), 0.0);
      EXPECT_GT(pass(*run, batch, false, 0, 64), 0.0);
      EXPECT_EQ(gradients(*run), alone);
    }
  }
}

// Logits in FP8 read the inputs as they are. The copy without the mean, which is made after it, must not leave them its
// scale.
TEST(TrainedHead, Fp8LogitsKeepTheScaleOfTheirInput) {
  const auto bf16 = run_with_common_part(Fp8Recipe::Delayed, Fp8Head::None),
             fp8 = run_with_common_part(Fp8Recipe::Delayed, Fp8Head::All);
  const Batch batch = next_batch(*bf16);
  for (const bool first : {true, false, false}) {
    EXPECT_NEAR(pass(*fp8, batch, first) / pass(*bf16, batch, first), 1.0, 1e-2);
    EXPECT_LT(norm_difference(head_gradient(*fp8), head_gradient(*bf16)), 0.1);  // rounded logits: 0.06
  }
}

// Sees what a device would record.
struct RecordingDevice : CpuDevice {
  RecordingDevice() : CpuDevice(1) {}
  void repeat(const std::string& signature, const std::function<void()>& work) override {
    signatures.push_back(signature);
    work();
  }
  std::vector<std::string> signatures;
};

TEST(HeadRecording, IsOfANumberOfRows) {
  RecordingDevice device;
  TinyRunOptions options{.precision = Precision::Bf16, .adapters = lora_plan("llama-tiny"), .graphs = true};
  TinyRun run(options, &device);
  const Batch batch = next_batch(run);
  pass(run, batch);  // the first one is always recorded apart
  std::set<std::string> forward_signatures, head_signatures;
  const auto signature = [&](int64_t targets) {
    device.signatures.clear();
    pass(run, with_targets(batch, targets));
    EXPECT_EQ(device.signatures.size(), 3u);  // forward, head, backward
    forward_signatures.insert(device.signatures.at(0));
    head_signatures.insert(device.signatures.at(1));
    return device.signatures.at(1);
  };
  const std::string one = signature(1), two = signature(17), all = signature(64);
  EXPECT_NE(one, two);
  EXPECT_NE(two, all);
  // Few different recordings of the head: 16, 32, 48 and 64 rows of 64.
  EXPECT_EQ(signature(0), one);
  EXPECT_EQ(signature(16), one);
  EXPECT_EQ(signature(32), two);
  EXPECT_EQ(signature(49), all);
  EXPECT_NE(signature(48), all);
  EXPECT_EQ(head_signatures.size(), 4u);
  // The rest of a micro-step does not depend on it.
  EXPECT_EQ(forward_signatures.size(), 1u);
}

}  // namespace
}  // namespace octet::test
