#include <cstdio>
#include <fstream>

#include "cuda/attention_packed_fixture.h"

// Documents of different lengths through cuDNN.

namespace octet::test {
namespace {

// Documents that fill up `tokens` tokens, of 1 to `longest`.
std::vector<int32_t> random_lengths(int64_t tokens, int64_t longest, uint64_t seed) {
  const Philox random(seed, 9);
  std::vector<int32_t> lengths;
  for (uint64_t i = 0; tokens > 0; ++i) {
    const double share = 0.5 * std::erfc(-static_cast<double>(random.normal(i)) / std::sqrt(2.0));
    const auto length = std::clamp<int64_t>(static_cast<int64_t>(share * static_cast<double>(longest)) + 1, 1,
                                            std::min(tokens, longest));
    lengths.push_back(static_cast<int32_t>(length));
    tokens -= length;
  }
  return lengths;
}

// A test for each, so that they run side by side: most need plans of their own, which take seconds.
std::vector<AttentionTestCase> packed_cases() {
  std::vector<int32_t> short_ones(40, 1);
  short_ones.insert(short_ones.end(), {200, 200, 200, 200, 184});
  AttentionTestCase outside = packed_case("TokensOutsideTheDocuments", 4, 2, 64, {530, 1, 411});
  for (int32_t& start : outside.starts) start += 7;
  outside.tokens = 1111;
  return {packed_case("GroupedDepth128", 8, 2, 128, {1, 300, 64, 127, 1, 257, 129, 2, 200}),
          packed_case("GroupedDepth64", 6, 2, 64, {63, 65, 1, 1, 1, 500, 128, 265}),
          packed_case("OwnKeysDepth64", 4, 4, 64, {700, 1, 35, 288}),
          packed_case("OwnKeysDepth128", 2, 2, 128, {130, 1, 513, 380}),
          packed_case("OneKeyHead", 4, 1, 64, {31, 33, 960}),
          packed_case("LongerThan1024", 4, 1, 128, {1300, 1, 90, 657}),
          packed_case("OneOddDocument", 4, 2, 64, {1033}),
          packed_case("EqualOddDocuments", 4, 2, 64, std::vector<int32_t>(14, 77)),
          packed_case("EmptyDocuments", 4, 2, 64, {0, 400, 0, 0, 623, 1, 0}),
          packed_case("DocumentsOfOneToken", 2, 1, 64, short_ones),
          packed_case("Depth80", 4, 2, 80, {130, 60, 834}),
          packed_case("Window100Depth64", 6, 2, 64, {63, 65, 1, 1, 1, 500, 128, 265}, 100),
          packed_case("Window257Depth128", 4, 1, 128, {1300, 1, 90, 657}, 257),
          packed_case("RandomDepth64", 4, 2, 64, random_lengths(2048, 300, 1)),
          packed_case("RandomDepth128", 4, 1, 128, random_lengths(1500, 700, 2)),
          outside};
}

class CudnnPackedCases : public CudnnPacked, public testing::WithParamInterface<AttentionTestCase> {};
TEST_P(CudnnPackedCases, MatchCpu) {
  expect_as_cpu(GetParam());
}
INSTANTIATE_TEST_SUITE_P(, CudnnPackedCases, testing::ValuesIn(packed_cases()),
                         [](const auto& test) { return std::string(test.param.name); });

// These share one plan; equal documents, which have another, come between them.
TEST_F(CudnnPacked, OnePlanServesManyBatches) {
  const auto first = packed_case("1024 tokens", 4, 2, 64, {1000, 24});
  const std::vector<double> out = run_attention(*cuda, first, DType::BF16).out;
  expect_as_cpu(packed_case("one token first", 4, 2, 64, {1, 1, 1, 1021}));
  expect_as_cpu(packed_case("equal", 4, 2, 64, {512, 512}));
  expect_as_cpu(packed_case("eight documents", 4, 2, 64, {600, 1, 300, 9, 64, 40, 6, 4}));
  expect_as_cpu(packed_case("fewer tokens to a document", 4, 2, 64, {513, 511}));
  EXPECT_EQ(run_attention(*cuda, first, DType::BF16).out, out);
}

// A recording holds for other documents as long as their number and the longest length stay.
TEST_F(CudnnPacked, IsRecordedInAGraph) {
  AttentionTestCase cases[] = {packed_case("first", 4, 2, 128, {500, 200, 324}),
                               packed_case("second", 4, 2, 128, {324, 500, 200}),
                               packed_case("a token outside", 4, 2, 128, {23, 500, 500})};
  cases[2].tokens = 1024;
  const AttentionInputs in = make_inputs(*cuda, cases[0], DType::BF16);
  const Tensor out = cuda->tensor(DType::BF16, {1024, in.shape.out_width()});
  const Tensor lse = cuda->tensor(DType::F32, {4, 1024});
  const Tensor dqkv = cuda->tensor(DType::BF16, {1024, in.shape.qkv_width()});
  const GraphCounts before = (*cuda)->graph_counts();
  for (int i = 0; i < 6; ++i) {
    const AttentionTestCase& attention = cases[i % 3];
    (*cuda)->copy_to_device(in.documents.starts, attention.starts.data());
    (*cuda)->repeat("packed attention", [&] {
      (*cuda)->ops().attention_forward({.dense = out}, lse, in.qkv, in.documents, in.shape);
      (*cuda)->ops().attention_backward(dqkv, in.dout, in.qkv, out, lse, in.documents, in.shape);
    });
    SCOPED_TRACE(fmt::format("pass {}", i));
    compare(attention, DType::BF16, {download(*cuda, out), {}, download(*cuda, dqkv)},
            run_attention(*cpu, attention, DType::BF16), false);
  }
  EXPECT_EQ((*cuda)->graph_counts().recorded - before.recorded, 1);
  EXPECT_EQ((*cuda)->graph_counts().replayed - before.replayed, 5);
}

// What lies behind the buffers is neither written nor, where it is NaN, let into the results.
TEST_F(CudnnPacked, StaysInsideItsBuffers) {
  constexpr int64_t kBehind = 256;
  for (const int64_t kv_heads : {2, 4}) {
    const auto attention = packed_case("NaN behind", 4, kv_heads, 64, {300, 77, 1, 655});
    const auto wanted = run_attention(*cpu, attention, DType::BF16);
    const AttentionInputs in = make_inputs(*cuda, attention, DType::BF16);
    const auto with_nan_behind = [&](DType dtype, int64_t cols) {
      const Tensor all = cuda->tensor(dtype, {attention.tokens + kBehind, cols});
      const std::vector<uint8_t> nan(static_cast<size_t>(all.bytes()), 0xFF);
      (*cuda)->copy_to_device(all, nan.data());
      return all;
    };
    const int64_t out_width = in.shape.out_width(), qkv_width = in.shape.qkv_width();
    const Tensor qkv = with_nan_behind(DType::BF16, qkv_width),
                 dqkv = with_nan_behind(DType::BF16, qkv_width);
    const Tensor out = with_nan_behind(DType::BF16, out_width),
                 dout = with_nan_behind(DType::BF16, out_width);
    const Tensor lse = with_nan_behind(DType::F32, attention.heads);
    const auto front = [&](const Tensor& all) { return all.row_range(0, attention.tokens); };
    (*cuda)->copy(front(qkv), in.qkv);
    (*cuda)->copy(front(dout), in.dout);
    (*cuda)->ops().attention_forward({.dense = front(out)}, front(lse), front(qkv), in.documents, in.shape);
    (*cuda)->ops().attention_backward(front(dqkv), front(dout), front(qkv), front(out), front(lse),
                                      in.documents, in.shape);
    compare(attention, DType::BF16, {download(*cuda, front(out)), {}, download(*cuda, front(dqkv))}, wanted,
            false);
    for (const auto& [name, tensor] : {std::pair{"out", out}, {"lse", lse}, {"dqkv", dqkv}}) {
      const std::vector<uint8_t> behind = cuda->bytes(tensor.row_range(attention.tokens, kBehind));
      EXPECT_EQ(std::count(behind.begin(), behind.end(), 0xFF), static_cast<int64_t>(behind.size()))
          << name << " was written behind its end, key heads " << kv_heads;
    }
  }
}

// A change of a document leaves every bit of the others' outputs, and their gradients.
TEST_F(CudnnPacked, NothingLeaksAcrossBorders) {
  const auto attention = packed_case("three documents", 4, 2, 128, {500, 90, 434});
  const AttentionInputs in = make_inputs(*cuda, attention, DType::BF16);
  const Tensor out = cuda->tensor(DType::BF16, {attention.tokens, in.shape.out_width()});
  const Tensor lse = cuda->tensor(DType::F32, {attention.heads, attention.tokens});
  const Tensor dqkv = cuda->tensor(DType::BF16, {attention.tokens, in.shape.qkv_width()});
  const auto run = [&] {
    (*cuda)->ops().attention_forward({.dense = out}, lse, in.qkv, in.documents, in.shape);
    (*cuda)->ops().attention_backward(dqkv, in.dout, in.qkv, out, lse, in.documents, in.shape);
    return AttentionResults{download(*cuda, out), {}, download(*cuda, dqkv)};
  };
  const AttentionResults before = run();
  const std::vector<Bf16> other(static_cast<size_t>(90 * in.shape.qkv_width()), to_bf16(3.0f));
  (*cuda)->copy_to_device(in.qkv.row_range(500, 90), other.data());
  (*cuda)->copy_to_device(in.dout.row_range(500, 90), other.data());
  const AttentionResults after = run();
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 500}, {590, 1024}}) {
    const auto rows = [&, begin = begin, end = end](const std::vector<double>& x, int64_t width) {
      return std::vector<double>(x.begin() + begin * width, x.begin() + end * width);
    };
    EXPECT_EQ(rows(before.out, in.shape.out_width()), rows(after.out, in.shape.out_width()))
        << "out from " << begin;
    // Not bit by bit: the order in which backward adds is not fixed.
    EXPECT_EQ(
        mismatch(rows(after.dqkv, in.shape.qkv_width()), rows(before.dqkv, in.shape.qkv_width()), kBf16), "")
        << "dqkv from " << begin;
  }
}

