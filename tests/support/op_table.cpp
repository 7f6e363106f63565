#include "support/op_table_detail.h"

// Which cases there are.
namespace octet::test {
namespace {

OpCase large(OpCase op) {
  op.name = fmt::format("large_{}", op.name);
  op.large = true;
  return op;
}

void add_dense(std::vector<OpCase>& table, DType dtype) {
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true})
      table.push_back(gemm_case(dtype, 17, 24, 100, {ta, tb, false, false, dtype}));
  }
  table.push_back(gemm_case(dtype, 1, 259, 24, {false, true, false, true, dtype}));
  table.push_back(gemm_case(dtype, 3, 100, 17, {true, false, true, false, DType::F32}));
  table.push_back(gemm_case(dtype, 130, 70, 33, {false, true, true, true, dtype}));
  table.push_back(gemm_case(dtype, 24, 40, 17, {true, true, false, false, dtype, -0.75f}));
  table.push_back(gemm_case(dtype, 130, 72, 32, {false, true, true, true, dtype, 2.5f}));
  table.push_back(large(gemm_case(dtype, 300, 200, 130, {false, true, true, true, dtype})));
  table.push_back(embedding_case(dtype, 17, 24, 5, true));
  table.push_back(embedding_case(dtype, 3, 100, 40, false));
  table.push_back(large(embedding_case(dtype, 300, 384, 50, true)));
  for (const NormKind kind : {NormKind::LayerNorm, NormKind::RmsNorm}) {
    for (const bool has_delta : {false, true}) {
      table.push_back(norm_case(dtype, kind, 1, 24, has_delta));
      table.push_back(norm_case(dtype, kind, 17, 100, has_delta));
    }
    table.push_back(large(norm_case(dtype, kind, 300, 384, true)));
    table.push_back(large(norm_case(dtype, kind, 75, 1600, false)));
  }
  for (const Activation activation : {Activation::Gelu, Activation::SwiGlu}) {
    table.push_back(activation_case(dtype, activation, 3, 24));
    table.push_back(activation_case(dtype, activation, 17, 100));
    table.push_back(large(activation_case(dtype, activation, 300, 384)));
  }
}

void add_attention(std::vector<OpCase>& table, DType dtype) {
  table.push_back(rope_case(dtype, 17, {.heads = 3, .kv_heads = 1, .head_dim = 16}));
  table.push_back(rope_case(dtype, 3, {.heads = 2, .kv_heads = 2, .head_dim = 64}));
  table.push_back(qk_norm_case(dtype, 1, {.heads = 2, .kv_heads = 2, .head_dim = 6}));
  table.push_back(qk_norm_case(dtype, 17, {.heads = 3, .kv_heads = 1, .head_dim = 48}));
  table.push_back(large(qk_norm_case(dtype, 150, {.heads = 8, .kv_heads = 2, .head_dim = 128})));
  table.push_back(large(qk_norm_case(dtype, 40, {.heads = 2, .kv_heads = 1, .head_dim = 256})));
  table.push_back(attention_case(dtype, {.heads = 2, .kv_heads = 2, .head_dim = 16}, {17}, "one"));
  table.push_back(
      attention_case(dtype, {.heads = 4, .kv_heads = 2, .head_dim = 16}, {1, 9, 1, 23, 3}, "packed"));
  table.push_back(attention_case(dtype, {.heads = 3, .kv_heads = 1, .head_dim = 64}, {5, 70}, "tiles"));
  table.push_back(attention_case(dtype, {.heads = 2, .kv_heads = 1, .head_dim = 4}, {3, 270}, "long"));
  table.push_back(
      large(attention_case(dtype, {.heads = 4, .kv_heads = 2, .head_dim = 64}, {150, 1, 90}, "packed")));
  table.push_back(
      attention_case(dtype, {.heads = 2, .kv_heads = 2, .head_dim = 16, .window = 1}, {9}, "window_1"));
  table.push_back(attention_case(dtype, {.heads = 4, .kv_heads = 2, .head_dim = 16, .window = 5},
                                 {1, 9, 1, 23, 3}, "window_packed"));
  table.push_back(attention_case(dtype, {.heads = 3, .kv_heads = 1, .head_dim = 64, .window = 33}, {5, 70},
                                 "window_tiles"));
  table.push_back(attention_case(dtype, {.heads = 2, .kv_heads = 1, .head_dim = 4, .window = 20}, {3, 350},
                                 "window_long"));
  table.push_back(large(attention_case(dtype, {.heads = 4, .kv_heads = 2, .head_dim = 64, .window = 70},
                                       {350, 1, 70, 90}, "window_packed")));
  table.push_back(large(attention_case(dtype, {.heads = 2, .kv_heads = 1, .head_dim = 128, .window = 64},
                                       {384}, "window_one")));
  table.push_back(decode_case(dtype, {.heads = 2, .kv_heads = 2, .head_dim = 16}, {0}, 1, "first"));
  table.push_back(
      decode_case(dtype, {.heads = 4, .kv_heads = 2, .head_dim = 24, .window = 6}, {40, 0, 7}, 2, "window"));
  table.push_back(large(decode_case(dtype, {.heads = 8, .kv_heads = 2, .head_dim = 128, .window = 100},
                                    {900, 33}, 1, "long_window")));
  table.push_back(decode_case(dtype, {.heads = 4, .kv_heads = 2, .head_dim = 24}, {40, 0, 7}, 1, "batch"));
  table.push_back(decode_case(dtype, {.heads = 9, .kv_heads = 1, .head_dim = 64}, {5, 70}, 17, "chunk"));
  table.push_back(
      large(decode_case(dtype, {.heads = 8, .kv_heads = 2, .head_dim = 128}, {900, 33}, 1, "long")));
}

