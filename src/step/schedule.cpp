#include "step/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <utility>

#include "base/error.h"

namespace octet {
namespace {

constexpr std::array<std::pair<std::string_view, ScheduleType>, 7> kScheduleNames = {{
    {"cosine", ScheduleType::Cosine},
    {"linear", ScheduleType::Linear},
    {"constant", ScheduleType::Constant},
    {"wsd", ScheduleType::Wsd},
    {"cosine_with_min_lr", ScheduleType::Cosine},
    {"constant_with_warmup", ScheduleType::Constant},
    {"warmup_stable_decay", ScheduleType::Wsd},
}};

double ratio(int64_t part, int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

std::string_view to_string(ScheduleType type) {
  for (const auto& [name, known] : kScheduleNames) {
    if (type == known) return name;
  }
  return "?";
}

void ScheduleConfig::validate() const {
  const auto check = [](bool holds, std::string_view key, auto value, std::string_view expected) {
    if (!holds) fail_config("[config] {} is {}, expected {}", key, value, expected);
  };
  check(std::isfinite(peak_lr) && peak_lr >= 0, "learning_rate", peak_lr,
        "a finite number that is not negative");
  check(max_steps >= 1, "max_steps", max_steps, "at least 1");
  check(warmup_steps >= 0, "warmup_steps", warmup_steps, "at least 0");
  check(min_lr_ratio >= 0 && min_lr_ratio <= 1, "min_lr_ratio", min_lr_ratio, "a number from 0 to 1");
  check(decay_steps >= 0, "decay_steps", decay_steps, "at least 0");
}

std::optional<std::string> ScheduleConfig::remark() const {
  if (warmup_steps > 0 && warmup_steps >= max_steps) {
    return fmt::format(
        "the warm-up takes {} steps and the run has {}: the whole run is warm-up, and the learning rate ends at {:.2e} "
        "(learning_rate is {:.2e})",
        warmup_steps, max_steps, peak_lr * ratio(max_steps, warmup_steps), peak_lr);
  }
  if (type == ScheduleType::Wsd && decay_steps > max_steps - warmup_steps) {
    return fmt::format(
        "warmup_steps {} and decay_steps {} do not fit into max_steps {}: the decay is cut to {} steps",
        warmup_steps, decay_steps, max_steps, max_steps - warmup_steps);
  }
  return std::nullopt;
}

double learning_rate(const ScheduleConfig& config, int64_t step) {
  require(step >= 0, "[schedule] step is {}, expected at least 0", step);
  const double peak = config.peak_lr;
  if (step < config.warmup_steps) return peak * ratio(step + 1, config.warmup_steps);

  const int64_t last = config.max_steps - 1;
  if (last == 0) return peak;
  step = std::min(step, last);

  // `height` falls from 1 (the peak) to 0 (the minimum); std::lerp is exact at both.
  const auto at_height = [&](double height) { return std::lerp(peak * config.min_lr_ratio, peak, height); };
  const auto progress = [&] {  // 0 at the first step after warm-up, 1 at the last
    return step >= last ? 1.0 : ratio(step - config.warmup_steps, last - config.warmup_steps);
  };
  switch (config.type) {
    case ScheduleType::Constant:
      return peak;
    case ScheduleType::Cosine:
      return at_height(0.5 * (1 + std::cos(std::numbers::pi * progress())));
    case ScheduleType::Linear:
      return at_height(1 - progress());
    case ScheduleType::Wsd: {
      const int64_t stable_end = std::max(config.warmup_steps, config.max_steps - config.decay_steps);
      if (step < stable_end) return peak;
      return at_height(1 - ratio(step - stable_end + 1, config.max_steps - stable_end));
    }
  }
  fail("[schedule] unknown type {}", static_cast<int>(config.type));
}

}  // namespace octet
