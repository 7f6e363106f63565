#pragma once

#include <string_view>

#include "import/importer.h"

namespace octet {

// For rows such as "fsdp_config.**": PyTorch's FSDP 1 and 2 as Accelerate, Axolotl and Transformers write them, with or
// without "fsdp_" before a name.
void fsdp_config_rule(Importer&, const TreeLeaf&);

// FSDP is used but no strategy was given: both versions then shard everything.
void set_default_fsdp_sharding(Importer&, std::string comment);

// The version: a key of the file, a key of its fsdp_config, or 1.
int fsdp_version_of(const SettingsTree&);
// A value of fsdp_config under both spellings, or nullptr.
const TreeLeaf* fsdp_setting(const SettingsTree&, std::string_view name);

// sharding_mode of a mesh of dp_replicate x dp_shard ranks; 0: not given.
void set_mesh_sharding(Importer&, double replicate, double shard, const TreeLeaf& from);

// For keys of Weights & Biases: `key` is octet's key for the value, or "" if it has none.
void wandb_value_rule(Importer&, const TreeLeaf&, std::string_view key);

// torchao's FP8 with FSDP: settings that only FSDP 2 takes, or that end the run. Each may be nullptr; `fsdp_version` 0: no
// FSDP.
void find_torchao_fsdp_mistakes(Importer&, const TreeLeaf* gathers_fp8, const TreeLeaf* ram_efficient,
                                int fsdp_version);

}  // namespace octet
