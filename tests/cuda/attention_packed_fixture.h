#pragma once

#include "cuda/attention_fixture.h"

namespace octet::test {

// Packed documents through cuDNN. A refusal fails the test with cuDNN's reason, except where there is no cuDNN or one that
// is too old.
class CudnnPacked : public CudaAttention {
 protected:
  void SetUp() override {
    CudaAttention::SetUp();
    if (IsSkipped()) return;
    cuda = make_side("cudnn");
    static const std::string reason = try_run(*cuda, packed_case("first", 4, 2, 64, {1000, 24}));
    if (reason.find("built without cuDNN") != std::string::npos ||
        reason.find("cannot be opened") != std::string::npos ||
        reason.find("packed documents need") != std::string::npos) {
      GTEST_SKIP() << reason;
    }
    ASSERT_EQ(reason, "") << "cuDNN refuses ordinary packed documents";
  }

  // Empty, or why cuDNN does not take the case.
  static std::string try_run(Side& side, const AttentionTestCase& attention) {
    try {
      run_attention(side, attention, DType::BF16);
    } catch (const Error& error) {
      const auto reason = refusal(error);
      if (!reason) throw;
      return *reason;
    }
    return "";
  }

  void expect_as_cpu(const AttentionTestCase& attention, uint64_t seed = 1) {
    SCOPED_TRACE(fmt::format("{} heads of {} sharing {}, {} tokens, {} documents, seed {}", attention.heads,
                             attention.depth, attention.kv_heads, attention.tokens,
                             attention.starts.size() - 1, seed));
    compare(attention, DType::BF16, run_attention(*cuda, attention, DType::BF16, seed),
            run_attention(*cpu, attention, DType::BF16, seed), false);
  }
};

}  // namespace octet::test
