#include <gtest/gtest.h>

#include "cuda/fixture.h"
#include "support/op_case.h"

// Every case of the op table on the GPU against the CPU. How far they may differ is said in support/tolerance.h; codes of
// FP8 and all of AdamW's state have the same bits.

namespace octet::test {
namespace {

class CudaOps : public testing::TestWithParam<OpCase> {
 protected:
  void SetUp() override {
    const CudaProbe probe = probe_cuda();
    if (!probe.usable) GTEST_SKIP() << "no GPU: " << probe.reason;
  }
  static OpResult run(Device& device, const OpCase& op_case) {
    OpRun run(device, op_case);
    run.forward();
    run.backward();
    return run.result();
  }
};

TEST_P(CudaOps, AgreeWithCpu) {
  const OpCase& op_case = GetParam();
  EXPECT_EQ(mismatch(op_case, run(shared_cuda_device(), op_case), run(shared_cpu_device(), op_case)), "");
}

TEST_P(CudaOps, SameBitsTwice) {
  const OpCase& op_case = GetParam();
  if (op_case.name.find("attention") != std::string::npos) GTEST_SKIP() << "tested with the attention ops";
  const OpResult a = run(shared_cuda_device(), op_case), b = run(shared_cuda_device(), op_case);
  for (size_t i = 0; i < op_case.outputs.size(); ++i) {
    const Output& output = op_case.outputs[i];
    // Content that the contract leaves open: the dense form of an operand that keeps none.
    if (output.compare == Compare::Own && output.name == "dense") continue;
    EXPECT_TRUE(a.output_bytes[i] == b.output_bytes[i]) << output.name;
  }
  EXPECT_TRUE(a.gradient_bytes == b.gradient_bytes);
}

INSTANTIATE_TEST_SUITE_P(Table, CudaOps, testing::ValuesIn(op_table()),
                         [](const testing::TestParamInfo<OpCase>& test) { return test.param.name; });

}  // namespace
}  // namespace octet::test
