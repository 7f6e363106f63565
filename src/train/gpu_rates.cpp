#include "train/gpu_rates.h"

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

double expected_matrix_ratio(const Transformer& transformer, const GpuRates& rates) {
  double bf16 = 0, chosen = 0;
  for (const Linear* linear : transformer.linears()) {
    const double flops = static_cast<double>(linear->site().out) * static_cast<double>(linear->site().in);
    for (const Product product : kProducts) {
      const auto i = static_cast<size_t>(product);
      bf16 += flops / rates.bf16[i];
      chosen += flops / (linear->choice()[product].fp8 ? rates.fp8[i] : rates.bf16[i]);
    }
  }
  return bf16 / chosen;
}

}  // namespace octet
