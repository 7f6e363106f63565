#include "train/fp8_stats.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/log.h"

namespace octet {

std::string fp8_stats_json(const std::vector<ScaleTable::Report>& reports) {
  nlohmann::json json = nlohmann::json::object();
  for (const ScaleTable::Report& r : reports) {
    if (r.elements == 0) continue;
    nlohmann::json entry = {{"format", name_of(r.format)},
                            {"amax", r.amax},
                            {"scale", r.scale},
                            {"saturated", r.saturated_share},
                            {"flushed", r.flushed_share}};
    entry["sqnr_db"] = std::isfinite(r.sqnr_db) ? nlohmann::json(r.sqnr_db) : nlohmann::json(nullptr);
    json[r.name] = std::move(entry);
  }
  return json.dump();
}

MedianScales median_scales(const std::vector<ScaleTable::Report>& reports) {
  std::vector<double> forward, backward;
  for (const ScaleTable::Report& r : reports) {
    if (r.elements > 0) (r.name.ends_with(".gradient") ? backward : forward).push_back(r.scale);
  }
  const auto median = [](std::vector<double> scales) -> std::optional<double> {
    if (scales.empty()) return std::nullopt;
    const auto middle = scales.begin() + static_cast<std::ptrdiff_t>(scales.size() / 2);
    std::nth_element(scales.begin(), middle, scales.end());
    return *middle;
  };
  return {.forward = median(std::move(forward)), .backward = median(std::move(backward))};
}

std::string SaturationWatch::look(const std::vector<ScaleTable::Report>& reports, const Fp8Config& config) {
  std::string first;
  const bool per_tensor = has_scale_per_tensor(config.recipe);
  for (const ScaleTable::Report& r : reports) {
    int& run = runs_[r.name];
    const bool high = r.saturated_share > kShare;
    run = high ? run + 1 : (run < kRecords ? 0 : run);  // kept after the warning, which comes only once
    if (!high || run != kRecords) continue;
    const std::string layer = r.name.substr(0, r.name.rfind('.'));
    const bool delayed = config.recipe == Fp8Recipe::Delayed, is_head = layer == "head";
    std::vector<std::string> advice;
    if (is_head ? delayed : per_tensor)
      advice.push_back(fmt::format("raise fp8_margin (now {})", config.margin));
    if (delayed && !is_head) advice.push_back("use fp8_recipe current");
    if (config.format == Fp8Format::E4M3) advice.push_back("use fp8_format hybrid");
    advice.push_back(
        fmt::format("{}skip the layer with fp8_skip_layers: [{}]", advice.empty() ? "" : "or ", layer));
    const std::string text =
        fmt::format("{}: {:.2f} % of the values saturate in {}, in {} records in a row; {}", r.name,
                    100 * r.saturated_share, name_of(r.format), kRecords, fmt::join(advice, ", "));
    log_warning("{}", text);
    if (first.empty()) first = text;
  }
  return first;
}

}  // namespace octet
