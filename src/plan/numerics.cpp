#include "plan/numerics.h"

#include "base/log.h"

namespace octet {
namespace {

std::string upper_name(Precision precision) {
  switch (precision) {
    case Precision::Fp8:
      return "FP8";
    case Precision::Bf16:
      return "BF16";
    case Precision::Fp32:
      return "FP32";
  }
  return "?";
}

// "FP8" when every FP8 product runs on FP8 tensor cores, else what is emulated.
std::string fp8_label(const Transformer& transformer, Device& device) {
  const Numerics& numerics = transformer.numerics();
  const DType dense = numerics.dense();
  int64_t products = 0, native = 0;
  for (const Linear* linear : transformer.linears()) {
    const LinearSite& s = linear->site();
    const Fp8Config settings = settings_of(s, numerics.fp8);
    const QuantizeRule x = quantize_rule(settings, Role::Input);
    const QuantizeRule w = quantize_rule(settings, Role::Weight);
    const QuantizeRule dy = quantize_rule(settings, Role::Gradient);
    const auto count = [&](Product product, int64_t m, int64_t n, int64_t k, const QuantizeRule& a,
                           DType format_a, const QuantizeRule& b, DType format_b, DType out) {
      if (!linear->choice()[product].fp8) return;
      ++products;
      native +=
          device.gemm_fp8_kind(m, n, k, a.granularity, b.granularity, format_a, format_b, out) == "native";
    };
    count(Product::Forward, s.tokens, s.out, s.in, x, x.format_rowwise, w, w.format_rowwise, dense);
    count(Product::Dgrad, s.tokens, s.in, s.out, dy, dy.format_rowwise, w, w.format_colwise, dense);
    count(Product::Wgrad, s.out, s.in, s.tokens, dy, dy.format_colwise, x, x.format_colwise,
          numerics.gradients);
  }
  if (native == products) return "FP8";
  if (native == 0) return "FP8 (emulated)";
  const Fp8Recipe recipe = numerics.fp8.recipe;
  const bool in_blocks = recipe == Fp8Recipe::Block || recipe == Fp8Recipe::Mxfp8;
  log_warning("{} of {} FP8 products have no FP8 kernel on {} and are emulated{}", products - native,
              products, device.description(),
              in_blocks ? fmt::format(", slower than BF16: it has no kernels for fp8_recipe {}; use delayed",
                                      name_of(recipe))
                        : "");
  return "FP8 (partly emulated)";
}

}  // namespace

Numerics numerics_from(const TrainConfig& keys, const Device& device) {
  Numerics numerics;
  numerics.precision = keys.mixed_precision;
  constexpr DType kMoments[] = {DType::F32, DType::BF16, DType::E4M3};
  numerics.moments = kMoments[static_cast<size_t>(keys.optimizer_state)];
  if (keys.mixed_precision != Precision::Fp32) {
    constexpr RemainderKind kRemainders[] = {RemainderKind::Exact, RemainderKind::Compact,
                                             RemainderKind::None};
    numerics.remainder = kRemainders[static_cast<size_t>(keys.master_weights)];
  }
  // On the GPU, without accumulation, gradients are bf16: half the memory, and each is rounded only once.
  using GradAccumDtype = TrainConfig::GradAccumDtype;
  const bool accumulates = keys.gradient_accumulation_steps > 1 || keys.target_effective_batch_size > 0;
  const bool bf16_by_itself = device.capabilities().fast_bf16 && !accumulates;
  if (keys.grad_accum_dtype == GradAccumDtype::Bf16 ||
      (keys.grad_accum_dtype == GradAccumDtype::Auto && bf16_by_itself))
    numerics.gradients = numerics.dense();
  Fp8Config& fp8 = numerics.fp8;
  fp8.recipe = keys.fp8_recipe;
  fp8.format = keys.fp8_format;
  fp8.margin = static_cast<int>(keys.fp8_margin);
  fp8.interval = keys.fp8_interval;
  fp8.history_length = keys.fp8_amax_history_len;
  fp8.most_recent = keys.fp8_amax_compute == TrainConfig::Fp8AmaxCompute::MostRecent;
  fp8.pow2_block_scales = keys.fp8_block_scales == TrainConfig::Fp8BlockScales::Pow2;
  fp8.head = keys.fp8_head;
  fp8.fast_accumulation = keys.fp8_fast_accum;
  fp8.skip_layers = keys.fp8_skip_layers;
  fp8.validate();
  return numerics;
}

std::string no_fp8_reason(const Transformer& transformer) {
  for (const Linear* linear : transformer.linears()) {
    if (linear->choice().any_fp8()) return "";
  }
  const Linear& first = *transformer.linears().front();
  return fmt::format("no layer can run in FP8 (for example {}: {})", first.site().name,
                     first.choice()[Product::Forward].reason);
}

std::string precision_label(const Transformer& transformer, Device& device) {
  const Precision precision = transformer.numerics().precision;
  return precision == Precision::Fp8 ? fp8_label(transformer, device) : upper_name(precision);
}

}  // namespace octet
