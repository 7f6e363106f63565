// The gradient of targets apart from that of the other logits. The op table has the rest.

#include <gtest/gtest.h>

#include <cmath>

#include "base/philox.h"
#include "ops/device.h"

namespace octet::test {
namespace {

constexpr int64_t kRows = 19, kVocab = 70, kWidth = 80;

// A batch of logits with some rows without a target, and what cross_entropy makes of it.
struct LossRun {
  explicit LossRun(PenaltyKind penalty)
      : options{.vocab = kVocab, .penalty = penalty, .penalty_weight = 0.2f} {
    workspace.resize(1 << 20);
    device->ops().set_workspace({workspace.data(), DType::U8, {std::ssize(workspace)}});
    options.gradient_scale = {&scale, DType::F32, {1}};
    for (size_t i = 0; i < logits.size(); ++i) logits[i] = to_bf16(3.0f * Philox(7).normal(i));
    for (int32_t r = 0; r < kRows; ++r)
      targets[static_cast<size_t>(r)] = r % 4 == 2 ? -1 : 7 * r % static_cast<int32_t>(kVocab);
  }
  void run(Tensor target_gradient, Quantized* fp8 = nullptr) {
    const Tensor values{logits.data(), DType::BF16, {kRows, kWidth}};
    device->ops().cross_entropy({.dense = values, .fp8 = fp8}, target_gradient,
                                {loss.data(), DType::F32, {kRows}}, {penalties.data(), DType::F32, {kRows}},
                                {}, values, {targets.data(), DType::I32, {kRows}}, options);
  }
  std::unique_ptr<Device> device = make_cpu_device(2);
  std::vector<std::byte> workspace;
  float scale = 0.125f;
  LossOptions options;
  std::vector<Bf16> logits = std::vector<Bf16>(kRows * kWidth);  // their gradient afterwards
  std::vector<int32_t> targets = std::vector<int32_t>(kRows);
  std::vector<float> loss = std::vector<float>(kRows), penalties = loss,
                     apart = std::vector<float>(kRows, 9.0f);
};

TEST(LossTargets, AreZeroInTheGradientAndExactBesideIt) {
  for (const PenaltyKind penalty :
       {PenaltyKind::None, PenaltyKind::ZLoss, PenaltyKind::Entropy, PenaltyKind::LogitL2}) {
    LossRun whole(penalty), parted(penalty);
    whole.run({});
    parted.run({parted.apart.data(), DType::F32, {kRows}});
    EXPECT_EQ(parted.loss, whole.loss);
    EXPECT_EQ(parted.penalties, whole.penalties);
    for (int64_t r = 0; r < kRows; ++r) {
      const int32_t target = whole.targets[static_cast<size_t>(r)];
      const float own = parted.apart[static_cast<size_t>(r)];
      if (target < 0) {
        EXPECT_EQ(own, 0.0f);
      }
      for (int64_t c = 0; c < kWidth; ++c) {
        const auto i = static_cast<size_t>(r * kWidth + c);
        if (c == target) {
          EXPECT_EQ(to_bf16(own).bits, whole.logits[i].bits);
          EXPECT_LT(own, 0.0f);
          EXPECT_EQ(parted.logits[i].bits, 0);
        } else {
          EXPECT_EQ(parted.logits[i].bits, whole.logits[i].bits);
        }
      }
    }
  }
}

// A scale for the next step must leave room for all logits, also when a target becomes unlikely.
TEST(LossTargets, CountForTheAmax) {
  LossRun run(PenaltyKind::None);
  std::vector<uint8_t> codes(kRows * kWidth, 0xAA);
  ScaleSlot slot;
  Quantized fp8{.rule = {.format_rowwise = DType::E5M2, .delayed = true}, .slot = &slot};
  fp8.rowwise = {.codes = {codes.data(), DType::E5M2, {kRows, kWidth}},
                 .tensor_scale = &slot.inverse_rowwise};
  run.run({run.apart.data(), DType::F32, {kRows}}, &fp8);
  float largest = 0, largest_other = 0;
  for (const float value : run.apart) largest = std::max(largest, std::fabs(value));
  for (const Bf16 value : run.logits) largest_other = std::max(largest_other, std::fabs(to_float(value)));
  EXPECT_GT(largest, largest_other);
  EXPECT_EQ(slot.amax, largest);
  EXPECT_EQ(slot.amax_last, largest_other);
  for (int64_t r = 0; r < kRows; ++r) {
    const int32_t target = run.targets[static_cast<size_t>(r)];
    if (target >= 0) {
      EXPECT_EQ(codes[static_cast<size_t>(r * kWidth + target)], 0);
    }
  }
}

}  // namespace
}  // namespace octet::test
