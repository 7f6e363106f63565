#pragma once

#include <string>

#include "import/importer.h"

namespace octet {

// For keys of Weights & Biases: `key` is octet's key for the value, or "" if it has none.
void wandb_value_rule(Importer&, const TreeLeaf&, std::string_view key);

// Weights or moments on the CPU: a mistake with FP8, and a warning always.
void find_cpu_offload(Importer&, const TreeLeaf&);

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

// PyTorch's tools convert nn.Linear only: the matrices of GPT-2 (Conv1D) stay in BF16 there. `where`: the FP8 key.
void find_gpt2_in_bf16(Importer&, std::string_view model, std::string where);

}  // namespace octet
