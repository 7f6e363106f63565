#pragma once

#include <span>

#include "import/key_groups.h"

namespace octet {

// Parts of axolotl_tool(), see tools.h.

std::span<const KeyGroup> axolotl_groups();

// Rows about data.
std::span<const ToolKey> axolotl_data_keys();
// Sets dataset, eval_dataset, chat_template and what belongs to them. Called after the rows.
void finish_axolotl_data(Importer& importer);

// Adapters are trained: then the lora_ keys count.
bool axolotl_trains_adapters(const SettingsTree& tree);

}  // namespace octet
