#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/philox.h"
#include "support/op_case.h"

namespace octet {
namespace {

using test::Arrays;
using test::OpCase;
using test::OpResult;
using test::OpRun;

// Against double precision: fp32 results differ by rounding alone; bf16 results are rounded once on the way out (2^-9 at
// most), gradients also read bf16 intermediate results.
test::Tolerance forward_tolerance(DType dtype) {
  return dtype == DType::F32 ? test::Tolerance{2e-6, 5e-5} : test::Tolerance{2.5e-3, 1e-2};
}
test::Tolerance gradient_tolerance(DType dtype) {
  return dtype == DType::F32 ? test::Tolerance{1e-5, 2e-4} : test::Tolerance{5e-3, 5e-2};
}

class OpTest : public testing::TestWithParam<OpCase> {};

double loss_of(const OpCase& op_case, const Arrays& weights, const Arrays& inputs) {
  const Arrays outputs = op_case.reference(inputs);
  double loss = 0;
  for (size_t i = 0; i < outputs.size(); ++i) {
    for (size_t j = 0; j < weights[i].size(); ++j) loss += weights[i][j] * outputs[i][j];
  }
  return loss;
}

TEST_P(OpTest, ForwardMatchesDoublePrecision) {
  const OpCase& op_case = GetParam();
  if (!op_case.reference) return;
  const auto device = make_cpu_device(2);
  OpRun run(*device, op_case);
  run.forward();
  const OpResult result = run.result();
  Arrays inputs = op_case.input_data();
  const Arrays expected = op_case.reference(inputs);
  ASSERT_EQ(expected.size(), result.outputs.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(test::mismatch(result.outputs[i], expected[i], forward_tolerance(op_case.outputs[i].dtype)), "")
        << op_case.outputs[i].name;
  }
}

TEST_P(OpTest, GradientsMatchFiniteDifferences) {
  const OpCase& op_case = GetParam();
  if (!op_case.backward || op_case.large) return;
  const auto device = make_cpu_device(2);
  OpRun run(*device, op_case);
  run.forward();
  run.backward();
  const OpResult result = run.result();
  Arrays inputs = op_case.input_data();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto& input = op_case.inputs[i];
    if (!input.differentiable) continue;
    // Central differences of the double reference at up to 64 places.
    const size_t samples = std::min<size_t>(64, inputs[i].size());
    std::vector<double> analytic, numeric;
    for (size_t s = 0; s < samples; ++s) {
      const size_t j = samples == inputs[i].size() ? s : Philox(5, i).below(s, inputs[i].size());
      const double step = 1e-5, middle = inputs[i][j];
      inputs[i][j] = middle + step;
      const double above = loss_of(op_case, run.upstream(), inputs);
      inputs[i][j] = middle - step;
      const double below = loss_of(op_case, run.upstream(), inputs);
      inputs[i][j] = middle;
      const double before = input.accumulates ? run.initial_gradients()[i][j] : 0.0;
      analytic.push_back(result.gradients[i][j]);
      numeric.push_back(before + (above - below) / (2 * step));
    }
    EXPECT_EQ(test::mismatch(analytic, numeric, gradient_tolerance(op_case.dtype)), "") << input.name;
    for (const double x : result.gradients[i]) ASSERT_TRUE(std::isfinite(x)) << input.name;
  }
}

// Codes that an op writes itself are those of quantize().
TEST_P(OpTest, FusedFormsHaveTheBitsOfSeparateOps) {
  const OpCase& op_case = GetParam();
  if (op_case.equal.empty()) return;
  const auto device = make_cpu_device(2);
  OpRun run(*device, op_case);
  run.forward();
  const OpResult result = run.result();
  EXPECT_EQ(test::mismatch(op_case, result, result), "");
}

TEST_P(OpTest, SameBitsForAnyNumberOfThreads) {
  const OpCase& op_case = GetParam();
  std::vector<OpResult> results;
  for (const int threads : {1, 2, 3}) {
    const auto device = make_cpu_device(threads);
    OpRun run(*device, op_case);
    run.forward();
    run.backward();
    results.push_back(run.result());
  }
  for (size_t k = 1; k < results.size(); ++k) {
    EXPECT_EQ(results[k].output_bytes, results[0].output_bytes);
    EXPECT_EQ(results[k].gradient_bytes, results[0].gradient_bytes);
  }
}

INSTANTIATE_TEST_SUITE_P(Table, OpTest, testing::ValuesIn(test::op_table()),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace octet