void add_loss(std::vector<OpCase>& table, DType dtype) {
  table.push_back(cross_entropy_case(dtype, 17, 100, 128, PenaltyKind::None, "plain"));
  table.push_back(cross_entropy_case(dtype, 1, 259, 259, PenaltyKind::None, "plain"));
  table.push_back(cross_entropy_case(dtype, 17, 24, 32, PenaltyKind::ZLoss, "z"));
  table.push_back(cross_entropy_case(dtype, 17, 24, 32, PenaltyKind::Entropy, "entropy"));
  table.push_back(cross_entropy_case(dtype, 17, 24, 32, PenaltyKind::LogitL2, "l2"));
  for (const auto& [penalty, label] : {std::pair{PenaltyKind::None, "plain"},
                                       {PenaltyKind::ZLoss, "z"},
                                       {PenaltyKind::Entropy, "entropy"},
                                       {PenaltyKind::LogitL2, "l2"}})
    table.push_back(cross_entropy_case(dtype, 17, 24, 32, penalty, label, true));
  table.push_back(large(cross_entropy_case(dtype, 300, 1000, 1024, PenaltyKind::None, "plain")));
  table.push_back(large(cross_entropy_case(dtype, 5, 20001, 20008, PenaltyKind::None, "long")));
  table.push_back(large(cross_entropy_case(dtype, 5, 16384, 16384, PenaltyKind::Entropy, "entropy_long")));
  table.push_back(large(cross_entropy_case(dtype, 5, 8195, 8195, PenaltyKind::LogitL2, "l2_long")));
  for (const bool with_factors : {false, true}) {
    table.push_back(column_sum_case(dtype, 17, 100, with_factors));
    table.push_back(column_sum_case(dtype, 5, 7, with_factors));
    table.push_back(large(column_sum_case(dtype, 3000, 392, with_factors)));
  }
  table.push_back(sum_case(dtype, 1700));
  table.push_back(large(sum_case(dtype, 395520)));
  table.push_back(grad_norm_case(dtype, 17, 100));
  table.push_back(large(grad_norm_case(dtype, 1030, 384)));
}

constexpr Granularity kGranularities[] = {Granularity::Tensor, Granularity::Row128, Granularity::Block128,
                                          Granularity::Row32};

// Every granularity and pair of formats, with the ways to get a scale that it has.
std::vector<QuantizeRule> rules() {
  std::vector<QuantizeRule> result;
  for (const Granularity granularity : kGranularities) {
    for (const auto& [row, col] : {std::pair{DType::E4M3, DType::E4M3}, std::pair{DType::E5M2, DType::E5M2},
                                   std::pair{DType::E4M3, DType::E5M2}}) {
      QuantizeRule rule{.format_rowwise = row, .format_colwise = col, .granularity = granularity};
      result.push_back(rule);
      rule.delayed = granularity == Granularity::Tensor;
      rule.pow2_scales = granularity == Granularity::Row128 || granularity == Granularity::Block128;
      if (rule.delayed || rule.pow2_scales) result.push_back(rule);
    }
  }
  return result;
}

