#include <gtest/gtest.h>

#include "ops/device.h"
#include "support/op_case.h"

// Every case of the op table on the GPU against the CPU backend: fp32 results differ in the order of sums and
// the last bits of exp; bf16 results besides by a rounding here and there.

namespace octet::test {
namespace {

// ||a - b|| / ||b||. bf16 rounds by 1.1e-3 on average; two results that are rounded in different places (a bias added
// by its own kernel, p rounded before the product with v) differ by up to about 2.5 times that.
double tolerance(DType dtype) {
  return dtype == DType::BF16 ? 3e-3 : 1e-5;
}

class CudaOps : public testing::TestWithParam<OpCase> {};

TEST_P(CudaOps, AgreeWithCpu) {
  const CudaProbe probe = probe_cuda();
  if (!probe.usable) GTEST_SKIP() << "no GPU: " << probe.reason;
  const OpCase& op_case = GetParam();
  const auto cuda = make_cuda_device({.deterministic = true});
  const auto cpu = make_cpu_device(1);
  OpRun expected_run(*cpu, op_case), run(*cuda, op_case);
  expected_run.forward();
  expected_run.backward();
  run.forward();
  run.backward();
  const OpResult expected = expected_run.result(), got = run.result();
  for (size_t i = 0; i < op_case.outputs.size(); ++i) {
    const Output& output = op_case.outputs[i];
    if (output.dtype == DType::I32) {
      EXPECT_EQ(got.output_bytes[i], expected.output_bytes[i]) << output.name;
    } else {
      EXPECT_LE(relative_error(got.outputs[i], expected.outputs[i]), tolerance(op_case.dtype)) << output.name;
    }
  }
  for (size_t i = 0; i < op_case.inputs.size(); ++i) {
    if (!op_case.inputs[i].differentiable || !op_case.backward) continue;
    EXPECT_LE(relative_error(got.gradients[i], expected.gradients[i]), tolerance(op_case.dtype))
        << "gradient of " << op_case.inputs[i].name;
  }
}

TEST_P(CudaOps, SameBitsTwice) {
  const CudaProbe probe = probe_cuda();
  if (!probe.usable) GTEST_SKIP() << "no GPU: " << probe.reason;
  const OpCase& op_case = GetParam();
  if (op_case.name.find("attention") != std::string::npos) GTEST_SKIP() << "tested beside the attention ops";
  const auto cuda = make_cuda_device({.deterministic = true});
  OpRun first(*cuda, op_case);
  first.forward(), first.backward();
  const OpResult a = first.result();
  OpRun second(*cuda, op_case);
  second.forward(), second.backward();
  const OpResult b = second.result();
  EXPECT_EQ(a.output_bytes, b.output_bytes);
  EXPECT_EQ(a.gradient_bytes, b.gradient_bytes);
}

INSTANTIATE_TEST_SUITE_P(Table, CudaOps, testing::ValuesIn(op_table()),
                         [](const testing::TestParamInfo<OpCase>& test) { return test.param.name; });

}  // namespace
}  // namespace octet::test
