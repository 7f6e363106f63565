#include "plan/numerics.h"

#include <algorithm>

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

// One FP8 product of a Linear: c (m, n) from a (m, k) and b (n, k).
struct Fp8Product {
  std::string layer;
  int64_t m = 0, n = 0, k = 0;
  QuantizeRule a, b;
  DType format_a, format_b, out;

  bool is_native(Device& device) const {
    return device.gemm_fp8_kind(m, n, k, a.granularity, b.granularity, format_a, format_b, out) == "native";
  }
};

// The product of `site` with these settings. The gradient of the weight has dtype `gradients`, the others `dense`.
Fp8Product product_of(const LinearSite& site, Product product, const Fp8Config& settings, DType dense,
                      DType gradients) {
  const QuantizeRule x = quantize_rule(settings, Role::Input);
  const QuantizeRule w = quantize_rule(settings, Role::Weight);
  const QuantizeRule dy = quantize_rule(settings, Role::Gradient);
  switch (product) {
    case Product::Forward:
      return {site.name, site.tokens, site.out, site.in, x, w, x.format_rowwise, w.format_rowwise, dense};
    case Product::Dgrad:
      return {site.name, site.tokens, site.in, site.out, dy, w, dy.format_rowwise, w.format_colwise, dense};
    case Product::Wgrad:
      return {site.name, site.out,          site.in,          site.tokens, dy,
              x,         dy.format_colwise, x.format_colwise, gradients};
  }
  fail("[numerics] unknown product");
}

// Whether the device has kernels for a recipe, if sizes fit.
bool has_kernels(Fp8Config settings, Fp8Recipe recipe, const Numerics& numerics, Device& device) {
  settings.recipe = recipe;
  LinearSite site;
  site.out = site.in = site.tokens = 4096;
  return std::all_of(kProducts.begin(), kProducts.end(), [&](Product product) {
    return product_of(site, product, settings, numerics.dense(), numerics.gradients).is_native(device);
  });
}

// Why products are emulated on a GPU, and what helps. `example` is one of them.
std::string emulation_reason(const Fp8Product& example, const Numerics& numerics, Device& device) {
  const Fp8Config& settings = numerics.fp8;
  if (has_kernels(settings, settings.recipe, numerics, device)) {
    return fmt::format("its kernels do not take their sizes, such as {} x {} x {} in {}", example.m,
                       example.n, example.k, example.layer);
  }
  return fmt::format("it has no kernels for fp8_recipe {}; use delayed or {}", name_of(settings.recipe),
                     has_kernels(settings, Fp8Recipe::Block, numerics, device) ? name_of(Fp8Recipe::Block)
                                                                               : name_of(Fp8Recipe::Current));
}

// "FP8" when every FP8 product runs on FP8 tensor cores, else what is emulated.
std::string fp8_label(const Transformer& transformer, Device& device) {
  const Numerics& numerics = transformer.numerics();
  int64_t products = 0;
  std::vector<Fp8Product> emulated;
  for (const Linear* linear : transformer.linears()) {
    const Fp8Config settings = settings_of(linear->spec.site, numerics.fp8);
    for (const Product product : kProducts) {
      if (!linear->spec.choice[product].fp8) continue;
      ++products;
      Fp8Product one = product_of(linear->spec.site, product, settings, numerics.dense(), numerics.gradients);
      if (!one.is_native(device)) emulated.push_back(std::move(one));
    }
  }
  if (emulated.empty()) return "FP8";
  // On the CPU, FP8 is always emulated.
  if (device.name() != "cpu") {
    log_warning("{} of {} FP8 products are emulated on {}, slower than BF16: {}", emulated.size(), products,
                device.description(), emulation_reason(emulated.front(), numerics, device));
  }
  return std::ssize(emulated) == products ? "FP8 (emulated)" : "FP8 (partly emulated)";
}

}  // namespace

Numerics numerics_from(const StepKeys& keys, const Device& device) {
  Numerics numerics;
  numerics.precision = keys.mixed_precision;
  constexpr DType kMoments[] = {DType::F32, DType::BF16, DType::E4M3};
  numerics.moments = kMoments[static_cast<size_t>(keys.optimizer_state)];
  if (keys.mixed_precision != Precision::Fp32) {
    constexpr RemainderKind kRemainders[] = {RemainderKind::Exact, RemainderKind::Compact,
                                             RemainderKind::None};
    numerics.remainder = kRemainders[static_cast<size_t>(keys.master_weights)];
  }
  // On the GPU, without accumulation, gradients are bf16: half the memory, and each is rounded only once. Gradients that
  // several products add to, such as the head's, are always fp32 (ParameterSpec::summed).
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
  fp8.most_recent = keys.fp8_amax_compute == Fp8AmaxCompute::MostRecent;
  fp8.pow2_block_scales = keys.fp8_block_scales == Fp8BlockScales::Pow2;
  fp8.head = keys.fp8_head;
  fp8.fast_accumulation = keys.fp8_fast_accum;
  fp8.skip_layers = keys.fp8_skip_layers;
  fp8.validate();
  return numerics;
}

StepKeys keys_with_native_recipe(StepKeys keys, Device& device) {
  const bool asks = keys.mixed_precision == Precision::Fp8 && keys.fp8_recipe == Fp8Recipe::Mxfp8;
  if (!asks || keys.fp8_emulation || device.name() == "cpu") return keys;
  const Numerics numerics = numerics_from(keys, device);
  if (has_kernels(numerics.fp8, Fp8Recipe::Mxfp8, numerics, device)) return keys;
  log_warning(
      "{} has no kernels for fp8_recipe mxfp8: the run has fp8_recipe delayed in its place. --fp8_emulation emulates mxfp8, "
      "slower than BF16",
      device.description());
  keys.fp8_recipe = Fp8Recipe::Delayed;
  return keys;
}

std::string no_fp8_reason(const Transformer& transformer) {
  for (const Linear* linear : transformer.linears()) {
    if (linear->spec.choice.any_fp8()) return "";
  }
  const Linear& first = *transformer.linears().front();
  return fmt::format("no layer can run in FP8 (for example {}: {})", first.spec.site.name,
                     first.spec.choice[Product::Forward].reason);
}

std::string precision_label(const Transformer& transformer, Device& device) {
  const Precision precision = transformer.numerics().precision;
  return precision == Precision::Fp8 ? fp8_label(transformer, device) : upper_name(precision);
}

}  // namespace octet
