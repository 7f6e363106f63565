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

// Every check has a fixture of its own, so that it runs for those cases alone that have what it checks. A parameter is a
// pointer because gtest copies it many times, in every process.
class OpForward : public testing::TestWithParam<const OpCase*> {};
class OpBackward : public testing::TestWithParam<const OpCase*> {};
class OpFused : public testing::TestWithParam<const OpCase*> {};
class OpThreads : public testing::TestWithParam<const OpCase*> {};

std::vector<const OpCase*> cases_with(bool (*condition)(const OpCase&)) {
  static const std::vector<OpCase> table = test::op_table();
  std::vector<const OpCase*> cases;
  for (const OpCase& op_case : table) {
    if (condition(op_case)) cases.push_back(&op_case);
  }
  return cases;
}

std::string name_of(const testing::TestParamInfo<const OpCase*>& test) {
  return test.param->name;
}

double loss_of(const OpCase& op_case, const Arrays& weights, const Arrays& inputs) {
  const Arrays outputs = op_case.reference(inputs);
  double loss = 0;
  for (size_t i = 0; i < outputs.size(); ++i) {
    for (size_t j = 0; j < weights[i].size(); ++j) loss += weights[i][j] * outputs[i][j];
  }
  return loss;
}

TEST_P(OpForward, MatchesDoublePrecision) {
  const OpCase& op_case = *GetParam();
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

TEST_P(OpBackward, MatchesFiniteDifferences) {
  const OpCase& op_case = *GetParam();
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
TEST_P(OpFused, HasTheBitsOfSeparateOps) {
  const OpCase& op_case = *GetParam();
  const auto device = make_cpu_device(2);
  OpRun run(*device, op_case);
  run.forward();
  const OpResult result = run.result();
  EXPECT_EQ(test::mismatch(op_case, result, result), "");
}

TEST_P(OpThreads, SameBitsForAnyNumber) {
  const OpCase& op_case = *GetParam();
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

INSTANTIATE_TEST_SUITE_P(Table, OpForward, testing::ValuesIn(cases_with([](const OpCase& op_case) {
                           return op_case.reference != nullptr;
                         })),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Table, OpBackward, testing::ValuesIn(cases_with([](const OpCase& op_case) {
                           return op_case.backward && !op_case.large &&
                                  std::ranges::any_of(op_case.inputs, &test::Value::differentiable);
                         })),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Table, OpFused, testing::ValuesIn(cases_with([](const OpCase& op_case) {
                           return !op_case.equal.empty();
                         })),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Table, OpThreads, testing::ValuesIn(cases_with([](const OpCase&) { return true; })),
                         name_of);

}  // namespace
}  // namespace octet
