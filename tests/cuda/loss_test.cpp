#include <cmath>
#include <limits>
#include <numeric>

#include "cuda/fixture.h"

// Rows at the ends of the range, against the CPU. The op table has the usual ones.

namespace octet::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Row {
  const char* name;
  float fill;  // of all logits but those below
  std::vector<std::pair<int64_t, float>> values;
  int32_t target;
  int32_t correct;
};

// For gradients up to 0.5.
constexpr ScaleSlot kGradientSlot{.scale_rowwise = 114688.0f,
                                  .scale_colwise = 114688.0f,
                                  .inverse_rowwise = 1.0f / 114688.0f,
                                  .inverse_colwise = 1.0f / 114688.0f};

class CudaLoss : public CudaTest {
 protected:
  struct Result {
    std::vector<float> loss, penalty, gradient, correction;
    float amax = 0;
    std::vector<int32_t> correct;
  };

  Result run(Side& side, DType dtype, const std::vector<Row>& rows, LossOptions options, int64_t width,
             bool in_place, bool corrected) {
    const size_t mark = side.mark();
    options.gradient_scale = side.upload(DType::F32, {1}, {0.5f});
    const auto n = std::ssize(rows);
    std::vector<float> values;
    std::vector<int32_t> ids;
    for (const Row& row : rows) {
      const size_t begin = values.size();
      values.resize(begin + static_cast<size_t>(width), row.fill);
      for (const auto& [column, value] : row.values) values[begin + static_cast<size_t>(column)] = value;
      // What stands in the padding must not matter.
      for (int64_t c = options.vocab; c < width; ++c) values[begin + static_cast<size_t>(c)] = kNan;
      ids.push_back(row.target);
    }
    const Tensor logits = side.upload(dtype, {n, width}, values);
    const Tensor gradient = in_place ? logits : side.tensor(dtype, {n, width});
    const Tensor loss = side.tensor(DType::F32, {n}), penalty = side.tensor(DType::F32, {n});
    const Tensor correct = side.tensor(DType::I32, {n}), targets = side.tensor(DType::I32, {n});
    side->copy_to_device(targets, ids.data());
    corrected = corrected && width % 16 == 0;
    const Tensor correction =
        corrected ? side.upload(DType::F32, {n}, std::vector<float>(rows.size(), 9.0f)) : Tensor{};
    Quantized fp8 = make_quantized(
        side, n, width, {.format_rowwise = DType::E5M2, .format_colwise = DType::E5M2, .delayed = true},
        kGradientSlot);
    Operand operand{.dense = gradient};
    if (corrected) operand.fp8 = &fp8;
    side->ops().cross_entropy(operand, correction, loss, penalty, correct, logits, targets, options);
    Result result{.loss = std::vector<float>(rows.size()),
                  .penalty = std::vector<float>(rows.size()),
                  .gradient = std::vector<float>(values.size()),
                  .correction = std::vector<float>(rows.size()),
                  .amax = side.value(fp8.slot).amax,
                  .correct = std::vector<int32_t>(rows.size())};
    side->copy_to_host(result.loss.data(), loss);
    side->copy_to_host(result.penalty.data(), penalty);
    side->copy_to_host(result.correct.data(), correct);
    if (corrected) side->copy_to_host(result.correction.data(), correction);
    if (dtype == DType::F32) {
      side->copy_to_host(result.gradient.data(), gradient);
    } else {
      std::vector<Bf16> rounded(values.size());
      side->copy_to_host(rounded.data(), gradient);
      for (size_t i = 0; i < rounded.size(); ++i) result.gradient[i] = to_float(rounded[i]);
    }
    side.release(mark);
    return result;
  }
};