void add_fp8(std::vector<OpCase>& table) {
  for (const QuantizeRule& rule : rules()) {
    table.push_back(quantize_case(DType::BF16, rule, 130, 272));
    table.push_back(quantize_case(DType::F32, rule, 37, 53));
  }
  // Aligned, so that they run natively where the library can, and not.
  for (const Granularity a : kGranularities) {
    for (const Granularity b : kGranularities) {
      table.push_back(gemm_fp8_case(128, 256, 384, {.a = a, .b = b, .bias = true}));
      table.push_back(gemm_fp8_case(17, 23, 50, {.a = a, .b = b, .accumulate = true, .c_dtype = DType::F32}));
    }
    table.push_back(gemm_fp8_case(
        64, 48, 1040, {.a = a, .b = a, .format_a = DType::E5M2, .accumulate = true, .c_dtype = DType::F32}));
    table.push_back(gemm_fp8_case(64, 48, 1040, {.a = a, .b = a, .format_b = DType::E5M2}));
  }
  for (const Granularity a : {Granularity::Tensor, Granularity::Row128}) {
    table.push_back(gemm_fp8_case(128, 256, 384, {.a = a, .b = a, .bias = true, .alpha = -0.75f}));
    table.push_back(gemm_fp8_case(
        17, 23, 50, {.a = a, .b = a, .accumulate = true, .c_dtype = DType::F32, .alpha = 2.5f}));
  }
  for (const int64_t length : {1, 4, 33, 70}) {
    table.push_back(delayed_scales_case(7, length, false, true));
    table.push_back(delayed_scales_case(7, length, true, true));
  }
  table.push_back(delayed_scales_case(7, 4, false, false));
}

// The rules that training uses, as the ops meet them.
std::vector<FusedVariant> fused_variants() {
  return {{.rule = {.delayed = true}},
          {.rule = {.format_rowwise = DType::E5M2, .format_colwise = DType::E5M2, .delayed = true},
           .keep_dense = true},
          {.rule = {}},
          {.rule = {.granularity = Granularity::Row128}},
          {.rule = {.granularity = Granularity::Row128}, .keep_dense = true},
          {.rule = {.format_colwise = DType::E5M2, .granularity = Granularity::Row32}}};
}

void add_fused(std::vector<OpCase>& table) {
  for (const FusedVariant& variant : fused_variants()) {
    const DType bf16 = DType::BF16, fp32 = DType::F32;
    for (const NormKind kind : {NormKind::LayerNorm, NormKind::RmsNorm}) {
      table.push_back(fused_norm_case(bf16, kind, 80, 768, variant));
      table.push_back(fused_norm_case(fp32, kind, 37, 52, variant));
      table.push_back(fused_norm_backward_case(bf16, kind, 80, 768, variant));
      table.push_back(fused_norm_backward_case(fp32, kind, 37, 52, variant));
    }
    for (const Activation activation : {Activation::Gelu, Activation::SwiGlu}) {
      table.push_back(fused_activation_case(bf16, activation, 144, 264, variant));
      table.push_back(fused_activation_case(fp32, activation, 37, 52, variant));
      table.push_back(fused_activation_backward_case(bf16, activation, 144, 264, variant));
      table.push_back(fused_activation_backward_case(bf16, activation, 144, 256, variant));
      table.push_back(fused_activation_backward_case(fp32, activation, 37, 52, variant));
    }
    table.push_back(fused_rope_case(bf16, 80, {.heads = 3, .kv_heads = 1, .head_dim = 64}, variant));
    table.push_back(fused_rope_case(bf16, 150, {.heads = 2, .kv_heads = 1, .head_dim = 96}, variant));
    table.push_back(fused_rope_case(fp32, 37, {.heads = 2, .kv_heads = 2, .head_dim = 6}, variant));
    table.push_back(
        fused_qk_norm_backward_case(bf16, 80, {.heads = 3, .kv_heads = 1, .head_dim = 64}, variant));
    table.push_back(
        fused_qk_norm_backward_case(fp32, 37, {.heads = 2, .kv_heads = 2, .head_dim = 6}, variant));
    table.push_back(fused_cross_entropy_case(bf16, 128, 1000, 1024, variant));
    table.push_back(fused_cross_entropy_case(bf16, 128, 1000, 1024, variant, true));
    table.push_back(fused_cross_entropy_case(fp32, 37, 101, 101, variant));
  }
}

