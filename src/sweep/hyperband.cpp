#include "sweep/hyperband.h"

#include <algorithm>

namespace octet {

std::optional<HyperbandVerdict> judge_run(const Hyperband& hyperband, bool maximize,
                                          const std::vector<double>& run,
                                          const std::vector<std::vector<double>>& histories) {
  int64_t rung = 0;
  for (const int64_t each : hyperband.rungs)
    if (each <= std::ssize(run)) rung = each;
  if (rung == 0) return std::nullopt;
  const auto value_at = [&](const std::vector<double>& history) {
    const auto end = history.begin() + static_cast<ptrdiff_t>(rung);
    if (hyperband.strict) return *(end - 1);
    return maximize ? *std::max_element(history.begin(), end) : *std::min_element(history.begin(), end);
  };
  std::vector<double> reached;
  for (const std::vector<double>& history : histories)
    if (std::ssize(history) >= rung) reached.push_back(value_at(history));
  if (reached.empty()) return std::nullopt;
  std::ranges::sort(reached);
  if (maximize) std::ranges::reverse(reached);
  const auto place = static_cast<size_t>(static_cast<double>(reached.size()) / hyperband.eta);
  const double threshold = reached[std::min(place, reached.size() - 1)], value = value_at(run);
  const bool is_good = maximize ? value >= threshold : value <= threshold;
  if (is_good) return std::nullopt;
  return HyperbandVerdict{.rung = rung, .value = value, .threshold = threshold};
}

}  // namespace octet
