#include <cmath>
#include <functional>

#include "cuda/fixture.h"

// Ops that write FP8 themselves must give the bits of the plain op followed by quantize().

namespace octet::test {
namespace {

struct Size {
  int64_t rows, cols;
};
constexpr Size kSizes[] = {{128, 128}, {256, 768}, {37, 52}, {48, 1040}, {17, 4096}, {80, 2048}, {264, 72}};
// Where the fast norms have lanes without columns, steps of two rows, groups that end early.
constexpr Size kNormSizes[] = {{75, 1600}, {1, 768}, {29, 5120}, {80, 5120}, {39, 3072}};

class CudaFused : public CudaTest {
 protected:
  // `run(operand)` computes into operand.dense, whose content before is `before`.
  void check(DType dtype, int64_t rows, int64_t cols, const std::vector<float>& before,
             const std::function<void(const Operand&)>& run, const std::string& what) {
    struct Case {
      bool keep, stats, equal_scales;
    };
    // The first is what training uses. The scales in the slot count only where they are delayed.
    for (const QuantizeRule& rule : all_rules()) {
      for (const auto& [keep, stats, equal_scales] :
           {Case{false, false, true}, Case{false, false, false}, Case{true, false, true},
            Case{true, false, false}, Case{true, true, false}, Case{false, true, true}}) {
        if (!rule.delayed && equal_scales && !stats) continue;
        if (rule.delayed && keep && !stats && !equal_scales) continue;
        const ScaleSlot& slot = equal_scales ? kEqualSlot : kUsedSlot;
        const std::string label =
            fmt::format("{} {} {} ({}, {}) keep {} stats {} {} scales", what, describe(rule), name_of(dtype),
                        rows, cols, keep, stats, equal_scales ? "equal" : "unequal");
        const size_t mark = cuda->mark();
        const auto zeros = std::vector<float>(static_cast<size_t>(cols));
        Quantized fused = make_quantized(*cuda, rows, cols, rule, slot, stats);
        Quantized separate = make_quantized(*cuda, rows, cols, rule, slot, stats);
        const Tensor dense_fused = cuda->upload(dtype, {rows, cols}, before);
        const Tensor dense_separate = cuda->upload(dtype, {rows, cols}, before);
        const Tensor sum_fused = cuda->upload(DType::F32, {cols}, zeros);
        const Tensor sum_separate = cuda->upload(DType::F32, {cols}, zeros);
        run({.dense = dense_fused, .fp8 = &fused, .keep_dense = keep, .column_sum = sum_fused});
        run({.dense = dense_separate});
        (*cuda)->ops().quantize({.dense = dense_separate, .fp8 = &separate, .column_sum = sum_separate});
        expect_same(*cuda, fused, *cuda, separate, label);
        if (keep) {
          EXPECT_EQ(cuda->bytes(dense_fused), cuda->bytes(dense_separate)) << label;
        }
        std::vector<float> a(zeros.size()), b(zeros.size());
        (*cuda)->copy_to_host(a.data(), sum_fused);
        (*cuda)->copy_to_host(b.data(), sum_separate);
        for (size_t i = 0; i < a.size(); ++i)
          ASSERT_NEAR(a[i], b[i], 1e-4f + 1e-5f * std::fabs(b[i]))
              << label;  // the same values in another order
        if (stats) {
          EXPECT_EQ(cuda->value(fused.stats()).noise, cuda->value(separate.stats()).noise) << label;
        }
        cuda->release(mark);
        if (HasFailure()) return;
      }
    }
  }
};

// One test for each size, so that they run side by side.
class CudaFusedSizes : public CudaFused, public testing::WithParamInterface<Size> {};
class CudaFusedNorms : public CudaFusedSizes {};

TEST_P(CudaFusedSizes, Activations) {
  const Size size = GetParam();
  for (const DType dtype : {DType::BF16, DType::F32}) {
    for (const Activation kind : {Activation::Gelu, Activation::SwiGlu}) {
      const int64_t in_cols = kind == Activation::SwiGlu ? 2 * size.cols : size.cols;
      const Tensor x = cuda->upload(dtype, {size.rows, in_cols}, normal_values(size.rows * in_cols, 1, 2.0f));
      const Tensor dh = cuda->upload(dtype, {size.rows, size.cols}, normal_values(size.rows * size.cols, 2));
      const std::vector<float> before(static_cast<size_t>(size.rows * size.cols), 5.0f);
      check(
          dtype, size.rows, size.cols, before,
          [&](const Operand& h) { (*cuda)->ops().activation_forward(kind, h, x); }, "activation forward");
      const std::vector<float> wide(static_cast<size_t>(size.rows * in_cols), 5.0f);
      check(
          dtype, size.rows, in_cols, wide,
          [&](const Operand& dx) { (*cuda)->ops().activation_backward(kind, dx, dh, x); },
          "activation backward");
      if (HasFailure()) return;
    }
  }
}

TEST_F(CudaFused, GradientOfTheLoss) {
  struct Loss {
    int64_t rows, vocab, width;
    PenaltyKind penalty;
    DType dtype;
  };
  const DType bf16 = DType::BF16, fp32 = DType::F32;
  for (const Loss& c :
       {Loss{37, 100, 104, PenaltyKind::None, bf16}, Loss{37, 100, 104, PenaltyKind::ZLoss, fp32},
        Loss{37, 101, 101, PenaltyKind::None, bf16}, Loss{37, 101, 101, PenaltyKind::LogitL2, fp32},
        Loss{128, 1000, 1024, PenaltyKind::None, bf16}, Loss{128, 1000, 1024, PenaltyKind::None, fp32},
        Loss{128, 1000, 1024, PenaltyKind::Entropy, bf16}, Loss{128, 1000, 1024, PenaltyKind::LogitL2, bf16},
        Loss{48, 50257, 50304, PenaltyKind::None, bf16}}) {
    const size_t mark = cuda->mark();
    std::vector<int32_t> ids;
    for (int64_t r = 0; r < c.rows; ++r)
      ids.push_back(r % 5 == 3 ? -1 : static_cast<int32_t>(r * 7919 % c.vocab));
    const Tensor targets = cuda->tensor(DType::I32, {c.rows});
    (*cuda)->copy_to_device(targets, ids.data());
    const Tensor loss = cuda->tensor(DType::F32, {c.rows}), penalty = cuda->tensor(DType::F32, {c.rows});
    const LossOptions options{.vocab = c.vocab,
                              .gradient_scale = cuda->upload(DType::F32, {1}, {0.25f}),
                              .penalty = c.penalty,
                              .penalty_weight = 0.3f};
    const std::vector<float> values = normal_values(c.rows * c.width, 1, 3.0f);
    const std::string what =
        fmt::format("gradient of the loss, vocab {}, penalty {}", c.vocab, static_cast<int>(c.penalty));
    check(
        c.dtype, c.rows, c.width, values,
        [&](const Operand& gradient) {
          (*cuda)->ops().cross_entropy(gradient, {}, loss, penalty, {}, gradient.dense, targets, options);
        },
        what + ", in place");
    if (HasFailure()) return;
    // The gradient beside the logits.
    if (c.width < 50000) {
      const Tensor logits = cuda->upload(c.dtype, {c.rows, c.width}, values);
      check(
          c.dtype, c.rows, c.width, std::vector<float>(values.size(), 5.0f),
          [&](const Operand& gradient) {
            (*cuda)->ops().cross_entropy(gradient, {}, loss, penalty, {}, logits, targets, options);
          },
          what);
    }
    cuda->release(mark);
    if (HasFailure()) return;
  }
}

TEST_P(CudaFusedNorms, Norms) {
  const Size size = GetParam();
  for (const DType dtype : {DType::BF16, DType::F32}) {
    for (const NormKind kind : {NormKind::LayerNorm, NormKind::RmsNorm}) {
      const int64_t count = size.rows * size.cols;
      const Shape shape{size.rows, size.cols};
      const bool layer_norm = kind == NormKind::LayerNorm;
      const Tensor x = cuda->upload(dtype, shape, normal_values(count, 1));
      const Tensor delta = cuda->upload(dtype, shape, normal_values(count, 2));
      const Tensor gain = cuda->upload(dtype, {size.cols}, normal_values(size.cols, 3));
      const Tensor bias =
          layer_norm ? cuda->upload(dtype, {size.cols}, normal_values(size.cols, 4)) : Tensor{};
      const Tensor residual = cuda->tensor(dtype, shape);
      const Tensor mean = layer_norm ? cuda->tensor(DType::F32, {size.rows}) : Tensor{};
      const Tensor inv = cuda->tensor(DType::F32, {size.rows});
      const Tensor dy = cuda->upload(dtype, shape, normal_values(count, 5));
      check(
          dtype, size.rows, size.cols, std::vector<float>(static_cast<size_t>(count), 5.0f),
          [&](const Operand& y) {
            (*cuda)->ops().norm_forward(kind, y, residual, mean, inv, x, delta, gain, bias, 1e-5f);
          },
          "norm forward");
      const Tensor dgain = cuda->upload(DType::F32, {size.cols}, normal_values(size.cols, 6));
      const Tensor dbias =
          layer_norm ? cuda->upload(DType::F32, {size.cols}, normal_values(size.cols, 7)) : Tensor{};
      check(
          dtype, size.rows, size.cols, normal_values(count, 8),
          [&](const Operand& dx) {
            (*cuda)->ops().norm_backward(kind, dx, dgain, dbias, dy, residual, mean, inv, gain);
          },
          "norm backward");
      if (HasFailure()) return;
    }
  }
}

TEST_F(CudaFused, Rope) {
  // Heads that are blocks, parts of them and neither.
  for (const AttentionShape shape : {AttentionShape{.heads = 3, .kv_heads = 1, .head_dim = 64},
                                     AttentionShape{.heads = 2, .kv_heads = 1, .head_dim = 128},
                                     AttentionShape{.heads = 3, .kv_heads = 1, .head_dim = 96},
                                     AttentionShape{.heads = 2, .kv_heads = 2, .head_dim = 6}}) {
    const int64_t rows = shape.head_dim > 64 ? 265 : 80, positions = 7;
    std::vector<int32_t> place;
    for (int32_t i = 0; i < rows; ++i) place.push_back(i % positions);
    const Tensor where = cuda->tensor(DType::I32, {rows});
    (*cuda)->copy_to_device(where, place.data());
    const Tensor table =
        cuda->upload(DType::F32, {positions, shape.head_dim}, normal_values(positions * shape.head_dim, 1));
    for (const DType dtype : {DType::BF16, DType::F32}) {
      check(
          dtype, rows, shape.qkv_width(), normal_values(rows * shape.qkv_width(), 2),
          [&](const Operand& dqkv) { (*cuda)->ops().rope_backward(dqkv, where, table, shape); },
          "rope backward");
    }
  }
}

TEST_F(CudaFused, QkNorm) {
  for (const AttentionShape shape : {AttentionShape{.heads = 3, .kv_heads = 1, .head_dim = 128},
                                     AttentionShape{.heads = 2, .kv_heads = 2, .head_dim = 6}}) {
    const int64_t rows = 80, heads = shape.heads + shape.kv_heads, depth = shape.head_dim;
    for (const DType dtype : {DType::BF16, DType::F32}) {
      const Tensor raw = cuda->upload(dtype, {rows, heads * depth}, normal_values(rows * heads * depth, 1));
      const Tensor inv = cuda->upload(DType::F32, {rows, heads}, normal_values(rows * heads, 2));
      const Tensor gain_q = cuda->upload(dtype, {depth}, normal_values(depth, 3));
      const Tensor gain_k = cuda->upload(dtype, {depth}, normal_values(depth, 4));
      const Tensor dgain_q = cuda->upload(DType::F32, {depth}, normal_values(depth, 5));
      const Tensor dgain_k = cuda->upload(DType::F32, {depth}, normal_values(depth, 6));
      check(
          dtype, rows, shape.qkv_width(), normal_values(rows * shape.qkv_width(), 7),
          [&](const Operand& dqkv) {
            (*cuda)->ops().qk_norm_backward(dqkv, dgain_q, dgain_k, raw, inv, gain_q, gain_k, shape);
          },
          "qk_norm backward");
    }
  }
}

TEST_P(CudaFusedSizes, AdamW) {
  const Size size = GetParam();
  struct Case {
    DType dtype;
    bool equal_scales, finite;
  };
  std::vector<Case> cases;
  for (const DType dtype : {DType::BF16, DType::F32}) {
    for (const bool equal_scales : {false, true}) {
      for (const bool finite : {true, false}) cases.push_back({dtype, equal_scales, finite});
    }
  }
  const int64_t count = size.rows * size.cols;
  const Shape shape{size.rows, size.cols};
  for (const QuantizeRule& rule : all_rules()) {
    for (const auto& [dtype, equal_scales, finite] : cases) {
      if (!rule.delayed && equal_scales) continue;  // the scales in the slot do not count
      const ScaleSlot& slot = equal_scales ? kEqualSlot : kUsedSlot;
      const std::string label =
          fmt::format("{} {} ({}, {}) {} scales, {}", describe(rule), name_of(dtype), size.rows, size.cols,
                      equal_scales ? "equal" : "unequal", finite ? "finite" : "skipped");
      std::vector<std::vector<uint8_t>> sides;
      for (Side* side : {cuda, cpu}) {
        const size_t mark = side->mark();
        Quantized fused = make_quantized(*side, size.rows, size.cols, rule, slot);
        Quantized separate = make_quantized(*side, size.rows, size.cols, rule, slot);
        AdamWParameter p;
        p.weight = side->upload(dtype, shape, normal_values(count, 1));
        if (dtype == DType::BF16) {
          p.remainder = side->tensor(DType::U16, shape);
          (*side)->zero(p.remainder);
        }
        p.gradient = side->upload(dtype, shape, normal_values(count, 2));
        p.m = side->upload(dtype, shape, normal_values(count, 3, 0.1f));
        std::vector<float> second = normal_values(count, 4, 0.1f);
        for (float& value : second) value *= value;
        p.v = side->upload(dtype, shape, second);
        p.weight_decay = 0.1f;
        p.fp8 = &fused;
        const Tensor clip = side->upload(DType::F32, {2}, {finite ? 3.0f : NAN, 0.5f});
        const auto before = side->bytes(p.weight);
        (*side)->ops().adamw(std::span(&p, 1), clip, {.learning_rate = 1e-2f, .step = 3});
        if (!finite) {
          EXPECT_EQ(side->bytes(p.weight), before) << label;
        }
        sides.push_back(side->bytes(p.weight));
        // Also when the step is skipped: the scales may have moved since the copies were made.
        (*side)->ops().quantize({.dense = p.weight, .fp8 = &separate});
        expect_same(*side, fused, *side, separate, label);
        side->release(mark);
      }
      EXPECT_TRUE(sides[0] == sides[1]) << label << ": the weights of the two sides differ";
      if (HasFailure()) return;
    }
  }
}

std::string name_of_size(const testing::TestParamInfo<Size>& info) {
  return fmt::format("{}x{}", info.param.rows, info.param.cols);
}
INSTANTIATE_TEST_SUITE_P(Sizes, CudaFusedSizes, testing::ValuesIn(kSizes), name_of_size);
INSTANTIATE_TEST_SUITE_P(Sizes, CudaFusedNorms, testing::ValuesIn(kSizes), name_of_size);
INSTANTIATE_TEST_SUITE_P(Strips, CudaFusedNorms, testing::ValuesIn(kNormSizes), name_of_size);

}  // namespace
}  // namespace octet::test
