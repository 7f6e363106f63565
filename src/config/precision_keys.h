#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "precision/fp8_config.h"

namespace octet {

enum class OptimizerState { Fp32, Bf16, Fp8 };
enum class GradAccumDtype { Auto, Fp32, Bf16 };
enum class MasterWeights { Exact, Compact, Stochastic };
enum class Fp8AmaxCompute { Max, MostRecent };
enum class Fp8BlockScales { Pow2, Exact };

// The number formats of a run.
struct PrecisionKeys {
  Precision mixed_precision = Precision::Fp8;
  Fp8Recipe fp8_recipe = Fp8Recipe::Delayed;
  Fp8Format fp8_format = Fp8Format::Hybrid;
  int64_t fp8_margin = 0;
  int64_t fp8_interval = 1;
  int64_t fp8_amax_history_len = 16;
  Fp8AmaxCompute fp8_amax_compute = Fp8AmaxCompute::Max;
  Fp8BlockScales fp8_block_scales = Fp8BlockScales::Pow2;
  Fp8Head fp8_head = Fp8Head::Auto;
  Fp8FastAccum fp8_fast_accum = Fp8FastAccum::Forward;
  std::vector<std::string> fp8_skip_layers;
  bool require_fp8 = false;
  bool fp8_emulation = false;
  OptimizerState optimizer_state = OptimizerState::Fp32;
  MasterWeights master_weights = MasterWeights::Exact;
  GradAccumDtype grad_accum_dtype = GradAccumDtype::Auto;
};

// The value of a key of this struct as users write it.
std::string config_text(const PrecisionKeys& keys, std::string_view key);

// What the name that a run gets says of its precision. `fp8`: whether it runs in FP8, if that was asked for; a run that
// cannot is one in BF16.
inline std::string precision_of_name(const PrecisionKeys& keys, bool fp8 = true) {
  const bool falls_back = keys.mixed_precision == Precision::Fp8 && !fp8;
  return falls_back ? "bf16" : config_text(keys, "mixed_precision");
}

}  // namespace octet
