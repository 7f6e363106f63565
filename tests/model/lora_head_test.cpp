// A frozen head computes only the rows that have a target, rounded up to a few different numbers.

#include <gtest/gtest.h>

#include "backend/cpu/cpu_device.h"
#include "support/lora_run.h"

namespace octet::test {
namespace {

// The same model with a trained head, which computes all rows. The adapters have the same gradients.
TinyRunOptions all_rows(TinyRunOptions options) {
  const std::string head = two_layers(options.preset).tied_head ? "embedding.tokens" : "head.weight";
  const bool fp8 = options.precision == Precision::Fp8;
  options.storage = [head, fp8](const ParameterSpec& spec) {
    const bool base = spec.name.starts_with("layers.") && spec.shape.rank() == 2 && !spec.is_adapter();
    return ParameterStorage{.trainable = spec.is_adapter() || spec.name == head, .dense = !(fp8 && base)};
  };
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

// A row of logits does not depend on the other rows, but the order in which a product adds may depend on their number:
// OpenBLAS has other kernels for few rows, and which ones differs from CPU to CPU. In fp32 that is a last bit. Where values
// are rounded to BF16 or FP8 afterwards, some of them are rounded to the other side, and then those that follow from them:
// at most, everything differs by the rounding of that format. A target too few differs much more (below).
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
                 .fp8 = {.recipe = Fp8Recipe::Delayed, .head = fp8_head},
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

// Sees what a device would record.
struct RecordingDevice : CpuDevice {
  RecordingDevice() : CpuDevice(1) {}
  void repeat(const std::string& signature, const std::function<void()>& work) override {
    signatures.push_back(signature);
    work();
  }
  std::vector<std::string> signatures;
};

TEST(LoraHeadRecording, IsOfANumberOfRows) {
  RecordingDevice device;
  TinyRunOptions options{.precision = Precision::Bf16, .adapters = lora_plan("llama-tiny"), .graphs = true};
  TinyRun run(options, &device);
  const Batch batch = next_batch(run);
  pass(run, batch);  // the first one is always recorded apart
  device.signatures.clear();
  const auto signature = [&](int64_t targets) {
    pass(run, with_targets(batch, targets));
    return device.signatures.back();
  };
  const std::string one = signature(1), two = signature(17), all = signature(64);
  EXPECT_NE(one, two);
  EXPECT_NE(two, all);
  // Few different recordings: 16, 32, 48 and 64 rows of 64.
  EXPECT_EQ(signature(0), one);
  EXPECT_EQ(signature(16), one);
  EXPECT_EQ(signature(32), two);
  EXPECT_EQ(signature(49), all);
  EXPECT_NE(signature(48), all);
  std::vector<std::string> all_signatures = device.signatures;
  std::ranges::sort(all_signatures);
  all_signatures.erase(std::unique(all_signatures.begin(), all_signatures.end()), all_signatures.end());
  EXPECT_EQ(all_signatures.size(), 4u);
}

}  // namespace
}  // namespace octet::test
