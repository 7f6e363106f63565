#include "cuda/attention_fixture.h"

// Both attention engines against the CPU backend.

namespace octet::test {
namespace {

// Lengths around the tile sizes 32, 64 and 128; one token; heads that share keys; every padded width.
std::vector<AttentionTestCase> all_cases() {
  std::vector<AttentionTestCase> cases = {
      packed_case("one document, GPT-2 heads", 12, 12, 64, {256}),
      packed_case("four equal documents", 4, 4, 64, {128, 128, 128, 128}),
      packed_case("grouped, D 128", 8, 2, 128, {256, 256}),
      packed_case("grouped, D 64", 6, 2, 64, {384}),
      packed_case("all heads share one key head", 4, 1, 32, {128, 128}),
      packed_case("odd equal lengths", 4, 2, 64, {77, 77, 77}),
      packed_case("odd lengths, D 128", 2, 1, 128, {1, 63, 64, 65, 127, 128, 129, 33, 31, 2, 200}),
      packed_case("odd lengths, D 64", 4, 2, 64, {1, 63, 64, 65, 127, 128, 129, 33, 31, 2, 200}),
      packed_case("odd lengths, D 32", 4, 4, 32, {5, 300, 17, 1, 1, 1, 66}),
      packed_case("empty documents between others", 2, 2, 64, {40, 0, 70, 0, 0, 3}),
      packed_case("D 16", 4, 2, 16, {100, 60}),
      packed_case("D 48", 4, 2, 48, {100, 60}),
      packed_case("D 80", 4, 2, 80, {130, 60}),
      packed_case("D 20, not a multiple of 8", 4, 2, 20, {50, 61}),
      packed_case("D 160", 2, 1, 160, {50, 61}),
      packed_case("one token", 2, 1, 64, {1}),
      packed_case("many short documents", 2, 1, 64, std::vector<int32_t>(300, 3)),
      packed_case("window 100", 4, 2, 64, {384}, 100),
      packed_case("window 64, D 128", 8, 2, 128, {256, 256}, 64),
      packed_case("window 1", 2, 1, 64, {256}, 1),
      packed_case("window 70, odd lengths", 4, 2, 64, {1, 63, 64, 65, 127, 70, 71, 33, 300, 2, 200}, 70),
      packed_case("window 33, D 32", 4, 4, 32, {5, 300, 17, 1, 1, 1, 66}, 33),
      packed_case("window 40, D 160", 2, 1, 160, {150, 61}, 40),
      packed_case("a window as long as the longest document", 4, 2, 64, {128, 128}, 128),
  };
  AttentionTestCase outside = packed_case("tokens outside the documents", 2, 1, 64, {30, 90, 11});
  for (int32_t& start : outside.starts) start += 7;
  outside.tokens = outside.starts.back() + 23;
  cases.push_back(outside);
  return cases;
}

TEST_F(CudaAttention, FlashMatchesCpu) {
  cuda = make_side("flash");
  for (const AttentionTestCase& attention : all_cases()) {
    for (const DType dtype : {DType::BF16, DType::F32}) {
      const AttentionResults reference = run_attention(*cpu, attention, dtype);
      const AttentionResults result = run_attention(*cuda, attention, dtype);
      compare(attention, dtype, result, reference, true);
    }
  }
}

class CudnnDense : public CudaAttention {
 protected:
  // At least `least` of the cases must be taken by cuDNN.
  void compare_all(bool deterministic, int least) {
    cuda = make_side("cudnn", deterministic);
    int compared = 0;
    std::string refused;
    for (const AttentionTestCase& attention : all_cases()) {
      AttentionResults result;
      try {
        result = run_attention(*cuda, attention, DType::BF16);
      } catch (const Error& error) {
        const auto reason = refusal(error);
        if (!reason) throw;
        if (reason->find("built without cuDNN") != std::string::npos) GTEST_SKIP() << *reason;
        refused += fmt::format("\n  {}: {}", attention.name, *reason);
        continue;
      }
      ++compared;
      // The layout of lse is cuDNN's own unless there is one document, and that not taken as packed.
      compare(attention, DType::BF16, result, run_attention(*cpu, attention, DType::BF16),
              attention.starts.size() == 2 && attention.tokens % 128 == 0);
    }
    EXPECT_GE(compared, least) << "refused:" << refused;
  }
};

// GPT-2 heads, four equal documents and the three grouped cases have lengths that every cuDNN takes.
TEST_F(CudnnDense, MatchesCpu) {
  compare_all(false, 5);
}
TEST_F(CudnnDense, MatchesCpuWhenDeterministic) {
  compare_all(true, 1);
}

// Without a forced engine, batches of either kind may follow one another on one backend.
TEST_F(CudaAttention, ChoosesByItself) {
  unsetenv("OCTET_ATTENTION");
  Side side(make_cuda_device({}));
  for (const AttentionTestCase& attention :
       {packed_case("equal", 4, 2, 64, {128, 128}), packed_case("ragged", 4, 2, 64, {100, 156}),
        packed_case("equal again", 4, 2, 64, {128, 128}), packed_case("one document", 4, 2, 64, {256})}) {
    compare(attention, DType::BF16, run_attention(side, attention, DType::BF16),
            run_attention(*cpu, attention, DType::BF16), false);
  }
}

TEST_F(CudaAttention, LongDocumentAndLargeScores) {
  const AttentionTestCase attention = packed_case("1000 tokens", 2, 1, 64, {1000, 24});
  cuda = make_side("flash");
  AttentionInputs in[2];
  AttentionResults results[2];
  Side* sides[2] = {cpu, cuda};
  for (int i = 0; i < 2; ++i) {
    in[i] = make_inputs(*sides[i], attention, DType::BF16);
    in[i].shape.scale = 1.5f;  // scores up to about 100: the running maximum matters
    const Tensor out = sides[i]->tensor(DType::BF16, {attention.tokens, in[i].shape.out_width()});
    const Tensor lse = sides[i]->tensor(DType::F32, {attention.heads, attention.tokens});
    (*sides[i])->ops().attention_forward({.dense = out}, lse, in[i].qkv, in[i].documents, in[i].shape);
    results[i] = {download(*sides[i], out), download(*sides[i], lse), {}};
  }
  EXPECT_EQ(mismatch(results[1].out, results[0].out, kAttentionBf16), "");
  EXPECT_EQ(mismatch(results[1].lse, results[0].lse, kSums), "");
}

// A query sees no key after it and none of another document: what lies there has no effect on a single bit.
TEST_F(CudaAttention, NothingLeaksAcrossBorders) {
  const AttentionTestCase attention = packed_case("two documents", 2, 1, 64, {100, 90});
  cuda = make_side("flash");
  const AttentionInputs in = make_inputs(*cuda, attention, DType::BF16);
  const Tensor out = cuda->tensor(DType::BF16, {attention.tokens, in.shape.out_width()});
  const Tensor lse = cuda->tensor(DType::F32, {attention.heads, attention.tokens});
  (*cuda)->ops().attention_forward({.dense = out}, lse, in.qkv, in.documents, in.shape);
  const std::vector<double> before = download(*cuda, out);
  for (const int64_t changed : {int64_t{60}, int64_t{99}, int64_t{150}}) {
    const Tensor row = in.qkv.row_range(changed, 1);
    const std::vector<uint8_t> kept = cuda->bytes(row);
    const std::vector<Bf16> other(static_cast<size_t>(row.numel()), to_bf16(3.0f));
    (*cuda)->copy_to_device(row, other.data());
    (*cuda)->ops().attention_forward({.dense = out}, lse, in.qkv, in.documents, in.shape);
    const std::vector<double> after = download(*cuda, out);
    const int64_t end = changed < 100 ? 100 : attention.tokens;
    for (int64_t token = 0; token < attention.tokens; ++token) {
      bool same = true;
      for (int64_t c = 0; c < in.shape.out_width(); ++c) {
        const auto place = static_cast<size_t>(token * in.shape.out_width() + c);
        same = same && before[place] == after[place];
      }
      const bool may_change = token >= changed && token < end;
      EXPECT_TRUE(same || may_change) << "token " << token << " after a change of " << changed;
      if (token == changed) {
        EXPECT_FALSE(same) << "token " << token;
      }
    }
    (*cuda)->copy_to_device(row, kept.data());
  }
}

TEST_F(CudaAttention, FlashGivesTheSameBitsAgain) {
  const AttentionTestCase attention = packed_case("mixed", 4, 2, 128, {300, 5, 129, 64, 70});
  cuda = make_side("flash");
  const AttentionResults first = run_attention(*cuda, attention, DType::BF16);
  for (int i = 0; i < 3; ++i) {
    const AttentionResults again = run_attention(*cuda, attention, DType::BF16);
    EXPECT_EQ(first.out, again.out);
    EXPECT_EQ(first.lse, again.lse);
    EXPECT_EQ(first.dqkv, again.dqkv);
  }
}

TEST_F(CudaAttention, WritesTheFp8FormOfItsOutput) {
  const AttentionTestCase attention = packed_case("four equal documents", 4, 2, 64, {128, 128, 128, 128});
  cuda = make_side("flash");
  const AttentionInputs in = make_inputs(*cuda, attention, DType::BF16);
  const Tensor out = cuda->tensor(DType::BF16, {attention.tokens, in.shape.out_width()});
  const Tensor lse = cuda->tensor(DType::F32, {attention.heads, attention.tokens});
  for (const QuantizeRule& rule : all_rules()) {
    Quantized fused = make_quantized(*cuda, attention.tokens, in.shape.out_width(), rule, kUsedSlot);
    Quantized separate = make_quantized(*cuda, attention.tokens, in.shape.out_width(), rule, kUsedSlot);
    (*cuda)->ops().attention_forward({.dense = out, .fp8 = &fused}, lse, in.qkv, in.documents, in.shape);
    (*cuda)->ops().quantize({.dense = out, .fp8 = &separate});
    expect_same(*cuda, fused, *cuda, separate, describe(rule));
  }
}

TEST_F(CudaAttention, RefusesShapesThatDoNotFit) {
  const AttentionTestCase attention = packed_case("one", 4, 2, 64, {64});
  cuda = make_side("flash");
  AttentionInputs in = make_inputs(*cuda, attention, DType::BF16);
  const Tensor out = cuda->tensor(DType::BF16, {attention.tokens, in.shape.out_width()});
  const Tensor lse = cuda->tensor(DType::F32, {attention.heads, attention.tokens});
  AttentionShape wrong = in.shape;
  wrong.kv_heads = 3;
  EXPECT_THROW((*cuda)->ops().attention_forward({.dense = out}, lse, in.qkv, in.documents, wrong), Error);
  wrong = in.shape;
  wrong.head_dim = 32;
  EXPECT_THROW((*cuda)->ops().attention_forward({.dense = out}, lse, in.qkv, in.documents, wrong), Error);
  EXPECT_THROW(
      (*cuda)->ops().attention_forward({.dense = out}, lse.row_range(0, 2), in.qkv, in.documents, in.shape),
      Error);
  setenv("OCTET_ATTENTION", "other", 1);
  Side other(make_cuda_device({}));
  EXPECT_THROW(other->ops().attention_forward({.dense = out}, lse, in.qkv, in.documents, in.shape), Error);
}

}  // namespace
}  // namespace octet::test
