#include "precision/fp8_config.h"

#include "base/error.h"
#include "base/names.h"

namespace octet {

void Fp8Config::validate() const {
  if (margin < 0 || margin > kMaxMargin) {
    fail_config("[fp8] fp8_margin is {}, expected 0 to {} (each unit halves the scale)", margin, kMaxMargin);
  }
  if (history_length < 1) {
    fail_config("[fp8] fp8_amax_history_len is {}, expected at least 1", history_length);
  }
  if (interval < 1) fail_config("[fp8] fp8_interval is {}, expected at least 1", interval);
}

Fp8Config Fp8Config::of_head() const {
  Fp8Config result = *this;
  if (recipe == Fp8Recipe::Delayed) return result;
  const Fp8Config defaults;
  result.recipe = Fp8Recipe::Delayed;
  result.margin = defaults.margin;
  result.interval = defaults.interval;
  result.history_length = defaults.history_length;
  result.most_recent = defaults.most_recent;
  return result;
}

std::string_view name_of(Fp8Recipe recipe) {
  constexpr std::string_view kNames[] = {"delayed", "current", "block", "mxfp8"};
  return name_in(kNames, recipe);
}

std::string_view name_of(Fp8Format format) {
  constexpr std::string_view kNames[] = {"hybrid", "e4m3", "e5m2"};
  return name_in(kNames, format);
}

std::string_view name_of(Role role) {
  constexpr std::string_view kNames[] = {"input", "weight", "gradient"};
  return name_in(kNames, role);
}

QuantizeRule quantize_rule(const Fp8Config& config, Role role) {
  QuantizeRule rule;
  switch (config.format) {
    case Fp8Format::E4M3:
      break;
    case Fp8Format::Hybrid:
      if (role == Role::Gradient) rule.format_rowwise = rule.format_colwise = DType::E5M2;
      break;
    case Fp8Format::E5M2:
      if (role == Role::Gradient) rule.format_rowwise = rule.format_colwise = DType::E5M2;
      if (role == Role::Input) rule.format_rowwise = DType::E5M2;
      break;
  }
  switch (config.recipe) {
    case Fp8Recipe::Delayed:
      rule.delayed = true;
      rule.margin = config.margin;
      break;
    case Fp8Recipe::Current:
      rule.margin = config.margin;
      break;
    case Fp8Recipe::Block:
      rule.granularity = role == Role::Weight ? Granularity::Block128 : Granularity::Row128;
      rule.pow2_scales = config.pow2_block_scales;
      break;
    case Fp8Recipe::Mxfp8:
      rule.granularity = Granularity::Row32;
      break;
  }
  return rule;
}

std::string format_note(const Fp8Config& config) {
  if (config.format != Fp8Format::E5M2) return "";
  return "fp8_format e5m2: no GPU multiplies e5m2 by e5m2, so each product has one e5m2 operand: the "
         "input in the forward product (weights e4m3), the gradient in dgrad (weights e4m3) and wgrad "
         "(input e4m3)";
}

}  // namespace octet
