#pragma once

#include <string_view>

#include "import/importer.h"

namespace octet {

// For keys of Weights & Biases: `key` is octet's key for the value, or "" if it has none.
void wandb_value_rule(Importer&, const TreeLeaf&, std::string_view key);

// torchao's FP8 with FSDP: settings that only FSDP 2 takes, or that end the run. Each may be nullptr; `fsdp_version` 0: no
// FSDP.
void find_torchao_fsdp_mistakes(Importer&, const TreeLeaf* gathers_fp8, const TreeLeaf* ram_efficient,
                                int fsdp_version);

}  // namespace octet
