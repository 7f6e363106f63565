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

// Rows about adapters and a quantised base.
std::span<const ToolKey> axolotl_adapter_keys();
void finish_axolotl_adapters(Importer& importer);
// Adapters are trained: then the lora_ keys count.
bool axolotl_trains_adapters(const SettingsTree& tree);
// A frozen base in 4 or 8 bits: octet's frozen weights are FP8 then.
bool axolotl_wants_small_base(const SettingsTree& tree);

}  // namespace octet