// Its workspace would depend on what is free on the device, and with it the choice of kernels.
TEST_F(CudnnPacked, DeterministicRunsLeaveItToTheOwnKernels) {
  const auto attention = packed_case("mixed", 4, 2, 128, {300, 5, 129, 64, 526});
  const std::string reason = try_run(*make_side("cudnn", true), attention);
  if (reason.find("built without cuDNN") != std::string::npos) GTEST_SKIP() << reason;
  EXPECT_NE(reason.find("deterministic runs use no more workspace"), std::string::npos) << reason;
}

// A second run takes the plans that the first one timed, and times none.
TEST_F(CudnnPacked, KeepsTheChoiceOfPlans) {
  const std::string cache = testing::TempDir() + "octet_attention_plans.jsonl";
  std::remove(cache.c_str());
  std::vector<std::string> contents;
  for (int pass = 0; pass < 2; ++pass) {
    setenv("OCTET_ATTENTION", "cudnn", 1);
    Side side(make_cuda_device({.tuning_cache = cache}));
    for (const auto& attention : {packed_case("packed", 4, 2, 64, {1000, 24}),
                                  packed_case("more documents", 4, 2, 64, {1000, 4, 1, 3, 6, 2, 1, 1, 1, 5}),
                                  packed_case("equal", 4, 2, 64, {512, 512})}) {
      compare(attention, DType::BF16, run_attention(side, attention, DType::BF16),
              run_attention(*cpu, attention, DType::BF16), false);
    }
    std::ifstream file(cache);
    contents.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  // Where cuDNN proposes one plan alone there is nothing to time; of batches of equal documents it has several.
  EXPECT_NE(contents[0].find("attention "), std::string::npos) << "no choice was kept: " << contents[0];
  EXPECT_EQ(contents[0], contents[1]);
  std::remove(cache.c_str());
}

}  // namespace
}  // namespace octet::test
