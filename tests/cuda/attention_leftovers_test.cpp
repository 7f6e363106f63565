#include "cuda/attention_packed_fixture.h"

// What other plans, a step of NaN or other ops leave in the memory that cuDNN works in must not get into results.

namespace octet::test {
namespace {

class CudnnLeftovers : public CudnnPacked {
 protected:
  struct Buffers {
    AttentionInputs in;
    Tensor out, lse, dqkv;
  };
  Buffers make_buffers(const AttentionTestCase& attention) {
    Buffers buffers{.in = make_inputs(*cuda, attention, DType::BF16)};
    const AttentionShape& shape = buffers.in.shape;
    buffers.out = cuda->tensor(DType::BF16, {attention.tokens, shape.out_width()});
    buffers.lse = cuda->tensor(DType::F32, {attention.heads, attention.tokens});
    buffers.dqkv = cuda->tensor(DType::BF16, {attention.tokens, shape.qkv_width()});
    return buffers;
  }
  void forward(const Buffers& x) {
    (*cuda)->ops().attention_forward({.dense = x.out}, x.lse, x.in.qkv, x.in.documents, x.in.shape);
  }
  void backward(const Buffers& x) {
    (*cuda)->ops().attention_backward(x.dqkv, x.in.dout, x.in.qkv, x.out, x.lse, x.in.documents, x.in.shape);
  }
  void expect_as_cpu(const AttentionTestCase& attention, const Buffers& x, const std::string& what) {
    SCOPED_TRACE(what);
    compare(attention, DType::BF16, {download(*cuda, x.out), {}, download(*cuda, x.dqkv)},
            run_attention(*cpu, attention, DType::BF16), false);
  }
  // A step whose numbers are all NaN: so is whatever it keeps in cuDNN's memory.
  void leave_nan(const AttentionTestCase& attention) {
    const Buffers buffers = make_buffers(attention);
    cuda->fill(buffers.in.qkv, 0xFF);
    cuda->fill(buffers.in.dout, 0xFF);
    forward(buffers);
    backward(buffers);
  }
  void poison_workspace() { cuda->fill(cuda->workspace(), 0xFF); }

  // 1,024 tokens, of which the last belong to no document: rows behind the documents hold what was there before.
  const AttentionTestCase short_of_tokens = [] {
    AttentionTestCase attention = packed_case("documents that end early", 4, 2, 64, {300, 77, 1, 260});
    attention.tokens = 1024;
    return attention;
  }();
  // The same plan, all tokens in documents; and a larger plan of another layout.
  const AttentionTestCase full = packed_case("documents of all tokens", 4, 2, 64, {400, 300, 324});
  const AttentionTestCase other = packed_case("another layout", 8, 2, 128, {900, 100, 48});
  const AttentionTestCase own_keys = packed_case("another layout, own keys", 4, 4, 64, {600, 400, 24});
};

TEST_F(CudnnLeftovers, OfOtherOps) {
  for (const AttentionTestCase& attention :
       {short_of_tokens, full, packed_case("equal documents", 4, 2, 64, std::vector<int32_t>(8, 128))}) {
    const Buffers buffers = make_buffers(attention);
    poison_workspace();
    forward(buffers);
    poison_workspace();
    backward(buffers);
    expect_as_cpu(attention, buffers, "NaN in the workspace of the ops");
  }
}

TEST_F(CudnnLeftovers, OfOtherPlans) {
  const Buffers buffers = make_buffers(short_of_tokens);
  for (const AttentionTestCase& last : {other, own_keys, full}) {
    leave_nan(last);
    forward(buffers);
    backward(buffers);
    expect_as_cpu(short_of_tokens, buffers, fmt::format("after NaN in {}", last.name));
  }
  // Between the two passes, as where layers have different heads.
  forward(buffers);
  leave_nan(other);
  backward(buffers);
  expect_as_cpu(short_of_tokens, buffers, "after NaN between forward and backward");
}

TEST_F(CudnnLeftovers, AreClearedByRecordings) {
  const Buffers buffers = make_buffers(short_of_tokens);
  const GraphCounts before = (*cuda)->graph_counts();
  const auto run = [&](const std::string& what) {
    cuda->fill(buffers.out, 0xFF);
    cuda->fill(buffers.dqkv, 0xFF);
    (*cuda)->repeat("leftovers", [&] {
      forward(buffers);
      backward(buffers);
    });
    expect_as_cpu(short_of_tokens, buffers, what);
  };
  run("plain");
  run("recorded right after a run of the same plan");
  for (const AttentionTestCase& last : {other, full}) {
    leave_nan(last);
    run(fmt::format("replayed after NaN in {}", last.name));
  }
  EXPECT_EQ((*cuda)->graph_counts().recorded - before.recorded, 1);
  EXPECT_EQ((*cuda)->graph_counts().replayed - before.replayed, 3);

  // A backward alone, recorded when its plan was the last to run.
  const auto backward_alone = [&](const std::string& what) {
    cuda->fill(buffers.dqkv, 0xFF);
    (*cuda)->repeat("leftovers, backward alone", [&] { backward(buffers); });
    expect_as_cpu(short_of_tokens, buffers, what);
  };
  forward(buffers);
  backward_alone("backward, plain");
  backward_alone("backward, recorded");
  leave_nan(own_keys);
  forward(buffers);
  backward_alone("backward, replayed after NaN in another layout");
}

}  // namespace
}  // namespace octet::test
