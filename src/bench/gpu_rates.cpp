#include "bench/gpu_rates.h"

#include <algorithm>
#include <cctype>
#include <cmath>

namespace octet {
namespace {

constexpr GpuRates kMeasured[] = {
    {"NVIDIA H200",
     {774, 720, 707},
     {1396, 1324, 1220},
     {1.117, 1.035, 1.11},
     240,
     4.2,
     0.92,
     int64_t{139} << 30,
     132},
};

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return result;
}

double product_seconds(const Linear& linear, double tokens, const GpuRates& rates, bool all_bf16) {
  const double flops =
      2 * static_cast<double>(linear.spec.site.out) * static_cast<double>(linear.spec.site.in) * tokens;
  double seconds = 0;
  for (const Product product : kProducts) {
    if (product == Product::Wgrad && !linear.weight.trains()) continue;
    seconds += flops / rate_of(linear, product, rates, all_bf16);
  }
  return seconds;
}

double matrix_seconds(const Transformer& transformer, const GpuRates& rates, bool all_bf16) {
  double seconds = 0;
  for (const Linear* linear : transformer.linears())
    seconds += product_seconds(*linear, static_cast<double>(transformer.shape().tokens()), rates, all_bf16);
  return seconds;
}

// With three digits: an estimate is not better.
int64_t rough(double value) {
  const double unit = std::pow(10, std::max(0.0, std::floor(std::log10(value)) - 2));
  return static_cast<int64_t>(std::round(value / unit) * unit);
}

}  // namespace

double rate_of(const Linear& linear, Product product, const GpuRates& rates, bool all_bf16) {
  const auto i = static_cast<size_t>(product);
  const ProductChoice& choice = linear.spec.choice[product];
  if (all_bf16 || !choice.fp8) return 1e12 * rates.bf16[i];
  return 1e12 * rates.fp8[i] * (choice.fast_accumulation ? rates.fast_sums[i] : 1);
}

std::optional<GpuRates> gpu_rates(std::string_view name) {
  // By the model's whole word: an H20 is no H200.
  const std::string asked = lower(name);
  for (const GpuRates& rates : kMeasured) {
    const std::string known = lower(rates.gpu), model = known.substr(known.rfind(' ') + 1);
    const auto is_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; };
    const size_t at = asked.find(model), end = at + model.size();
    if (at == std::string::npos || (at > 0 && is_word(asked[at - 1])) ||
        (end < asked.size() && is_word(asked[end]))) {
      continue;
    }
    return rates;
  }
  return std::nullopt;
}

double matrix_seconds(const Transformer& transformer, const GpuRates& rates) {
  return matrix_seconds(transformer, rates, false);
}

double expected_matrix_ratio(const Transformer& transformer, const GpuRates& rates) {
  return matrix_seconds(transformer, rates, true) / matrix_seconds(transformer, rates, false);
}

StepEstimate estimate_step(const Transformer& transformer, const GpuRates& rates, bool all_bf16) {
  const ModelConfig& c = transformer.config();
  const Checkpointing level = transformer.shape().checkpointing;
  const auto n = static_cast<double>(transformer.shape().tokens());
  const double bytes_per_second = 1e12 * rates.bandwidth;
  StepEstimate estimate;
  for (const Linear* linear : transformer.linears()) {
    const LinearSite& site = linear->spec.site;
    const auto out = static_cast<double>(site.out), in = static_cast<double>(site.in);
    double& seconds = site.kind == WorkKind::Head ? estimate.head : estimate.base;
    seconds += product_seconds(*linear, n, rates, all_bf16) / rates.sustained;
    const bool is_up = site.name.ends_with("mlp.up"), is_down = site.name.ends_with("mlp.down");
    const bool again = site.kind == WorkKind::BaseMatrix && ((level == Checkpointing::Block && !is_down) ||
                                                             (level == Checkpointing::Mlp && is_up));
    if (again)
      seconds += 2 * out * in * n / (rate_of(*linear, Product::Forward, rates, all_bf16) * rates.sustained);
    if (linear->weight.transposes() && !all_bf16) estimate.other += 2 * out * in / bytes_per_second;
    // Inputs and gradients are read twice each; outputs and input gradients are written, and read by the base's product.
    // These products reach four fifths of the bandwidth. Higher ranks add the time of the products themselves.
    if (const LowRank& adapter = linear->operands.adapter()) {
      double elements = static_cast<double>(adapter.a().spec.shape.numel());
      for (const LowRank::Part& part : adapter.parts())
        elements += static_cast<double>(part.b->spec.shape.numel());
      estimate.adapters += 7 * n * (in + out) / (0.8 * bytes_per_second) +
                           6 * elements * n / (1e12 * rates.bf16[0] * rates.sustained);
      // Bytes per element of the input that dropout adds; counted, not measured. A dropped input is written in forward and
      // again in backward (4 each). The product for the input's gradient has memory of its own, which is added to what
      // the base wrote (8 instead of 4). With FP8, adapters read that input instead of its codes (1 each), and its dense
      // form has to be written (2).
      const bool reads_codes = !all_bf16 && linear->spec.choice[Product::Forward].fp8;
      if (transformer.finetuning().adapters.dropout > 0)
        estimate.adapters += (reads_codes ? 16 : 12) * n * in / bytes_per_second;
    }
  }
  // Forward is two of the seven products of attention.
  const double attentions = level == Checkpointing::Block ? 9 : 7;
  estimate.attention = attentions * static_cast<double>(c.layers * c.attention().out_width()) * n *
                       c.attention().span(transformer.shape().length) / (1e12 * rates.attention);
  // Norms, activations, rotations and casts: about ten bytes per element, a third of them in forward.
  const auto elements =
      static_cast<double>(c.layers * (4 * c.width + c.up_width() + c.attention().qkv_width()));
  estimate.other += (level == Checkpointing::None ? 10 : 13) * n * elements / bytes_per_second;
  return estimate;
}

std::string expected_gain_text(const Transformer& transformer, const GpuRates& rates, bool bf16_fits) {
  const StepEstimate fp8 = estimate_step(transformer, rates, false);
  const StepEstimate bf16 = estimate_step(transformer, rates, true);
  const auto tokens = static_cast<double>(transformer.shape().tokens());
  const std::string gain =
      bf16_fits
          ? fmt::format("FP8 is {:.2f}x as fast as BF16, about {} against {} tokens/s",
                        bf16.total() / fp8.total(), rough(tokens / fp8.total()), rough(tokens / bf16.total()))
          : fmt::format("about {} tokens/s in FP8; in BF16 this run does not fit",
                        rough(tokens / fp8.total()));
  return fmt::format(
      "expected on {}: {}. The products of the frozen base would take {:.0f} % of a step in BF16, and run {:.2f}x as "
      "fast in FP8. Head, attention, adapters and the rest gain little or nothing.",
      rates.gpu, gain, 100 * bf16.base / bf16.total(), bf16.base / fp8.base);
}

}  // namespace octet
