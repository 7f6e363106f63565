// What FP8 takes from the sums of rows of the gradient. The op table has the rest.

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

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
  void run(Tensor correction_out, Quantized* fp8 = nullptr) {
    const Tensor values{logits.data(), DType::BF16, {kRows, kWidth}};
    device->ops().cross_entropy({.dense = values, .fp8 = fp8}, correction_out,
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
                     correction = std::vector<float>(kRows, 9.0f);
};

// A likely token among 152,000 unlikely ones, which together have a share that counts.
TEST(Loss, OfALargeVocabularyIsThatOfDoublePrecision) {
  constexpr int64_t rows = 8, vocab = 152'000;
  std::vector<float> logits(rows * vocab);
  std::vector<int32_t> targets(rows);
  double expected = 0;
  for (int64_t r = 0; r < rows; ++r) {
    float* row = logits.data() + r * vocab;
    for (int64_t c = 0; c < vocab; ++c)
      row[c] = 2.0f * Philox(3).normal(static_cast<uint64_t>(r * vocab + c)) - 17.0f;
    row[100 * r] = 0.5f;
    row[140'000] = 0.25f;
    targets[static_cast<size_t>(r)] = r % 2 == 0 ? 140'000 : 77;
    double total = 0;
    for (int64_t c = 0; c < vocab; ++c) total += std::exp(static_cast<double>(row[c]));
    expected += std::log(total) - static_cast<double>(row[targets[static_cast<size_t>(r)]]);
  }
  const std::unique_ptr<Device> device = make_cpu_device(2);
  std::vector<float> loss(rows);
  device->ops().cross_entropy({}, {}, {loss.data(), DType::F32, {rows}}, {}, {},
                              {logits.data(), DType::F32, {rows, vocab}},
                              {targets.data(), DType::I32, {rows}}, {.vocab = vocab});
  const double sum = std::accumulate(loss.begin(), loss.end(), 0.0);
  EXPECT_NEAR(sum / expected, 1.0, 1e-7);
}

// Rows of codes, with what is added at their targets, have the sums that they had before rounding.
TEST(LossCorrection, KeepsTheSumsOfRows) {
  for (const PenaltyKind penalty :
       {PenaltyKind::None, PenaltyKind::ZLoss, PenaltyKind::Entropy, PenaltyKind::LogitL2}) {
    for (const bool rowwise : {true, false}) {
      LossRun plain(penalty), run(penalty);
      plain.run({});
      std::vector<uint8_t> codes(kRows * kWidth, 0xAA);
      ScaleSlot slot{.scale_rowwise = 57344.0f / 0.125f, .scale_colwise = 57344.0f / 0.125f};
      slot.inverse_rowwise = slot.inverse_colwise = 0.125f / 57344.0f;
      Quantized fp8(
          QuantizeRule{.format_rowwise = DType::E5M2, .format_colwise = DType::E5M2, .delayed = true});
      fp8.slot = &slot;
      QuantizedMatrix& copy = rowwise ? fp8.rowwise : fp8.colwise;
      copy.codes = {codes.data(), DType::E5M2, {rowwise ? kRows : kWidth, rowwise ? kWidth : kRows}};
      copy.tensor_scale = &slot.inverse_rowwise;
      run.run({run.correction.data(), DType::F32, {kRows}}, &fp8);
      EXPECT_EQ(run.loss, plain.loss);
      EXPECT_EQ(run.penalties, plain.penalties);
      double largest = 0;
      for (int64_t r = 0; r < kRows; ++r) {
        double before = 0, after = 0;
        for (int64_t c = 0; c < kWidth; ++c) {
          const auto i = static_cast<size_t>(r * kWidth + c);
          EXPECT_EQ(run.logits[i].bits, plain.logits[i].bits);
          before += static_cast<double>(to_float(plain.logits[i]));
          const uint8_t code = codes[rowwise ? i : static_cast<size_t>(c * kRows + r)];
          after += static_cast<double>(fp8_values(DType::E5M2)[code] * slot.inverse_rowwise);
        }
        const double correction = static_cast<double>(run.correction[static_cast<size_t>(r)]);
        if (run.targets[static_cast<size_t>(r)] < 0) {
          EXPECT_EQ(correction, 0.0);
        }
        EXPECT_NEAR(after + correction, before, 1e-7);
        largest = std::max(largest, std::fabs(correction));
      }
      EXPECT_GT(largest, 1e-3) << "there is something to correct";
    }
  }
}

}  // namespace
}  // namespace octet::test
