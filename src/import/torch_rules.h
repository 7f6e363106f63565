#pragma once

#include <string>

#include "import/importer.h"

namespace octet {

// For keys of Weights & Biases: `key` is octet's key for the value, or "" if it has none.
void wandb_value_rule(Importer&, const TreeLeaf&, std::string_view key);

// How a configuration runs FP8 through torchao (Accelerate's backend AO, Axolotl's fp8, torchtune's fp8).
struct TorchaoUse {
  std::string where;  // the key that asks for FP8
  bool is_compiled = false;
  bool recomputes = false;
  const TreeLeaf* gathers_fp8 = nullptr;    // enable_fsdp_float8_all_gather
  const TreeLeaf* ram_efficient = nullptr;  // fsdp_cpu_ram_efficient_loading
  int fsdp_version = 0;                     // 0: no FSDP
};
// Known mistakes: without torch.compile, with recomputation, with settings that FSDP 1 does not take.
void torchao_findings(Importer&, const TorchaoUse&);

}  // namespace octet
