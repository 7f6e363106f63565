#pragma once

#include <map>
#include <string>
#include <vector>

#include "model/transformer.h"

namespace octet {

// {"layers.0.mlp.up.input": {"format", "amax", "scale", "saturated", "flushed", "sqnr_db"}, ...} for metrics.jsonl.
std::string fp8_stats_json(const std::vector<ScaleTable::Report>& reports);

// Watches the statistics of a run and warns, once per tensor, when it saturates steadily.
class SaturationWatch {
 public:
  // Shares above this are too many, and this many records in a row are steady.
  static constexpr double kShare = 1e-3;
  static constexpr int kRecords = 3;

  void look(const std::vector<ScaleTable::Report>& reports, const Fp8Config& config);

 private:
  std::map<std::string, int> runs_;  // records in a row above kShare
};

// FLOPs of a training step by kind of work, and how much of each runs in FP8.
struct WorkShare {
  std::string kind;  // "base matrices", "head", "attention", "other"
  double flops = 0;
  double fp8_flops = 0;
};
std::vector<WorkShare> work_shares(const Transformer& transformer);
double fp8_share(const std::vector<WorkShare>& shares);  // of all FLOPs, 0 to 1

// Tables for a human: one row per Linear (equal layers folded), with shapes, shares and the precision of each
// product; reasons for what is not in FP8; the shares by kind; the total.
std::string coverage_text(const Transformer& transformer);

}  // namespace octet
