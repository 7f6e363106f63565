#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/keys.h"
#include "config/config.h"

namespace octet {

inline constexpr const char* kVariantNames = "bf16, fp32, fp8, delayed, current, block, mxfp8";

// One training run that a comparison needs.
struct PlannedRun {
  std::string variant;  // as it was given: "fp8:fp8_head=true"
  std::string name;     // of the run
  std::string folder;   // <output_dir>/<name>
  std::string yaml;     // its configuration: the keys that somebody has set
  TrainConfig config;
};

struct VariantPlan {
  std::vector<std::string> variants;  // the first one is the reference
  int64_t steps = 100;
  int64_t seeds = 1;
  bool for_checklist = false;  // also saves in the middle, to resume from there
};

// The runs of all variants and seeds, variant by variant. A variant is a name of kVariantNames, or key=value, or both,
// separated by ':': "fp8:fp8_head=true:fp8_margin=1". Its settings override those of `file` and `flags`. ConfigError for
// an unknown name, key or value, and for a variant that is given twice.
std::vector<PlannedRun> plan_variants(const VariantPlan& plan, const FileSettings& file,
                                      std::span<const KeySetting> flags);

// Says what a user should know of the settings of these runs.
void tell_of_settings(const std::vector<PlannedRun>& runs, bool on_gpu);

// BF16 and the precision of the configuration, as variants.
std::vector<std::string> default_variants(const FileSettings& file, std::span<const KeySetting> flags);

}  // namespace octet
