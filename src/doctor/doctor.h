#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "doctor/check_result.h"

namespace octet {

struct DoctorReport {
  std::vector<CheckResult> results;
  bool fp8_native = false;          // FP8 products run on tensor cores here
  std::optional<double> fp8_ratio;  // speed of FP8 products over BF16 products
  std::string verdict;              // one sentence

  int count(Health health) const;
};

// Looks at the machine, and at the run that `config` describes if one is given. `show` gets each result as soon as it is
// there.
DoctorReport examine(const TrainConfig& config, bool is_given,
                     const std::function<void(const CheckResult&)>& show);

std::string check_text(const CheckResult& result);  // one line, and a second one with the remedy
std::string doctor_json(const DoctorReport& report);

}  // namespace octet
