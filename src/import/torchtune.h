#pragma once

#include <span>
#include <string>
#include <string_view>

#include "import/key_groups.h"

namespace octet {

// Parts of torchtune_tool(), see tools.h.

std::span<const KeyGroup> torchtune_groups();

// Rows about data.
std::span<const ToolKey> torchtune_data_keys();
// Sets dataset, eval_split, train_on and what belongs to them. Called after the rows.
void finish_torchtune_data(Importer& importer);

// "torchtune.models.llama3_1.lora_llama3_1_8b" as lora_llama3_1_8b.
std::string component_name(std::string_view component);

}  // namespace octet