void add_adamw(std::vector<OpCase>& table) {
  const DType bf16 = DType::BF16, fp32 = DType::F32, e4m3 = DType::E4M3;
  for (const DType moments : {fp32, bf16, e4m3}) {
    table.push_back(adamw_case(17, 100, {.weight = fp32, .moments = moments}));
    for (const RemainderKind remainder :
         {RemainderKind::Exact, RemainderKind::Compact, RemainderKind::None}) {
      for (const DType gradient : {fp32, bf16}) {
        const AdamWVariant variant{
            .remainder = remainder, .gradient = gradient, .moments = moments, .fp8 = true};
        table.push_back(adamw_case(130, 136, variant));
        table.push_back(adamw_case(33, 77, variant));
      }
    }
    table.push_back(adamw_case(
        130, 136, {.remainder = RemainderKind::Exact, .moments = moments, .fp8 = true, .finite = false}));
    table.push_back(adamw_case(
        130, 136, {.remainder = RemainderKind::Compact, .moments = moments, .fp8 = true, .finite = false}));
  }
  // Adapters have few rows or columns, and matrices may have learning rates of their own.
  for (const auto& [rows, cols] : {std::pair{16, 264}, {264, 16}, {5, 128}, {3, 40}}) {
    table.push_back(adamw_case(rows, cols, {.weight = fp32, .rate_scale = 16}));
    table.push_back(
        adamw_case(rows, cols, {.remainder = RemainderKind::Exact, .moments = bf16, .rate_scale = 0.3f}));
    table.push_back(adamw_case(rows, cols, {.remainder = RemainderKind::Compact, .moments = e4m3}));
    table.push_back(adamw_case(rows, cols, {.gradient = bf16, .moments = e4m3, .rate_scale = 16}));
  }
  // Bytes of nibbles that a row does not fill.
  for (const auto& [rows, cols] : {std::pair{3, 1}, {2, 129}, {1, 15}})
    table.push_back(adamw_case(rows, cols, {.remainder = RemainderKind::Compact, .moments = e4m3}));
  table.push_back(adapters_adamw_case(1));
}

// ---- the sizes of real models ----

// Documents of all lengths from a quarter to seven quarters of the mean.
std::vector<int64_t> mixed_lengths(int64_t count, int64_t length) {
  const Philox random(7);
  std::vector<int64_t> lengths;
  for (int64_t left = count * length; left > 0; left -= lengths.back()) {
    const double part = 0.25 + 1.5 * static_cast<double>(random.uniform(lengths.size()));
    lengths.push_back(std::clamp<int64_t>(static_cast<int64_t>(part * static_cast<double>(length)), 1, left));
  }
  return lengths;
}

void add_model_layer(std::vector<OpCase>& table, int64_t rows, int64_t width, int64_t inner, NormKind kind,
                     Activation activation) {
  const DType bf16 = DType::BF16;
  const FusedVariant forward{.rule = {.delayed = true}};
  FusedVariant backward{
      .rule = {.format_rowwise = DType::E5M2, .format_colwise = DType::E5M2, .delayed = true}};
  table.push_back(norm_case(bf16, kind, rows, width, true));
  table.push_back(fused_norm_case(bf16, kind, rows, width, forward));
  table.push_back(quantize_case(bf16, forward.rule, rows, width));
  table.push_back(fused_activation_case(bf16, activation, rows, inner, forward));
  table.push_back(fused_activation_backward_case(bf16, activation, rows, inner, backward));
  backward.keep_dense = true;  // the residual stream goes on
  table.push_back(fused_norm_backward_case(bf16, kind, rows, width, backward));
}

// The three products of a Linear.
void add_model_gemms(std::vector<OpCase>& table, int64_t tokens, int64_t out, int64_t in) {
  const DType e5m2 = DType::E5M2;
  table.push_back(gemm_case(DType::BF16, tokens, out, in, {false, true, false, false, DType::BF16}));
  table.push_back(gemm_fp8_case(tokens, out, in, {}));
  table.push_back(gemm_fp8_case(tokens, in, out, {.format_a = e5m2}));
  table.push_back(
      gemm_fp8_case(out, in, tokens, {.format_a = e5m2, .accumulate = true, .c_dtype = DType::F32}));
}

// The same with a scale per block, as the recipe `block` has it.
void add_model_blocks(std::vector<OpCase>& table, int64_t rows, int64_t width, int64_t inner,
                      Activation activation) {
  const DType bf16 = DType::BF16;
  const Granularity row = Granularity::Row128, square = Granularity::Block128;
  const FusedVariant variant{.rule = {.granularity = row}};
  const int64_t wide = activation == Activation::SwiGlu ? 2 * inner : inner;
  table.push_back(quantize_case(bf16, variant.rule, rows, width));
  table.push_back(quantize_case(bf16, variant.rule, rows, wide));
  table.push_back(quantize_case(bf16, {.granularity = square}, wide, width));
  table.push_back(fused_activation_case(bf16, activation, rows, inner, variant));
  table.push_back(fused_activation_backward_case(bf16, activation, rows, inner, variant));
  table.push_back(gemm_fp8_case(rows, wide, width, {.a = row, .b = square}));
  table.push_back(gemm_fp8_case(rows, width, wide, {.a = row, .b = square}));
  table.push_back(
      gemm_fp8_case(wide, width, rows, {.a = row, .b = row, .accumulate = true, .c_dtype = DType::F32}));
}

