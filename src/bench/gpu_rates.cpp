#include "bench/gpu_rates.h"

#include <algorithm>
#include <cctype>

namespace octet {
namespace {

constexpr GpuRates kMeasured[] = {
    {"NVIDIA H200", {774, 720, 707}, {1396, 1324, 1220}, int64_t{139} << 30, 132},
};

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return result;
}

double matrix_seconds(const Transformer& transformer, const GpuRates& rates, bool all_bf16) {
  double seconds = 0;
  for (const Linear* linear : transformer.linears()) {
    const double flops = 2 * static_cast<double>(linear->site().out) *
                         static_cast<double>(linear->site().in) *
                         static_cast<double>(transformer.shape().tokens());
    for (const Product product : kProducts) {
      if (product == Product::Wgrad && !linear->trains()) continue;
      const auto i = static_cast<size_t>(product);
      const bool fp8 = linear->choice()[product].fp8 && !all_bf16;
      seconds += flops / (1e12 * (fp8 ? rates.fp8[i] : rates.bf16[i]));
    }
  }
  return seconds;
}

}  // namespace

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

}  // namespace octet