// Beyond the first 8192 columns a row is read in another way, and 9001 ends within a vector.
TEST_F(CudaLoss, RowsAtTheEndsOfTheRange) {
  const int64_t vocab = 9001;
  const std::vector<Row> rows = {
      {"one logit, the target", -kInf, {{5000, 2.5f}}, 5000, 1},
      {"one logit, the last, the target", -kInf, {{9000, 2.5f}}, 9000, 1},
      {"one logit, not the target", -kInf, {{5000, 2.5f}}, 7, 0},
      {"some logits missing", 0.5f, {{0, -kInf}, {8191, -kInf}, {8192, -kInf}, {9000, 3.0f}}, 9000, 1},
      {"huge", -1e30f, {{3, 1e30f}, {8999, 1e30f}}, 3, 1},
      {"huge, second of a tie", -1e30f, {{3, 1e30f}, {8999, 1e30f}}, 8999, 0},
      {"huge and negative", -1e30f, {{17, -0.9e30f}}, 17, 1},
      {"all at the lowest", -3e38f, {}, 1, 0},
      {"from the lowest to the highest", -3e38f, {{8200, 3e38f}}, 8200, 1},
      {"large, close together", 60000.0f, {{8, 60160.0f}}, 8, 1},
      {"all equal", 0.0f, {}, 0, 1},
      {"all equal, not the first", 0.0f, {}, 9000, 0},
      {"no target, not a number", kNan, {}, -1, 0},
      {"no target", 1.0f, {}, -1, 0},
  };
  for (const int64_t width : {int64_t{9001}, int64_t{9008}, int64_t{9088}}) {
    for (const DType dtype : {DType::BF16, DType::F32}) {
      for (const PenaltyKind penalty : {PenaltyKind::None, PenaltyKind::Entropy}) {
        for (const auto& [in_place, corrected] :
             {std::pair{false, false}, std::pair{true, false}, std::pair{true, true}}) {
          const LossOptions options{.vocab = vocab, .penalty = penalty, .penalty_weight = 0.3f};
          const Result expected = run(*cpu, dtype, rows, options, width, in_place, corrected);
          const Result got = run(*cuda, dtype, rows, options, width, in_place, corrected);
          EXPECT_NEAR(got.amax, expected.amax, 1e-5f * expected.amax);
          for (size_t r = 0; r < rows.size(); ++r) {
            EXPECT_NEAR(got.correction[r], expected.correction[r], 1e-4f) << rows[r].name;
          }
          for (size_t r = 0; r < rows.size(); ++r) {
            const std::string label =
                fmt::format("row '{}', {} of {}, {}, penalty {}, {}", rows[r].name, vocab, width,
                            name_of(dtype), static_cast<int>(penalty), in_place ? "in place" : "beside");
            const auto near = [](float a, float b) {
              return a == b || std::fabs(a - b) <= 2e-5f + 1e-5f * std::fabs(b);
            };
            EXPECT_TRUE(near(got.loss[r], expected.loss[r]))
                << label << ": loss " << got.loss[r] << ", expected " << expected.loss[r];
            EXPECT_TRUE(near(got.penalty[r], expected.penalty[r]))
                << label << ": penalty " << got.penalty[r] << ", expected " << expected.penalty[r];
            EXPECT_EQ(got.correct[r], rows[r].correct) << label;
            EXPECT_EQ(expected.correct[r], rows[r].correct) << label << " on the CPU";
            const float tolerance = dtype == DType::BF16 ? 1.0f / 128 : 2e-5f;
            for (int64_t c = 0; c < width; ++c) {
              const size_t i = r * static_cast<size_t>(width) + static_cast<size_t>(c);
              const float a = got.gradient[i], b = expected.gradient[i];
              const bool zero = rows[r].target < 0 || c >= vocab;
              ASSERT_TRUE(zero ? a == 0.0f : std::fabs(a - b) <= 1e-7f + tolerance * std::fabs(b))
                  << label << ": gradient of column " << c << " is " << a << ", expected " << b;
            }
          }
        }
      }
    }
  }
}