void add_model_attention(std::vector<OpCase>& table, AttentionShape shape, std::vector<int64_t> lengths,
                         const std::string& label) {
  table.push_back(attention_case(DType::BF16, shape, std::move(lengths), label));
}

}  // namespace

std::vector<OpCase> op_table() {
  std::vector<OpCase> table;
  for (const DType dtype : {DType::F32, DType::BF16}) {
    add_dense(table, dtype);
    add_attention(table, dtype);
    add_loss(table, dtype);
  }
  add_fp8(table);
  add_fused(table);
  add_adamw(table);
  add_adapters(table, large);
  add_ranks(table, large);
  add_sampling(table, large);
  return table;
}

std::vector<OpCase> model_op_table() {
  std::vector<OpCase> table;
  add_model_layer(table, 65536, 768, 3072, NormKind::LayerNorm, Activation::Gelu);
  add_model_layer(table, 12288, 2048, 8192, NormKind::RmsNorm, Activation::SwiGlu);
  add_model_layer(table, 8192, 4096, 14336, NormKind::RmsNorm, Activation::SwiGlu);
  add_model_layer(table, 4096, 5120, 13824, NormKind::RmsNorm, Activation::SwiGlu);
  const DType bf16 = DType::BF16, e5m2 = DType::E5M2;
  const AttentionShape llama{.heads = 32, .kv_heads = 8, .head_dim = 128};
  const AttentionShape gpt2{.heads = 12, .kv_heads = 12, .head_dim = 64};
  const FusedVariant gradient{.rule = {.format_rowwise = e5m2, .format_colwise = e5m2, .delayed = true}};
  add_model_attention(table, llama, std::vector<int64_t>(8, 1024), "equal");
  add_model_attention(table, llama, mixed_lengths(8, 1024), "mixed_1024");
  add_model_attention(table, llama, mixed_lengths(2, 4096), "mixed_4096");
  add_model_attention(table, gpt2, std::vector<int64_t>(64, 1024), "equal");
  table.push_back(rope_case(bf16, 8192, llama));
  table.push_back(qk_norm_case(bf16, 8192, llama));
  table.push_back(fused_rope_case(bf16, 8192, llama, gradient));
  table.push_back(fused_qk_norm_backward_case(bf16, 8192, llama, gradient));
  for (const auto& [rows, vocab] : {std::pair{16384, 50304}, {8192, 128256}, {8192, 152064}}) {
    table.push_back(cross_entropy_case(bf16, rows, vocab, vocab, PenaltyKind::None, "plain"));
    table.push_back(fused_cross_entropy_case(bf16, rows, vocab, vocab, gradient));
  }
  // As the 1B to 8B train, and as the 14B does.
  table.push_back(grad_norm_case(DType::F32, 14336, 4096));
  table.push_back(adamw_case(14336, 4096, {.remainder = RemainderKind::Exact, .moments = bf16, .fp8 = true}));
  table.push_back(grad_norm_case(bf16, 13824, 5120));
  for (const RemainderKind remainder : {RemainderKind::Compact, RemainderKind::None}) {
    table.push_back(adamw_case(
        13824, 5120, {.remainder = remainder, .gradient = bf16, .moments = DType::E4M3, .fp8 = true}));
  }
  add_model_gemms(table, 65536, 3072, 768);
  add_model_gemms(table, 8192, 28672, 4096);
  add_model_blocks(table, 65536, 768, 3072, Activation::Gelu);
  add_model_blocks(table, 12288, 2048, 8192, Activation::SwiGlu);
  add_model_blocks(table, 8192, 4096, 14336, Activation::SwiGlu);
  const FusedVariant blocks{.rule = {.granularity = Granularity::Row128}};
  table.push_back(fused_rope_case(bf16, 8192, llama, blocks));
  table.push_back(fused_cross_entropy_case(bf16, 16384, 50304, 50304, blocks));
  add_model_adapters(table);
  add_model_ranks(table);
  add_model_sampling(table);
  return table;
}

}  // namespace octet::test
