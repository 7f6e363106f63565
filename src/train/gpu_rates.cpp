#include "train/gpu_rates.h"

#include <algorithm>
#include <cctype>

namespace octet {
namespace {

constexpr GpuRates kMeasured[] = {
    {"NVIDIA H200", {774, 720, 707}, {1396, 1324, 1220}},
};

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return result;
}

}  // namespace

std::optional<GpuRates> gpu_rates(std::string_view name) {
  if (name.empty()) return std::nullopt;
  for (const GpuRates& rates : kMeasured) {
    const std::string known = lower(rates.gpu), asked = lower(name);
    if (known.find(asked) != std::string::npos || asked.find(known) != std::string::npos) return rates;
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