// A likely token among 152,000 unlikely ones, which together have a share that counts. fp32 is what evaluation computes.
TEST_F(CudaLoss, OfALargeVocabularyIsThatOfDoublePrecision) {
  constexpr int64_t rows = 8, vocab = 152'000;
  std::vector<float> values = normal_values(rows * vocab, 3, 2.0f);
  std::vector<int32_t> ids;
  double expected = 0;
  for (int64_t r = 0; r < rows; ++r) {
    float* row = values.data() + r * vocab;
    for (int64_t c = 0; c < vocab; ++c) row[c] -= 17.0f;
    row[100 * r] = 0.5f;
    row[140'000] = 0.25f;
    ids.push_back(r % 2 == 0 ? 140'000 : 77);
    double total = 0;
    for (int64_t c = 0; c < vocab; ++c) total += std::exp(static_cast<double>(row[c]));
    expected += std::log(total) - static_cast<double>(row[ids.back()]);
  }
  const Tensor logits = (*cuda).upload(DType::F32, {rows, vocab}, values);
  const Tensor targets = (*cuda).tensor(DType::I32, {rows}), loss = (*cuda).tensor(DType::F32, {rows});
  (*cuda)->copy_to_device(targets, ids.data());
  (*cuda)->ops().cross_entropy({}, {}, loss, {}, {}, logits, targets, {.vocab = vocab});
  std::vector<float> losses(rows);
  (*cuda)->copy_to_host(losses.data(), loss);
  EXPECT_NEAR(std::accumulate(losses.begin(), losses.end(), 0.0) / expected, 1.0, 1e-7);
}

// Both formats, one copy alone, and values that are too large for their scale. The rows are odd in number: half a warp has no
// last one.
TEST_F(CudaLoss, CorrectionsAreThoseOfTheCpu) {
  constexpr int64_t rows = 141, vocab = 1030, width = 1040;
  std::vector<int32_t> ids;
  for (int32_t r = 0; r < rows; ++r) ids.push_back(r % 5 == 3 ? -1 : 7 * r);
  for (const DType format : {DType::E5M2, DType::E4M3}) {
    for (const bool rowwise : {true, false}) {
      for (const float excess : {1.0f, 8.0f}) {
        std::vector<std::vector<float>> corrections, column_sums;
        for (Side* side : {cpu, cuda}) {
          const float scale = (format == DType::E5M2 ? 57344.0f : 448.0f) / 0.5f * excess;
          Quantized fp8 = make_quantized(
              *side, rows, width, {.format_rowwise = format, .format_colwise = format, .delayed = true},
              {.scale_rowwise = scale,
               .scale_colwise = scale,
               .inverse_rowwise = 1 / scale,
               .inverse_colwise = 1 / scale});
          if (!rowwise) fp8.rowwise = {};
          const Tensor logits =
              side->upload(DType::BF16, {rows, width}, normal_values(rows * width, 5, 4.0f));
          const Tensor targets = side->tensor(DType::I32, {rows}), loss = side->tensor(DType::F32, {rows});
          (*side)->copy_to_device(targets, ids.data());
          const Tensor correction = side->tensor(DType::F32, {rows});
          const Tensor sums = side->upload(DType::F32, {width}, std::vector<float>(width, 0.25f));
          (*side)->ops().cross_entropy(
              {.dense = logits, .fp8 = &fp8, .keep_dense = false, .column_sum = sums}, correction, loss, {},
              {}, logits, targets, {.vocab = vocab, .gradient_scale = side->upload(DType::F32, {1}, {0.5f})});
          column_sums.emplace_back(width);
          (*side)->copy_to_host(column_sums.back().data(), sums);
          std::vector<float> values(rows);
          (*side)->copy_to_host(values.data(), correction);
          corrections.push_back(values);
        }
        float largest = 0;
        for (size_t r = 0; r < rows; ++r) {
          // A probability whose last bit differs may get the next code of E4M3: 3.3e-5 where that happens here.
          EXPECT_NEAR(corrections[1][r], corrections[0][r], 4e-5f)
              << name_of(format) << (rowwise ? ", both copies" : ", transposed alone") << ", " << excess
              << ", row " << r;
          largest = std::max(largest, std::fabs(corrections[0][r]));
        }
        EXPECT_GT(largest, excess > 1 ? 0.1f : 1e-3f);
        // Those of the gradients before they are rounded to FP8, added to what was there. The tolerance is the last bit of
        // one gradient between 0.25 and 0.5 in bf16, where a value on the border may be rounded up or down.
        for (size_t c = 0; c < width; ++c)
          EXPECT_NEAR(column_sums[1][c], column_sums[0][c], 2e-3f)
              << name_of(format) << (rowwise ? ", both copies" : ", transposed alone") << ", " << excess
              << ", column " << c;
        EXPECT_EQ(column_sums[1].back(), 0.25f) << "a column of padding";
      }
    }
  }
}

}  // namespace
}  // namespace octet::test
