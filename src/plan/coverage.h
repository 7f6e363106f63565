#pragma once

#include <string>
#include <vector>

#include "model/transformer.h"

namespace octet {

// FLOPs of a training step by kind of work, and how much of each runs in FP8.
struct WorkShare {
  std::string kind;  // "base matrices", "adapters", "head", "attention", "other"
  double flops = 0;
  double fp8_flops = 0;
};
std::vector<WorkShare> work_shares(const Transformer& transformer);
double fp8_share(const std::vector<WorkShare>& shares);  // of all FLOPs, 0 to 1

// Tables for a human: one row per Linear (equal layers folded), with shapes, shares and the precision of each
// product; reasons for what is not in FP8; the shares by kind; the total.
std::string coverage_text(const Transformer& transformer);

}  // namespace octet
