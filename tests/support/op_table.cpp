#include "support/op_table_detail.h"

// Which cases there are. op_table() takes them from the file of each group.
namespace octet::test {
namespace {

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
  add_adapters(table);
  add_ranks(table);
  add_sampling(table);
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
