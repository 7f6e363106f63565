#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "precision/scale_table.h"

namespace octet {

// {"layers.0.mlp.up.input": {"format", "amax", "scale", "saturated", "flushed", "sqnr_db"}, ...} for metrics.jsonl.
std::string fp8_stats_json(const std::vector<ScaleTable::Report>& reports);

// The median scale of the tensors that products of forward read (inputs and weights), and of gradients; nothing where
// there are none. A tensor with a scale per block counts as 1.
struct MedianScales {
  std::optional<double> forward, backward;
};
MedianScales median_scales(const std::vector<ScaleTable::Report>& reports);

// Watches the statistics of a run and warns, once per tensor, when it saturates steadily.
class SaturationWatch {
 public:
  // Shares above this are too many, and this many records in a row are steady.
  static constexpr double kShare = 1e-3;
  static constexpr int kRecords = 3;

  // Gives the first of the warnings; empty: none.
  std::string look(const std::vector<ScaleTable::Report>& reports, const Fp8Config& config);

 private:
  std::map<std::string, int> runs_;  // records in a row above kShare
};

}  // namespace octet
